/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load path:
 *
 *   load.c          splits a copy into full pages, pieces of pages, and what the driver
 *                   copies as before
 *   load_batch.c    a batch of full pages: snapshot and hash, look-up, who waits for whom
 *   load_attach.c   what becomes of each page: a hit is compared and attached,
 *   load_publish.c  a miss is filled and published,
 *   load_private.c  and what cannot be shared becomes private
 *   load_commit.c   the one place where a loaded page's mapping changes
 *
 * One load at a time runs in a context (engine->load_lock). A batch is at most
 * GKSM_LOAD_BATCH pages, each with a pinned staging page that is read once from the
 * source and used for hash, host copy, comparison and transfer alike.
 */
#ifndef GKSM_LOAD_H
#define GKSM_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "engine.h"
#include "gksm/protocol.h"
#include "link.h"
#include "page.h"

struct gksm;
struct gksm_gpu;

struct gksm_load_page {
	uint64_t page;
	const void *source; /* NULL: the staging page is filled already */
	void *staging;
	struct gksm_hash128 hash;
	struct gksm_lookup_reply reply;
	bool settled;	       /* nothing is left to do for it */
	uint32_t shared_times; /* of the page, once it was committed as SHARED */
};

struct gksm_load {
	struct gksm *process;
	struct gksm_gpu *gpu;
	struct gksm_engine *engine;
	enum gksm_kind kind;
	size_t count;
	struct gksm_load_page pages[GKSM_LOAD_BATCH];
	uint64_t wait_until_ns; /* for other loaders, over the whole load */
	bool sealing;		/* the bytes come from the pages themselves (seal_merge.c) */
	bool gate_closed;	/* by this load: mapped pages are being replaced */
	CUresult result;	/* the first error */
};

/* Adds a full page; source as above. The batch must not be full. Returns the staging
 * page that was set aside for it. */
void *gksm_load_add(struct gksm_load *load, uint64_t page, const void *source);

/* Brings every page of the batch to its end and empties it. */
void gksm_load_flush(struct gksm_load *load);

/* Each settles the pages of the batch that `chosen` names. */
void gksm_load_attach(struct gksm_load *load, struct gksm_load_page **chosen, size_t count);
void gksm_load_publish(struct gksm_load *load, struct gksm_load_page **chosen, size_t count);
void gksm_load_abandon(struct gksm_load *load, struct gksm_load_page **chosen, size_t count,
		       enum gksm_unshared why);

/* Opens the gate again if this load closed it. */
void gksm_load_gate_open(struct gksm_load *load);

#endif
