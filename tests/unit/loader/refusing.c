/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rest of what libgksm wants of a driver: there, and no use. Without cuda.h,
 * since none of them looks at its arguments.
 */
#define NOT_SUPPORTED 801

#define REFUSE(name)                  \
	int name(void);               \
	int name(void)                \
	{                             \
		return NOT_SUPPORTED; \
	}

REFUSE(cuCtxGetCurrent)
REFUSE(cuCtxGetDevice)
REFUSE(cuCtxPopCurrent_v2)
REFUSE(cuCtxPushCurrent_v2)
REFUSE(cuCtxSynchronize)
REFUSE(cuDeviceGetAttribute)
REFUSE(cuDeviceGetName)
REFUSE(cuDeviceGetUuid)
REFUSE(cuDeviceTotalMem_v2)
REFUSE(cuEventCreate)
REFUSE(cuEventDestroy_v2)
REFUSE(cuEventQuery)
REFUSE(cuEventRecord)
REFUSE(cuMemAddressFree)
REFUSE(cuMemAddressReserve)
REFUSE(cuMemAllocHost_v2)
REFUSE(cuMemCreate)
REFUSE(cuMemExportToShareableHandle)
REFUSE(cuMemFreeHost)
REFUSE(cuMemGetAllocationGranularity)
REFUSE(cuMemGetInfo_v2)
REFUSE(cuMemImportFromShareableHandle)
REFUSE(cuMemMap)
REFUSE(cuMemRelease)
REFUSE(cuMemSetAccess)
REFUSE(cuMemUnmap)
REFUSE(cuMemcpyDtoHAsync_v2)
REFUSE(cuMemcpyHtoDAsync_v2)
REFUSE(cuMemsetD8Async)
REFUSE(cuPointerGetAttribute)
REFUSE(cuStreamCreate)
REFUSE(cuStreamDestroy_v2)
REFUSE(cuStreamIsCapturing)
REFUSE(cuStreamQuery)
REFUSE(cuStreamSynchronize)
REFUSE(cuStreamWaitEvent)
REFUSE(cuThreadExchangeStreamCaptureMode)
