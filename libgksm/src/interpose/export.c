/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points that hand memory out of the process: to a NIC (dma-buf), to other GPUs
 * (multicast, logical endpoints). Whoever is there
 * keeps the physical pages of that moment, so those must never change: the pages are
 * un-shared and pinned.
 */
#include "interpose/export.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "access.h"
#include "alloc.h"
#include "interpose/call.h"
#include "report.h"
#include "wrap.h"

static struct gksm_span span_of(CUdeviceptr address, size_t bytes)
{
	return (struct gksm_span){.address = address, .bytes = bytes, .flags = GKSM_SPAN_WRITE};
}

CUresult gksm_export_pin(struct gksm *process, CUdeviceptr address, size_t bytes)
{
	struct gksm_span span = span_of(address, bytes);

	return gksm_is_ours(process, address) ? gksm_pin_relaxed(process, &span, 1) : CUDA_SUCCESS;
}

void gksm_export_unpin(struct gksm *process, CUdeviceptr address, size_t bytes)
{
	struct gksm_span span = span_of(address, bytes);

	if (gksm_is_ours(process, address))
		gksm_unpin(process, &span, 1);
}

/* Allocations pinned whole, by buffer id: those are never used again. */
struct gksm_exports {
	struct gksm_mutex lock;
	size_t count;
	size_t capacity;
	uint64_t *buffer_ids;
};

static struct gksm_exports *exports_of(struct gksm *process)
{
	struct gksm_exports *exports = __atomic_load_n(&process->exports, __ATOMIC_ACQUIRE);
	struct gksm_exports *fresh;

	if (exports)
		return exports;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (__atomic_compare_exchange_n(&process->exports, &exports, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	free(fresh);
	return exports;
}

static bool exported(const struct gksm_exports *exports, uint64_t buffer_id)
{
	for (size_t i = 0; i < exports->count; i++)
		if (exports->buffer_ids[i] == buffer_id)
			return true;
	return false;
}

/* Room for one more id. false: no memory. */
static bool make_room(struct gksm_exports *exports)
{
	size_t capacity = exports->capacity ? exports->capacity * 2 : 16;
	uint64_t *ids;

	if (exports->count < exports->capacity)
		return true;
	ids = realloc(exports->buffer_ids, capacity * sizeof(*ids));
	if (!ids)
		return false;
	exports->buffer_ids = ids;
	exports->capacity = capacity;
	return true;
}

CUresult gksm_export_allocation(struct gksm *process, const struct gksm_allocation_info *info)
{
	struct gksm_exports *exports = exports_of(process);
	CUresult result = CUDA_SUCCESS;

	if (!exports)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Held over the pinning: whoever asks second must find the pages pinned. */
	gksm_mutex_lock(&exports->lock);
	if (!exported(exports, info->buffer_id)) {
		result = make_room(exports) ? gksm_export_pin(process, info->base, info->bytes)
					    : CUDA_ERROR_OUT_OF_MEMORY;
		if (result == CUDA_SUCCESS)
			exports->buffer_ids[exports->count++] = info->buffer_id;
	}
	gksm_mutex_unlock(&exports->lock);
	return result;
}

/* The driver's call with the range pinned before it, and for good if it succeeds. */
#define EXPORT_CALL(address, bytes, real_call)                               \
	({                                                                   \
		struct gksm *process_ = gksm_process();                      \
		CUresult result_ = CUDA_SUCCESS;                             \
                                                                             \
		if (process_)                                                \
			result_ = gksm_export_pin(process_, address, bytes); \
		if (result_ == CUDA_SUCCESS) {                               \
			result_ = (real_call);                               \
			if (process_ && result_ != CUDA_SUCCESS)             \
				gksm_export_unpin(process_, address, bytes); \
		}                                                            \
		result_;                                                     \
	})

GKSM_WRAP(cuMemGetHandleForAddressRange)(void *handle, CUdeviceptr address, size_t bytes,
					 CUmemRangeHandleType type, unsigned long long flags)
{
	return EXPORT_CALL(
		address, bytes,
		GKSM_REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags));
}

GKSM_WRAP(cuMulticastBindAddr)(CUmemGenericAllocationHandle multicast, size_t offset,
			       CUdeviceptr address, size_t bytes, unsigned long long flags)
{
	return EXPORT_CALL(
		address, bytes,
		GKSM_REAL(cuMulticastBindAddr)(multicast, offset, address, bytes, flags));
}

GKSM_WRAP(cuMulticastBindAddr_v2)(CUmemGenericAllocationHandle multicast, CUdevice device,
				  size_t offset, CUdeviceptr address, size_t bytes,
				  unsigned long long flags)
{
	return EXPORT_CALL(address, bytes,
			   GKSM_REAL(cuMulticastBindAddr_v2)(multicast, device, offset, address,
							     bytes, flags));
}

GKSM_WRAP(cuLogicalEndpointBindAddr)(CUlogicalEndpointId endpoint, CUdevice device,
				     cuuint64_t offset, void *address, cuuint64_t bytes,
				     unsigned long long flags)
{
	return EXPORT_CALL((CUdeviceptr)(uintptr_t)address, bytes,
			   GKSM_REAL(cuLogicalEndpointBindAddr)(endpoint, device, offset, address,
								bytes, flags));
}
