/* SPDX-License-Identifier: Apache-2.0 */
/* Giving a page memory of its own. */
#ifndef GKSM_PRIVATIZE_H
#define GKSM_PRIVATIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "gksm/protocol.h"
#include "page.h"

struct gksm_gpu;
struct gksm_kept;
struct gksm_mover;

/* A page of memory to use, prepared or not. */
struct gksm_backing {
	CUmemGenericAllocationHandle handle; /* 0: create one */
	CUdeviceptr scratch;		     /* where it is mapped read-write already; 0: nowhere */
};

struct gksm_privatize {
	struct gksm_mover *mover;    /* the caller's own; its scratch slot 0 may be used */
	struct gksm_backing backing; /* taken over on success */
	enum gksm_unshared why;
	enum gksm_detach_reason reason; /* told to gksmd when the page was shared */
	/* Every byte of a SHARED page is about to be replaced and nobody reads: copy nothing.
	 * keep: where to chain the old memory, until that is done; NULL: let it go. */
	bool discard;
	struct gksm_kept **keep;
};

/*
 * The caller owns the page (BUSY, taken from `from`: UNBACKED, FILLING, LOADING, MERGING
 * or SHARED). 0: the page is PRIVATE with the bytes it had (one that was MERGING in the
 * memory it had: no backing is used). A negative errno: it is back
 * in `from`, unchanged (-ENOMEM: no memory; -EIO: the context is dead; -ETIMEDOUT: a
 * copy engine kept reading it). `scratch` of a used backing is still mapped: the
 * caller unmaps it when nobody waits any more.
 */
int gksm_privatize(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		   const struct gksm_privatize *how);

/* The same for a call of the application, with the mover that all such calls on the
 * page's context take turns with: `how` needs none. */
int gksm_make_private(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		      struct gksm_privatize *how);

#endif
