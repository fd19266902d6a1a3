/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory that the driver hands this process untouched: small and pitched
 * allocations, pools, and handles that the program makes itself. It is counted, never
 * refused: gksmd has to know who uses what, and cuMemGetInfo's answer needs it.
 */
#ifndef GKSM_FOREIGN_H
#define GKSM_FOREIGN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "sync.h"

struct gksm;
struct gksm_gpu;

#define GKSM_FOREIGN_POOLS 64
#define GKSM_FOREIGN_DEVICES 64

struct gksm_foreign_block {
	uint64_t name; /* address or handle; 0: an empty place */
	uint64_t bytes;
	CUcontext context; /* takes it along when it goes; NULL: it survives */
	CUdevice device;
	uint32_t references;
};

struct gksm_foreign {
	struct gksm_mutex lock; /* leaf; of everything but the sums */
	struct gksm_foreign_block *blocks;
	uint32_t room; /* a power of two, or 0 */
	uint32_t used;
	CUmemoryPool pools[GKSM_FOREIGN_POOLS];
	CUdevice pool_device[GKSM_FOREIGN_POOLS];
	uint64_t pool_bytes[GKSM_FOREIGN_POOLS]; /* reserved, as the driver said last */
	_Atomic uint64_t bytes[GKSM_FOREIGN_DEVICES];
	_Atomic uint64_t whole_bytes[GKSM_FOREIGN_DEVICES];
};

/* An allocation that was made; context NULL: a handle. Out of memory it is not counted. */
void gksm_foreign_add(struct gksm *process, uint64_t name, uint64_t bytes, CUdevice device,
		      CUcontext context);

/* One more, or one less, reference to a handle; an address has one. What is not known is
 * ignored. */
void gksm_foreign_retain(struct gksm *process, uint64_t name);
void gksm_foreign_drop(struct gksm *process, uint64_t name);

/* The context takes its allocations along. */
void gksm_foreign_context_gone(struct gksm *process, CUcontext context);

/* A pool was used: what it has reserved is asked anew. NULL: the current device's own. */
void gksm_foreign_pool_used(struct gksm *process, CUmemoryPool pool);
/* All pools that were used are asked: what is freed in stream order comes back late. */
void gksm_foreign_pools_ask(struct gksm *process);
void gksm_foreign_pool_gone(struct gksm *process, CUmemoryPool pool);

/* Counted now, without asking the driver. whole: without what is smaller than a page, for
 * which the driver takes memory at times of its own. */
uint64_t gksm_foreign_bytes(const struct gksm_gpu *gpu, bool whole);

#endif
