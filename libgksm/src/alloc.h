/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations in an arena: what cuMemAlloc and cuMemFree become, and what is
 * needed to answer questions about an address as the driver would for plain
 * cuMemAlloc memory.
 */
#ifndef GKSM_ALLOC_H
#define GKSM_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct gksm;

struct gksm_allocation_info {
	CUdeviceptr base;
	size_t bytes; /* as requested */
	CUcontext context;
	CUdevice device;
	uint64_t buffer_id; /* unique in the process, never reused */
	bool rdma;	    /* network cards may be let at it */
};

/*
 * cuMemAlloc for sizes of 2 MiB and more on the current context's device.
 * true: handled, *result and *address set. false: not for us (too small, sharing
 * off, no arena): the driver's own call serves it.
 */
bool gksm_alloc(struct gksm *process, CUdeviceptr *address, size_t bytes, CUresult *result);

/*
 * cuMemFree. Waits for the work of the context, as the driver does. true: the
 * address lies in an arena; *result is CUDA_SUCCESS, or CUDA_ERROR_INVALID_VALUE
 * for an address that is no allocation's base.
 */
bool gksm_free(struct gksm *process, CUdeviceptr address, CUresult *result);

/* The allocation that holds the address; false: none of ours does. */
bool gksm_allocation_find(struct gksm *process, CUdeviceptr address,
			  struct gksm_allocation_info *info);

/* true: the address lies in one of our arenas, allocated or not. */
bool gksm_is_ours(struct gksm *process, CUdeviceptr address);

/*
 * The context is about to be destroyed or reset (cuCtxDestroy, last
 * cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxReset): everything allocated in it
 * is freed and nothing of ours uses it afterwards. Call before the driver's call.
 */
void gksm_context_gone(struct gksm *process, CUcontext context);

#endif
