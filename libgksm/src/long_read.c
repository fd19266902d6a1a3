/* SPDX-License-Identifier: Apache-2.0 */
#include "long_read.h"

#include "access.h"
#include "alloc.h"
#include "gpu.h"
#include "streams.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

/*
 * Who waits for a copy engine does so for half the hold deadline. An eighth of it in
 * pages is read by then at half a gigabyte a second, a tenth of what the slowest way
 * out of a GPU was measured to do.
 */
static size_t most_at_once(const struct gksm_gpu *gpu)
{
	uint32_t pages = gpu->terms.hold_deadline_ms / 8;

	return (pages ? pages : 1) * PAGE;
}

/* Any device memory: its copies need SMs, and their faults can be held. */
static bool on_a_device(struct gksm *process, CUdeviceptr address)
{
	unsigned type = CU_MEMORYTYPE_HOST;

	return process->driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
						     address) == CUDA_SUCCESS &&
	       type != CU_MEMORYTYPE_HOST;
}

/* What leaves the allocation is for the driver to refuse, whole. */
static bool in_one_allocation(struct gksm *process, CUdeviceptr source, size_t bytes)
{
	struct gksm_allocation_info info;

	return gksm_allocation_find(process, source, &info) &&
	       bytes <= info.base + info.bytes - source;
}

/* For the part before. A stream that stands still for something else is not waited for
 * again: the pages of further parts are detached before they are read (access.c). */
static void wait_for_last(struct gksm_long_read *read, struct gksm *process,
			  const struct gksm_gpu *gpu, CUstream stream)
{
	struct gksm_relaxed relaxed;

	if (!read->done || read->stuck)
		return;
	gksm_relaxed_enter(process, &relaxed);
	read->stuck = gksm_wait_order(process, stream, (int)gpu->terms.hold_deadline_ms) != 0;
	gksm_relaxed_leave(&relaxed);
}

size_t gksm_read_part(struct gksm_long_read *read, struct gksm *process, CUdeviceptr destination,
		      CUdeviceptr source, size_t bytes, CUstream stream)
{
	const struct gksm_span span = {.address = source, .bytes = bytes};
	struct gksm_gpu *gpu = gksm_gpu_of(process, source, NULL);
	size_t most;

	if (!gpu || atomic_load(&gpu->guard) != GKSM_GUARD_FAULT)
		return bytes;
	most = most_at_once(gpu);
	if (bytes <= most || !gksm_span_read_only(process, &span) ||
	    !in_one_allocation(process, source, bytes) || on_a_device(process, destination) ||
	    gksm_stream_capturing(process, stream))
		return bytes;
	wait_for_last(read, process, gpu, stream);
	return most - source % PAGE;
}
