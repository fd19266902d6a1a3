/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation and release. Large linear memory comes from the arena; pitched, managed,
 * stream-ordered and host memory is the driver's, and its entry points are wrapped only
 * where they make other threads wait (outside.h) or may lack memory (scarce.c).
 */
#include "alloc.h"

#include "interpose/foreign.h"
#include "interpose/outside.h"
#include "interpose/scarce.h"
#include "streams.h"
#include "wrap.h"

static bool alloc(struct gksm *process, CUdeviceptr *address, size_t bytes, CUresult *result)
{
	struct gksm_relaxed relaxed;
	bool served;

	gksm_relaxed_enter(process, &relaxed);
	served = gksm_alloc(process, address, bytes, result);
	gksm_relaxed_leave(&relaxed);
	return served;
}

static bool release(struct gksm *process, CUdeviceptr address, CUresult *result)
{
	struct gksm_relaxed relaxed;
	bool served;

	gksm_relaxed_enter(process, &relaxed);
	served = gksm_free(process, address, result);
	gksm_relaxed_leave(&relaxed);
	return served;
}

GKSM_WRAP(cuMemAlloc_v2)(CUdeviceptr *address, size_t bytes)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (process && address && alloc(process, address, bytes, &result))
		return result;
	result = GKSM_REAL(cuMemAlloc_v2)(address, bytes);
	while (gksm_memory_freed(result, bytes))
		result = GKSM_REAL(cuMemAlloc_v2)(address, bytes);
	if (process && result == CUDA_SUCCESS)
		gksm_foreign_made(process, *address, bytes);
	return result;
}

GKSM_WRAP(cuMemFree_v2)(CUdeviceptr address)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (process && address) {
		if (release(process, address, &result))
			return result;
		gksm_wait_outside(process, -1);
		gksm_foreign_ends(process, address);
	}
	return GKSM_REAL(cuMemFree_v2)(address);
}

/* Addresses of 32 bits: never an arena's. */
GKSM_WRAP(cuMemFree)(CUdeviceptr_v1 address)
{
	struct gksm *process = gksm_process();

	if (process && address)
		gksm_wait_outside(process, -1);
	return GKSM_REAL(cuMemFree)(address);
}

GKSM_WRAP(cuMemFreeHost)(void *memory)
{
	struct gksm *process = gksm_process();

	if (process && memory)
		gksm_wait_outside(process, -1);
	return GKSM_REAL(cuMemFreeHost)(memory);
}

/* Not known to wait for the GPU in the driver, so it is not kept for long here: a kernel
 * that never ends is no reason to hang. */
GKSM_WRAP(cuMemHostUnregister)(void *memory)
{
	struct gksm *process = gksm_process();

	if (process && memory)
		gksm_wait_outside(process, GKSM_OUTSIDE_MS);
	return GKSM_REAL(cuMemHostUnregister)(memory);
}
