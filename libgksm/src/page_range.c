/* SPDX-License-Identifier: Apache-2.0 */
#include "page_range.h"

#include "engine.h"
#include "gpu.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

bool gksm_range_of(struct gksm *process, const struct gksm_span *span,
		   struct gksm_page_range *range)
{
	uint64_t last;

	range->gpu = gksm_gpu_of(process, span->address, &range->first);
	if (!range->gpu || span->bytes == 0)
		return false;
	last = (span->address + span->bytes - 1 - range->gpu->arena_base) / PAGE;
	range->end = last < range->gpu->arena_pages ? last + 1 : range->gpu->arena_pages;
	return true;
}

bool gksm_page_read_only(enum gksm_page_state state)
{
	return state == GKSM_PAGE_SHARED || state == GKSM_PAGE_MERGING;
}

bool gksm_range_read_only(const struct gksm_page_range *range)
{
	uint64_t page;

	for (page = range->first; page < range->end; page++)
		if (gksm_page_read_only(gksm_page_state(range->gpu, page)))
			return true;
	return false;
}

CUcontext gksm_range_other_side(const struct gksm_page_range *range, CUcontext context)
{
	const struct gksm_engine *engine = atomic_load(&range->gpu->pages[range->first].engine);

	return engine && engine->context != context ? engine->context : NULL;
}

bool gksm_spans_ours(struct gksm *process, const struct gksm_span *spans, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++)
		if (gksm_gpu_of(process, spans[i].address, NULL))
			return true;
	return false;
}

bool gksm_span_read_only(struct gksm *process, const struct gksm_span *span)
{
	struct gksm_page_range range;

	return gksm_range_of(process, span, &range) && gksm_range_read_only(&range);
}
