/* SPDX-License-Identifier: Apache-2.0 */
#include "reclaim.h"

#include "gpu.h"
#include "link.h"
#include "page_range.h"

#define PATIENCE_MS 1000

/* What the driver has no more of, as far as it can be asked: models that could stay are
 * not to go for what is free. */
static uint64_t lacking(const struct gksm_gpu *gpu, uint64_t bytes)
{
	const struct gksm_driver *driver = &gpu->process->driver;
	size_t free_bytes;
	size_t total_bytes;
	CUdevice device;

	if (driver->cuCtxGetDevice(&device) || device != gpu->device ||
	    driver->cuMemGetInfo_v2(&free_bytes, &total_bytes) || free_bytes >= bytes)
		return bytes;
	return bytes - free_bytes;
}

bool gksm_reclaim(struct gksm_gpu *gpu, uint64_t bytes)
{
	uint64_t freed = 0;

	return !gksm_link_reclaim(gpu->process->link, (unsigned)gpu->device, lacking(gpu, bytes),
				  PATIENCE_MS, &freed) &&
	       freed > 0;
}

/* What the pages need that have no memory of their own yet. */
static uint64_t missing(const struct gksm_page_range *range)
{
	uint64_t count = 0;
	uint64_t page;

	for (page = range->first; page < range->end; page++)
		count += gksm_page_state(range->gpu, page) != GKSM_PAGE_PRIVATE;
	return count * GKSM_PAGE_SIZE;
}

bool gksm_reclaim_spans(struct gksm *process, const struct gksm_span *spans, size_t count)
{
	bool freed = false;
	size_t i;

	for (i = 0; i < count; i++) {
		struct gksm_page_range range;
		uint64_t bytes = gksm_range_of(process, &spans[i], &range) ? missing(&range) : 0;

		if (bytes && gksm_reclaim(range.gpu, bytes))
			freed = true;
	}
	return freed;
}
