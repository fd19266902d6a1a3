/* SPDX-License-Identifier: Apache-2.0 */
/* What the three ends of a loaded page have in common. Internal to the load path. */
#ifndef GKSM_LOAD_COMMIT_H
#define GKSM_LOAD_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "load.h"

/* What a page gets mapped instead of what it has. */
struct gksm_replacement {
	CUmemGenericAllocationHandle handle;
	bool shared; /* read-only */
	bool keep;   /* the handle stays ours: it can be exported again */
	uint64_t page_id;
	enum gksm_unshared why; /* not shared */
};

/* Notes the first error of the load. */
void gksm_load_fail(struct gksm_load *load, CUresult result);

/* What the program is told when a page cannot be filled: a dead context's own error, or
 * that there is no memory. */
CUresult gksm_load_why_not(const struct gksm_load *load);

/* Closes the gate and looks whether a mapped page may be replaced: no copy or set is on
 * its way to it. Kernels may run: their faults are held. */
bool gksm_load_quiet(struct gksm_load *load);

/*
 * Maps the replacement at the page's address and puts the page where it belongs. 0, or
 * -1: the page was stolen, may not be replaced now, or cannot be mapped. On success the
 * handle is taken over.
 */
int gksm_load_commit(struct gksm_load *load, struct gksm_load_page *entry,
		     const struct gksm_replacement *with);

/* New memory with the snapshots' bytes, mapped nowhere. handles[i] is 0 where it could
 * not be had or filled. Of load_private.c. */
void gksm_load_fill(struct gksm_load *load, struct gksm_load_page **chosen, size_t count,
		    CUmemGenericAllocationHandle *handles);

#endif
