/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zeros over memory that holds nothing yet. New memory is zeros already, so a page that
 * was only ever zeroed needs none: KV pools are zeroed long before they are used.
 *
 * What was enqueued before may still write to the page, and back it, after we have
 * looked: as in the load path, it is waited for first, bounded.
 */
#include "access.h"

#include "engine.h"
#include "gpu.h"
#include "streams.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

static CUresult set(struct gksm *process, CUdeviceptr address, size_t bytes, CUstream stream)
{
	struct gksm_span span = {
		.address = address,
		.bytes = bytes,
		.flags = GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE,
	};
	struct gksm_access access;
	CUresult result = gksm_access_begin(process, &span, 1, &access);

	if (result)
		return result;
	result = process->driver.cuMemsetD8Async(address, 0, bytes, stream);
	gksm_access_end(&access, stream);
	return result;
}

static bool any_unbacked(const struct gksm_gpu *gpu, uint64_t offset, size_t bytes)
{
	uint64_t page;

	for (page = offset / PAGE; page <= (offset + bytes - 1) / PAGE; page++)
		if (gksm_page_state(gpu, page) == GKSM_PAGE_UNBACKED)
			return true;
	return false;
}

/* Inside one allocation: anything else is the driver's to refuse. */
static bool within_allocation(const struct gksm_gpu *gpu, uint64_t offset, size_t bytes)
{
	uint32_t first = gpu->pages[offset / PAGE].allocation;

	return first && first == gpu->pages[(offset + bytes - 1) / PAGE].allocation;
}

static struct gksm_gpu *prepare(struct gksm *process, CUdeviceptr destination, size_t bytes,
				CUstream stream)
{
	const struct gksm_engine *engine;
	CUcontext current = NULL;
	struct gksm_gpu *gpu;
	uint64_t page;

	gpu = gksm_gpu_of(process, destination, &page);
	if (!gpu || !bytes || bytes > gpu->arena_base + gpu->arena_pages * PAGE - destination ||
	    !within_allocation(gpu, destination - gpu->arena_base, bytes) ||
	    !any_unbacked(gpu, destination - gpu->arena_base, bytes))
		return NULL;
	engine = atomic_load(&gpu->pages[page].engine);
	/* From another context the stream would be another one too. */
	if (!engine || process->driver.cuCtxGetCurrent(&current) || current != engine->context ||
	    gksm_wait_order(process, stream, (int)gpu->terms.order_wait_ms))
		return NULL;
	return gpu;
}

bool gksm_zero(struct gksm *process, CUdeviceptr destination, size_t bytes, CUstream stream,
	       CUresult *result)
{
	struct gksm_gpu *gpu = prepare(process, destination, bytes, stream);
	CUdeviceptr plain = destination;
	CUdeviceptr at = destination;
	CUdeviceptr end = destination + bytes;

	if (!gpu)
		return false;
	*result = CUDA_SUCCESS;
	while (at < end && !*result) {
		uint64_t page = (at - gpu->arena_base) / PAGE;
		CUdeviceptr next = gksm_page_address(gpu, page + 1);

		if (gksm_page_state(gpu, page) == GKSM_PAGE_UNBACKED) {
			if (plain < at)
				*result = set(process, plain, at - plain, stream);
			plain = next;
		}
		at = next;
	}
	if (plain < end && !*result)
		*result = set(process, plain, end - plain, stream);
	return true;
}
