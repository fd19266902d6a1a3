/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allocation of the driver's own needs may be taken by models that nobody runs:
 * then gksmd is asked to give those up.
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

bool gksm_memory_freed_for_stream(CUresult result, size_t bytes, CUstream stream)
{
	struct gksm *process;

	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return false;
	process = gksm_process();
	return process && !gksm_stream_capturing(process, stream) &&
	       gksm_memory_freed(result, bytes);
}

bool gksm_memory_freed_for_handle(CUresult result, size_t bytes, const CUmemAllocationProp *prop)
{
	struct gksm *process;

	if (result != CUDA_ERROR_OUT_OF_MEMORY ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return false;
	process = gksm_process();
	return process && process->link && reclaim(process, prop->location.id, bytes);
}
