/* SPDX-License-Identifier: Apache-2.0 */
/* Stretches of device memory that a call reads or writes, and the pages of ours in them. */
#ifndef GKSM_PAGE_RANGE_H
#define GKSM_PAGE_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "page.h"

struct gksm;
struct gksm_gpu;

#define GKSM_SPAN_WRITE 1u	/* the call writes here; else it reads */
#define GKSM_SPAN_EVERY_BYTE 2u /* it writes every byte of the span */
#define GKSM_SPAN_LAUNCH 4u	/* a kernel may touch it: back it, no more */

struct gksm_span {
	CUdeviceptr address;
	size_t bytes;
	unsigned flags; /* GKSM_SPAN_* */
};

/* Pages first..end-1 of one arena. */
struct gksm_page_range {
	struct gksm_gpu *gpu;
	uint64_t first;
	uint64_t end;
};

/* The part of a span that lies in the arena where it starts; false: it starts in none. */
bool gksm_range_of(struct gksm *process, const struct gksm_span *span,
		   struct gksm_page_range *range);

/* true: some page of the range is mapped read-only now. */
bool gksm_range_read_only(const struct gksm_page_range *range);
bool gksm_page_read_only(enum gksm_page_state state);

/* The context whose memory the range is, if it is another than `context`, which copies;
 * NULL: it is the same. */
CUcontext gksm_range_other_side(const struct gksm_page_range *range, CUcontext context);

/* true: some page of the spans is ours (cheap: range checks only). */
bool gksm_spans_ours(struct gksm *process, const struct gksm_span *spans, size_t count);

/* true: some page of the span is mapped read-only now. */
bool gksm_span_read_only(struct gksm *process, const struct gksm_span *span);

#endif
