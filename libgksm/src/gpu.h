/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GPU of a process: its arena, its pages, its guard, and what the core keeps to
 * move bytes. Internal to the core; wrappers use access.h and alloc.h.
 */
#ifndef GKSM_GPU_H
#define GKSM_GPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "extents.h"
#include "gksm/guard.h"
#include "gksm/protocol.h"
#include "page.h"
#include "process.h"
#include "sync.h"

struct gksm_cow;
struct gksm_engine;
struct gksm_mark;
struct gksm_scan;

struct gksm_allocation {
	uint64_t first_page;
	uint64_t pages; /* 0: this slot is free */
	bool dying;	/* being made or freed: nobody else may find it */
	size_t bytes;	/* as requested */
	CUcontext context;
	uint64_t buffer_id;
};

/* Counts of pages in each state, kept by gksm_page_move, and of events. */
struct gksm_counters {
	_Atomic uint64_t in_state[GKSM_PAGE_LOST + 1];
	_Atomic uint64_t cow_events;
	_Atomic uint64_t cow_ns_total;
	_Atomic uint64_t cow_ns_max;
	_Atomic uint64_t api_detaches;
	_Atomic uint64_t first_touches;
	_Atomic uint64_t loaded_pages;
	_Atomic uint64_t attached_pages;
	_Atomic uint64_t spare_pages;
	_Atomic uint64_t unshared[16]; /* PRIVATE pages by enum gksm_unshared */
	_Atomic uint64_t zero_pages;   /* SHARED pages that are known to be all zeros */
	_Atomic uint64_t full_scans;
	_Atomic uint64_t scanned_pages;
	_Atomic uint64_t stable_pages;	 /* in the last pass: unchanged for long enough */
	_Atomic uint64_t volatile_pages; /* in the last pass: changed since the one before */
	_Atomic uint64_t merged_pages;
	_Atomic uint64_t dropped_merges; /* written to, or different after all */
	_Atomic uint64_t churned_merges; /* written to soon after they were merged */
	_Atomic uint64_t scan_ns_total;
};

struct gksm_gpu {
	struct gksm *process;
	CUdevice device; /* also the number gksm_link knows it by */
	uint8_t uuid[16];
	CUmemAllocationProp prop;
	CUmemAccessDesc read_write;
	CUmemAccessDesc read_only;

	CUdeviceptr arena_base;
	uint64_t arena_pages;
	struct gksm_page *pages;

	_Atomic bool opening; /* the thread that made it still asks gksmd */
	/* Set once gksmd has answered GPU_OPEN; until then everything is private. */
	_Atomic uint32_t guard; /* enum gksm_guard in force */
	_Atomic bool allowed;	/* gksmd's last word: sharing is on for this GPU */
	struct gksm_gpu_opened terms;
	struct gksm_cow *cow;
	struct gksm_mutex guard_lock;	  /* serialises gksm_guard_start */
	_Atomic(struct gksm_scan *) scan; /* NULL: only a fault guard makes scanning sound */
	struct gksm_mutex scan_lock;	  /* leaf: the two that follow */
	struct gksm_scan_terms scan_terms;
	_Atomic uint32_t scan_wake; /* counts up: look at the terms and orders again */
	_Atomic bool copied;	    /* a page got all its bytes from another one */
	_Atomic uint64_t used_end;  /* no page from here on was ever allocated */
	_Atomic(_Atomic uint8_t *) guard_states;
	int guard_fd;

	struct gksm_mutex range_lock; /* extents, allocations */
	struct gksm_extents extents;
	struct gksm_allocation *allocations;
	uint32_t allocation_slots;
	_Atomic uint64_t freed_ns; /* when pages were last given back */

	struct gksm_mutex engines_lock;
	_Atomic(struct gksm_engine *) engines; /* one for each context; never unlinked */

	struct gksm_mutex marks_lock; /* leaf: list work and event queries only */
	struct gksm_mark *marks;      /* copies whose event has not fired yet */
	size_t marks_kept;	      /* how many there were when they were last looked through */
	size_t marks_added;	      /* since then */

	struct gksm_counters counters;
};

/* The GPU whose arena holds the address, or NULL. *page: its index there. */
struct gksm_gpu *gksm_gpu_of(struct gksm *process, CUdeviceptr address, uint64_t *page);

/* The GPU of a device, made at first use; NULL: it cannot be managed (reported). The
 * context must be current. */
struct gksm_gpu *gksm_gpu_get(struct gksm *process, CUdevice device);

static inline CUdeviceptr gksm_page_address(const struct gksm_gpu *gpu, uint64_t page)
{
	return gpu->arena_base + page * GKSM_PAGE_SIZE;
}

/* true: gksmd is there and sharing is on: pages may be published and attached now, and new
 * ones may stay unbacked, their bytes promised. */
bool gksm_gpu_sharing(const struct gksm_gpu *gpu);

/* The counts as they are now, and telling gksmd. */
void gksm_gpu_usage(struct gksm_gpu *gpu, struct gksm_usage *usage);
void gksm_gpu_report_usage(struct gksm_gpu *gpu);

/*
 * Takes the page out of `from` into BUSY, sets the guard's byte first. false: it was
 * not in `from` any more.
 */
bool gksm_page_take(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from);

/* Moves a page the caller owns (it is BUSY) to its next state and wakes who waits.
 * The guard's byte is set before the state, after the mapping. */
void gksm_page_put(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state next);

/* A change that leaves the mapping alone (UNBACKED -> FILLING -> LOADING, PRIVATE <->
 * RELOAD): compare-and-swap only. */
bool gksm_page_step(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		    enum gksm_page_state next);

/* Waits until the page's state differs from `seen`. Not for the COW thread. */
void gksm_page_wait(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state seen);

/* The page, which the caller owns, is about to be SHARED. zero: it was compared, and all
 * its bytes are 0. */
void gksm_page_enters_shared(struct gksm_gpu *gpu, uint64_t page, bool zero);

/* The page, which the caller owns, was SHARED and will not be: what is known of shared
 * pages only is forgotten. written: because somebody writes to it. */
void gksm_page_leaves_shared(struct gksm_gpu *gpu, uint64_t page, bool written);

/* What the page counts as: the program's word, else how it was filled. */
enum gksm_kind gksm_page_kind(const struct gksm_gpu *gpu, uint64_t page);

static inline enum gksm_page_state gksm_page_state(const struct gksm_gpu *gpu, uint64_t page)
{
	return (enum gksm_page_state)atomic_load(&gpu->pages[page].state);
}

#endif
