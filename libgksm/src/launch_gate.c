/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel launches under the guards that cannot hold a fault. A launch keeps the gate
 * from closing while it is enqueued, and memory that it may touch is backed first.
 */
#include <string.h>

#include "access.h"
#include "gpu.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

static bool named(const struct gksm_allocation *allocation, CUdeviceptr base, const uint64_t *words,
		  size_t count)
{
	size_t i;

	for (i = 0; i < count; i++)
		if (words[i] - base < allocation->pages * PAGE)
			return true;
	return false;
}

static CUresult back(struct gksm *process, CUdeviceptr base, uint64_t pages)
{
	struct gksm_span span = {.address = base, .bytes = pages * PAGE, .flags = GKSM_SPAN_LAUNCH};
	struct gksm_access access;
	CUresult result = gksm_access_begin(process, &span, 1, &access);

	if (!result)
		gksm_access_drop(&access);
	return result;
}

static CUresult back_gpu(struct gksm *process, struct gksm_gpu *gpu, const uint64_t *words,
			 size_t count)
{
	bool all = !words || atomic_load(&gpu->guard) == GKSM_GUARD_SEAL;
	CUresult result = CUDA_SUCCESS;
	uint32_t slot = 0;

	while (!result) {
		struct gksm_allocation allocation = {0};

		gksm_mutex_lock(&gpu->range_lock);
		while (slot < gpu->allocation_slots &&
		       (!gpu->allocations[slot].pages || gpu->allocations[slot].dying))
			slot++;
		if (slot < gpu->allocation_slots)
			allocation = gpu->allocations[slot++];
		gksm_mutex_unlock(&gpu->range_lock);
		if (!allocation.pages)
			break;
		if (all ||
		    named(&allocation, gksm_page_address(gpu, allocation.first_page), words, count))
			result = back(process, gksm_page_address(gpu, allocation.first_page),
				      allocation.pages);
	}
	return result;
}

/* A page that is loading counts: it may hold what an earlier copy brought. */
static bool has_unbacked(const struct gksm_gpu *gpu)
{
	const _Atomic uint64_t *in_state = gpu->counters.in_state;

	return atomic_load(&in_state[GKSM_PAGE_UNBACKED]) ||
	       atomic_load(&in_state[GKSM_PAGE_FILLING]) ||
	       atomic_load(&in_state[GKSM_PAGE_LOADING]) || atomic_load(&in_state[GKSM_PAGE_BUSY]);
}

CUresult gksm_launch_begin(struct gksm *process, const uint64_t *words, size_t word_count,
			   struct gksm_access *access)
{
	CUresult result = CUDA_SUCCESS;
	int i;

	memset(access, 0, sizeof(*access));
	if (!atomic_load_explicit(&process->gated_gpus, memory_order_relaxed))
		return CUDA_SUCCESS;
	for (i = 0; !result && i < GKSM_GPUS_MAX; i++) {
		struct gksm_gpu *gpu =
			atomic_load_explicit(&process->gpus[i], memory_order_acquire);

		if (gpu && has_unbacked(gpu) && atomic_load(&gpu->guard) != GKSM_GUARD_FAULT)
			result = back_gpu(process, gpu, words, word_count);
	}
	if (result)
		return result;
	gksm_gate_enter(&process->gate);
	access->process = process;
	return CUDA_SUCCESS;
}

void gksm_launch_end(struct gksm_access *access)
{
	if (access->process)
		gksm_gate_leave(&access->process->gate);
}
