/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that stays the driver's own: pitched, managed, stream-ordered, and handles of the
 * VMM interface. The driver serves every one of these calls; they are counted, and made
 * once more when memory that nobody used has been given up for them.
 */
#include "interpose/foreign.h"

#include "gpu.h"
#include "interpose/scarce.h"
#include "streams.h"
#include "wrap.h"

static void tell(struct gksm *process, CUdevice device)
{
	struct gksm_gpu *gpu =
		device >= 0 && device < GKSM_GPUS_MAX ? atomic_load(&process->gpus[device]) : NULL;

	if (gpu) {
		gksm_view_active(gpu);
		gksm_gpu_report_usage(gpu);
	}
}

static void tell_current(struct gksm *process)
{
	CUdevice device;

	if (GKSM_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
		tell(process, device);
}

void gksm_foreign_made(struct gksm *process, CUdeviceptr address, uint64_t bytes)
{
	CUcontext context = NULL;
	CUdevice device;

	if (GKSM_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS ||
	    GKSM_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return;
	gksm_foreign_add(process, address, bytes, device, context);
	tell(process, device);
}

void gksm_foreign_ends(struct gksm *process, CUdeviceptr address)
{
	gksm_foreign_drop(process, address);
	tell_current(process);
}

GKSM_WRAP(cuMemAllocPitch_v2)(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			      unsigned int element_bytes)
{
	CUresult result =
		GKSM_REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element_bytes);
	struct gksm *process = gksm_process();

	/* The pitch is the driver's to choose: no more than half a KiB on top. */
	while (gksm_memory_freed(result, (width + 512) * height))
		result =
			GKSM_REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element_bytes);
	if (process && result == CUDA_SUCCESS)
		gksm_foreign_made(process, *address, (uint64_t)*pitch * height);
	return result;
}

/* Its pages move between GPU and host: what it takes is not counted. */
GKSM_WRAP(cuMemAllocManaged)(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	CUresult result = GKSM_REAL(cuMemAllocManaged)(address, bytes, flags);

	while (gksm_memory_freed(result, bytes))
		result = GKSM_REAL(cuMemAllocManaged)(address, bytes, flags);
	return result;
}

/* How much a pool keeps for itself is the driver's business, so it is asked. What is freed
 * in stream order is seen at the next such call, or when free memory is asked for. */
static CUresult pooled(CUresult result, CUmemoryPool pool)
{
	struct gksm *process = gksm_process();
	struct gksm_relaxed relaxed;

	if (process && result == CUDA_SUCCESS) {
		gksm_relaxed_enter(process, &relaxed);
		gksm_foreign_pool_used(process, pool);
		gksm_relaxed_leave(&relaxed);
		tell_current(process);
	}
	return result;
}

#define STREAM_ORDERED(name)                                                  \
	GKSM_WRAP(name)(CUdeviceptr * address, size_t bytes, CUstream stream) \
	{                                                                     \
		CUresult result = GKSM_REAL(name)(address, bytes, stream);    \
                                                                              \
		while (gksm_memory_freed_for_stream(result, bytes, stream))   \
			result = GKSM_REAL(name)(address, bytes, stream);     \
		return pooled(result, NULL);                                  \
	}

#define FROM_POOL(name)                                                                          \
	GKSM_WRAP(name)(CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream) \
	{                                                                                        \
		CUresult result = GKSM_REAL(name)(address, bytes, pool, stream);                 \
                                                                                                 \
		while (gksm_memory_freed_for_stream(result, bytes, stream))                      \
			result = GKSM_REAL(name)(address, bytes, pool, stream);                  \
		return pooled(result, pool);                                                     \
	}

STREAM_ORDERED(cuMemAllocAsync)
STREAM_ORDERED(cuMemAllocAsync_ptsz)
FROM_POOL(cuMemAllocFromPoolAsync)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz)

GKSM_WRAP(cuMemPoolTrimTo)(CUmemoryPool pool, size_t bytes_to_keep)
{
	return pooled(GKSM_REAL(cuMemPoolTrimTo)(pool, bytes_to_keep), pool);
}

GKSM_WRAP(cuMemPoolDestroy)(CUmemoryPool pool)
{
	struct gksm *process = gksm_process();

	if (process) {
		gksm_foreign_pool_gone(process, pool);
		tell_current(process);
	}
	return GKSM_REAL(cuMemPoolDestroy)(pool);
}

GKSM_WRAP(cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t bytes,
		       const CUmemAllocationProp *properties, unsigned long long flags)
{
	CUresult result = GKSM_REAL(cuMemCreate)(handle, bytes, properties, flags);
	struct gksm *process = gksm_process();

	while (gksm_memory_freed_for_handle(result, bytes, properties))
		result = GKSM_REAL(cuMemCreate)(handle, bytes, properties, flags);
	if (process && result == CUDA_SUCCESS &&
	    properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		gksm_foreign_add(process, *handle, bytes, properties->location.id, NULL);
		tell(process, properties->location.id);
	}
	return result;
}

GKSM_WRAP(cuMemRelease)(CUmemGenericAllocationHandle handle)
{
	struct gksm *process = gksm_process();

	if (process)
		gksm_foreign_ends(process, handle);
	return GKSM_REAL(cuMemRelease)(handle);
}
