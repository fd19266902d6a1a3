/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves bytes in one context: movers (streams and a pinned bounce page), the
 * staging pages of the load path, and scratch addresses.
 *
 * Everything is made when the context allocates from the arena for the first time,
 * so that answering a fault never has to create a stream or pin memory. All copies
 * cross PCIe: device-to-device copies and memsets are SM kernels and would wait for
 * the very kernel whose fault is being answered (DESIGN.md 5, COW).
 */
#ifndef GKSM_ENGINE_H
#define GKSM_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "sync.h"

struct gksm_gpu;

#define GKSM_BOUNCE_CHUNKS 4
#define GKSM_SCAN_BATCH 8
#define GKSM_LOAD_BATCH 32 /* pages: 64 MiB of staging, one segment of host copies */

/* One thread at a time. */
struct gksm_mover {
	const struct gksm_driver *driver;
	CUstream out;
	CUstream in;
	CUevent chunk_out[GKSM_BOUNCE_CHUNKS];
	void *bounce;	     /* one pinned page */
	CUdeviceptr scratch; /* addresses for `scratch_pages` pages, ours alone */
	unsigned scratch_pages;
};

struct gksm_engine {
	struct gksm_gpu *gpu;
	CUcontext context;
	_Atomic(struct gksm_engine *) next;
	_Atomic bool gone; /* the context is destroyed; set under all four locks */

	struct gksm_mutex cow_lock; /* COW thread while it answers; context teardown */
	struct gksm_mover cow;
	struct gksm_mutex write_lock; /* API writes and reads */
	struct gksm_mover write;
	struct gksm_mutex load_lock; /* one load at a time */
	struct gksm_mover load;
	void *staging[GKSM_LOAD_BATCH]; /* pinned pages */
	struct gksm_mutex scan_lock;	/* the scanner while it uses the context */
	struct gksm_mover scan;
	void *looked[GKSM_SCAN_BATCH]; /* pinned pages; made when the scanner first comes */
};

/* The engine of a context, made at first use (the context must be current then).
 * NULL: it cannot be made (no memory). */
struct gksm_engine *gksm_engine_get(struct gksm_gpu *gpu, CUcontext context);

/* Makes the engine's context current, and what was current before again. 0 or -ENODEV
 * (the context is gone). */
int gksm_engine_enter(struct gksm_engine *engine);
void gksm_engine_leave(struct gksm_engine *engine);

/* Makes what the scanner needs, once. The engine is entered and scan_lock held. 0 or
 * -ENOMEM. */
int gksm_engine_prepare_scan(struct gksm_engine *engine);

/* The context is going: waits for whoever uses the engine, gives everything back
 * while the context still lives, and marks it gone. */
void gksm_engine_retire(struct gksm_engine *engine);

/* Copies one page through the bounce page, in overlapping chunks. 0 or -EIO. */
int gksm_mover_copy_page(struct gksm_mover *mover, CUdeviceptr destination, CUdeviceptr source);

/* Host memory may be anything: it goes through the bounce page. bytes <= one page.
 * 0 or -EIO. */
int gksm_mover_write(struct gksm_mover *mover, CUdeviceptr destination, const void *source,
		     size_t bytes);

/* Reads one page into the bounce page. 0 or -EIO. */
int gksm_mover_read_page(struct gksm_mover *mover, CUdeviceptr source);

/* Enqueues a read of one page into pinned memory; gksm_mover_finish_reads waits for all
 * of them. 0 or -EIO. */
int gksm_mover_enqueue_read(struct gksm_mover *mover, void *pinned, CUdeviceptr source);
int gksm_mover_finish_reads(struct gksm_mover *mover);

/* Enqueues a copy from pinned memory; gksm_mover_finish waits for all of them. */
int gksm_mover_enqueue(struct gksm_mover *mover, CUdeviceptr destination, const void *pinned,
		       size_t bytes);
int gksm_mover_finish(struct gksm_mover *mover);

static inline CUdeviceptr gksm_mover_scratch(const struct gksm_mover *mover, unsigned slot)
{
	return mover->scratch + (CUdeviceptr)slot * 2097152u;
}

#endif
