/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy-busy marks. A copy engine that meets a hole kills the context, and its faults
 * cannot be held, so a page that one reads, or writes, must not be remapped or
 * protected. The copy counts itself in on the page before it looks at the state again,
 * and the remapper takes the page before it looks at the count: one of the two always
 * sees the other (both sides are sequentially consistent).
 *
 * The scanner's own reads are no such marks, since nobody enqueues work behind them:
 * they count in `looks`, which whoever takes the memory away waits for.
 */
#ifndef GKSM_MARKS_H
#define GKSM_MARKS_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct gksm_gpu;

struct gksm_mark {
	struct gksm_mark *next; /* of the same access, then of the gpu's list */
	struct gksm_gpu *gpu;
	CUevent event;
	size_t count;
	size_t room;
	uint64_t *pages;
};

/* Counts the caller in on the page, in *mark (made at the first call; one per GPU,
 * chained). 0 or -ENOMEM. */
int gksm_mark_add(struct gksm_mark **mark, struct gksm_gpu *gpu, uint64_t page);

/* The copies are enqueued in `stream`: the marks go when they are done. */
void gksm_mark_enqueued(struct gksm_mark *mark, CUstream stream);

/* Nothing was enqueued: the marks go now. */
void gksm_mark_drop(struct gksm_mark *mark);

/* Counts out what has been copied. Before a context goes: its events go with it. */
void gksm_marks_reap(struct gksm_gpu *gpu);

/* Waits until no copy engine is at the page: 0, or -ETIMEDOUT after half the hold
 * deadline. Usable by the COW thread. */
int gksm_marks_wait(struct gksm_gpu *gpu, uint64_t page);

/* Waits until the scanner does not look at the page, which the caller has taken. A look
 * is one copy to the host, which no kernel and no held fault can stop. */
void gksm_looks_wait(struct gksm_gpu *gpu, uint64_t page);

#endif
