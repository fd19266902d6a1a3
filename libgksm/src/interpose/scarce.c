/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pitched, managed, stream-ordered memory and the application's own handles are the
 * driver's, and nothing is done to them. But what they need may be taken by models that
 * nobody runs: then gksmd is asked to give those up.
 */
#include "interpose/scarce.h"

#include "gpu.h"
#include "reclaim.h"
#include "streams.h"
#include "wrap.h"

static bool reclaim(struct gksm *process, CUdevice device, size_t bytes)
{
	struct gksm_relaxed relaxed;
	struct gksm_gpu *gpu;
	bool freed;

	gksm_relaxed_enter(process, &relaxed);
	/* A program that never allocated from an arena is not known to gksmd yet. */
	gpu = gksm_gpu_get(process, device);
	freed = gpu && gksm_reclaim(gpu, bytes);
	gksm_relaxed_leave(&relaxed);
	return freed;
}

bool gksm_memory_freed(CUresult result, size_t bytes)
{
	struct gksm *process;
	CUdevice device;

	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return false;
	process = gksm_process();
	return process && process->link && !process->driver.cuCtxGetDevice(&device) &&
	       reclaim(process, device, bytes);
}

/* A capture must not wait for gksmd. */
static bool freed_for_stream(CUresult result, size_t bytes, CUstream stream)
{
	struct gksm *process;

	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return false;
	process = gksm_process();
	return process && !gksm_stream_capturing(process, stream) &&
	       gksm_memory_freed(result, bytes);
}

static bool freed_for_handle(CUresult result, size_t bytes, const CUmemAllocationProp *prop)
{
	struct gksm *process;

	if (result != CUDA_ERROR_OUT_OF_MEMORY ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return false;
	process = gksm_process();
	return process && process->link && reclaim(process, prop->location.id, bytes);
}

GKSM_WRAP(cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t bytes,
		       const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result = GKSM_REAL(cuMemCreate)(handle, bytes, prop, flags);

	while (freed_for_handle(result, bytes, prop))
		result = GKSM_REAL(cuMemCreate)(handle, bytes, prop, flags);
	return result;
}

GKSM_WRAP(cuMemAllocPitch_v2)(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			      unsigned element)
{
	CUresult result = GKSM_REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);

	/* The pitch is the driver's to choose: no more than half a KiB on top. */
	while (gksm_memory_freed(result, (width + 512) * height))
		result = GKSM_REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
	return result;
}

GKSM_WRAP(cuMemAllocManaged)(CUdeviceptr *address, size_t bytes, unsigned flags)
{
	CUresult result = GKSM_REAL(cuMemAllocManaged)(address, bytes, flags);

	while (gksm_memory_freed(result, bytes))
		result = GKSM_REAL(cuMemAllocManaged)(address, bytes, flags);
	return result;
}

#define STREAM_ORDERED(name)                                                  \
	GKSM_WRAP(name)(CUdeviceptr * address, size_t bytes, CUstream stream) \
	{                                                                     \
		CUresult result = GKSM_REAL(name)(address, bytes, stream);    \
                                                                              \
		while (freed_for_stream(result, bytes, stream))               \
			result = GKSM_REAL(name)(address, bytes, stream);     \
		return result;                                                \
	}

#define FROM_POOL(name)                                                                          \
	GKSM_WRAP(name)(CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream) \
	{                                                                                        \
		CUresult result = GKSM_REAL(name)(address, bytes, pool, stream);                 \
                                                                                                 \
		while (freed_for_stream(result, bytes, stream))                                  \
			result = GKSM_REAL(name)(address, bytes, pool, stream);                  \
		return result;                                                                   \
	}

STREAM_ORDERED(cuMemAllocAsync)
STREAM_ORDERED(cuMemAllocAsync_ptsz)
FROM_POOL(cuMemAllocFromPoolAsync)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz)
