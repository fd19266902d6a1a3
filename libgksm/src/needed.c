/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a driver must have so that libgksm can work on it. Any of the last years has
 * all of it; older ones, and other things that call themselves libcuda.so.1, are
 * left alone. Entry points that only some drivers have are asked for where they are
 * used and are not listed.
 */
#include "needed.h"

#include <stddef.h>
#include <string.h>

#include "driver.h"

#define NEEDED(X)                         \
	X(cuCtxGetCurrent)                \
	X(cuCtxGetDevice)                 \
	X(cuCtxPopCurrent_v2)             \
	X(cuCtxPushCurrent_v2)            \
	X(cuCtxSynchronize)               \
	X(cuDeviceGetAttribute)           \
	X(cuDeviceGetName)                \
	X(cuDeviceGetUuid)                \
	X(cuDeviceTotalMem_v2)            \
	X(cuEventCreate)                  \
	X(cuEventDestroy_v2)              \
	X(cuEventQuery)                   \
	X(cuEventRecord)                  \
	X(cuMemAddressFree)               \
	X(cuMemAddressReserve)            \
	X(cuMemAllocHost_v2)              \
	X(cuMemCreate)                    \
	X(cuMemExportToShareableHandle)   \
	X(cuMemFreeHost)                  \
	X(cuMemGetAllocationGranularity)  \
	X(cuMemGetInfo_v2)                \
	X(cuMemImportFromShareableHandle) \
	X(cuMemMap)                       \
	X(cuMemRelease)                   \
	X(cuMemSetAccess)                 \
	X(cuMemUnmap)                     \
	X(cuMemcpyDtoHAsync_v2)           \
	X(cuMemcpyHtoDAsync_v2)           \
	X(cuMemsetD8Async)                \
	X(cuPointerGetAttribute)          \
	X(cuStreamCreate)                 \
	X(cuStreamDestroy_v2)             \
	X(cuStreamIsCapturing)            \
	X(cuStreamQuery)                  \
	X(cuStreamSynchronize)            \
	X(cuStreamWaitEvent)              \
	X(cuThreadExchangeStreamCaptureMode)

static const struct {
	const char *name;
	size_t offset;
} needed[] = {
#define X(entry) {#entry, offsetof(struct gksm_driver, entry)},
	NEEDED(X)
#undef X
};

const char *gksm_driver_lacks(const struct gksm_driver *driver)
{
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		void *entry;

		memcpy(&entry, (const char *)driver + needed[i].offset, sizeof(entry));
		if (!entry)
			return needed[i].name;
	}
	return NULL;
}
