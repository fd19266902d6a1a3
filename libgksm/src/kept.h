/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared pages that a call replaces byte by byte need no copy of their old bytes, if the
 * driver takes the call. It may refuse it, for a stream that is none or whatever else,
 * and then the bytes must be there. So the old memory is held until the call is back.
 */
#ifndef GKSM_KEPT_H
#define GKSM_KEPT_H

#include <stdint.h>

#include "cuda_abi.h"

struct gksm_gpu;

struct gksm_kept {
	struct gksm_kept *next;
	struct gksm_gpu *gpu;
	uint64_t page;
	uint64_t page_id;		  /* gksmd hears that the page was left at the end */
	CUmemGenericAllocationHandle old; /* ours to release */
	CUmemGenericAllocationHandle now; /* what has taken its place */
};

/*
 * Takes hold of the memory of a page that the caller has taken out of SHARED, before it is
 * unmapped. The caller sets `now` and chains it. NULL: not possible; copy the bytes.
 */
struct gksm_kept *gksm_kept_new(struct gksm_gpu *gpu, uint64_t page);

/* It was not replaced after all: the page has its handle back. */
void gksm_kept_cancel(struct gksm_kept *kept);

/* The driver took the call: the old bytes are gone, for good. */
void gksm_kept_drop(struct gksm_kept *list);

/* The driver refused the call: the bytes are put back, into memory of the page's own. A
 * page that somebody else has changed or freed meanwhile is left alone. */
void gksm_kept_restore(struct gksm_kept *list);

#endif
