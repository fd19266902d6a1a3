/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that stay private: graph nodes name them, or they left the process. */
#include "access.h"
#include "gpu.h"

/* change: added to each page's count; -1 counts down. */
static void count_pins(struct gksm *process, const struct gksm_span *spans, size_t count,
		       uint32_t change)
{
	struct gksm_page_range range;
	uint64_t page;
	size_t i;

	for (i = 0; i < count; i++)
		if (gksm_range_of(process, &spans[i], &range))
			for (page = range.first; page < range.end; page++)
				atomic_fetch_add(&range.gpu->pages[page].pins, change);
}

CUresult gksm_pin(struct gksm *process, const struct gksm_span *spans, size_t count)
{
	CUresult result = CUDA_SUCCESS;
	struct gksm_page_range range;
	struct gksm_access access;
	size_t i;

	/* Counted first: a load that comes in between then leaves the pages alone. */
	count_pins(process, spans, count, 1);
	for (i = 0; !result && i < count; i++) {
		struct gksm_span write = spans[i];

		if (!gksm_range_of(process, &write, &range))
			continue;
		write.flags = GKSM_SPAN_WRITE;
		result = gksm_access_begin(process, &write, 1, &access);
		if (result)
			break;
		gksm_access_drop(&access);
	}
	if (result)
		gksm_unpin(process, spans, count);
	return result;
}

void gksm_unpin(struct gksm *process, const struct gksm_span *spans, size_t count)
{
	count_pins(process, spans, count, (uint32_t)-1);
}
