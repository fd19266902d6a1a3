/* SPDX-License-Identifier: Apache-2.0 */
/* Free ranges of an arena: first fit, merged when given back. Not locked. */
#ifndef GKSM_EXTENTS_H
#define GKSM_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

struct gksm_extent {
	uint64_t first;
	uint64_t count;
};

struct gksm_extents {
	struct gksm_extent *list; /* sorted by first, no two adjacent */
	size_t used;
	size_t room;
	size_t live; /* takes not given back */
};

/* The whole of [0, count) is free. 0 or -ENOMEM. */
int gksm_extents_init(struct gksm_extents *extents, uint64_t count);

/* *first becomes the start of `count` pages. 0, -ENOSPC, or -ENOMEM. */
int gksm_extents_take(struct gksm_extents *extents, uint64_t count, uint64_t *first);

/* Gives pages back. Cannot fail: take reserves the room it may need. */
void gksm_extents_give(struct gksm_extents *extents, uint64_t first, uint64_t count);

#endif
