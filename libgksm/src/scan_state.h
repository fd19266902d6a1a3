/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the scanner share. All of it belongs to the scanner's thread. */
#ifndef GKSM_SCAN_STATE_H
#define GKSM_SCAN_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "engine.h"
#include "gksm/protocol.h"
#include "link.h"

struct gksm_gpu;

/* What was seen of a page. All zero: nothing. */
struct gksm_scan_page {
	struct gksm_hash128 hash;
	uint8_t equal; /* looks in a row with this hash */
	bool copied;   /* its bytes came from another page: two will do */
	bool zero;     /* every byte was 0 */
};

/* A stable page that nobody else is known to have. */
struct gksm_scan_candidate {
	uint64_t page;
	struct gksm_hash128 hash;
	enum gksm_kind kind;
};

struct gksm_scan {
	struct gksm_gpu *gpu;
	struct gksm_scan_terms terms; /* as they are for this pass */
	struct gksm_scan_page *pages; /* one for each page of the arena */
	struct gksm_scan_candidate *candidates;
	size_t candidate_count;
	size_t candidate_room;
	_Atomic uint32_t offer_again;
	_Atomic uint32_t hurry;
	_Atomic uint32_t passed;
	_Atomic uint32_t pass; /* counts all passes, from 1 */
	uint32_t woken;	       /* scan_wake as it was when the orders were looked at */
	bool unhurried;	       /* nobody waits for this pass: it keeps to max_percent */
};

/* Looks at every page once; what is stable is in `candidates` then. */
void gksm_scan_pass(struct gksm_scan *scan);

/* Offers the candidates and merges what it can. Those that are no candidates any more
 * are gone from the list afterwards. Returns how many pages were merged. */
size_t gksm_scan_offer(struct gksm_scan *scan);

/* Sleeps as much as the time since started_ns asks for under max_percent. */
void gksm_scan_yield(struct gksm_scan *scan, uint64_t started_ns);

/* The engine of a page, locked and entered, or NULL. */
struct gksm_engine *gksm_scan_enter(struct gksm_scan *scan, uint64_t page);
void gksm_scan_leave(struct gksm_engine *engine);

/* scan_merge.c. Each is for a page whose engine is entered. */

/* Step 1. false: it is not to be merged now. */
bool gksm_merge_protect(struct gksm_scan *scan, uint64_t page);

/* Back from step 1. */
void gksm_merge_abandon(struct gksm_scan *scan, uint64_t page);

/* Steps 2 to 4 for a protected page that becomes the published one: *fd (the caller's)
 * is its export. The page is SHARED without a name then. false: it is not; the caller
 * abandons it. */
bool gksm_merge_publish(struct gksm_scan *scan, const struct gksm_scan_candidate *candidate,
			int *fd);

enum gksm_merge_result { GKSM_MERGE_DONE, GKSM_MERGE_DIFFERS, GKSM_MERGE_DROPPED };

/* Steps 2 to 4 for a protected page and the published one behind fd, which stays the
 * caller's. gksmd is told of a mapping that came, and of one that left at once. */
enum gksm_merge_result gksm_merge_attach(struct gksm_scan *scan,
					 const struct gksm_scan_candidate *candidate, int fd,
					 uint64_t page_id);

#endif
