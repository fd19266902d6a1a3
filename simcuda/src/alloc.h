/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory as cuMemAlloc hands it out. Requests of more than 1 MiB get pages of
 * their own; smaller ones share pages, as with a real driver.
 */
#ifndef SIM_ALLOC_H
#define SIM_ALLOC_H

#include "sim.h"
#include "va.h"

struct sim_pool;

/* A small allocation in a HEAP mapping. */
struct sim_block {
	struct sim_block *next; /* by address */
	unsigned first, units;	/* of SIM_UNIT bytes */
	size_t bytes;		/* as asked for */
	uint64_t buffer_id;
	struct sim_pool *pool;
	bool freeing;
	int sync_memops;
};

#define SIM_UNIT 512u

/* What an address in device memory belongs to. memory_lock. */
struct sim_allocation {
	CUdeviceptr base;
	size_t bytes;
	uint64_t buffer_id;
	struct sim_mapping *mapping;
	struct sim_block *block; /* NULL: the whole mapping */
	struct sim_pool **pool;	 /* where it is noted */
	bool *freeing;
	int *sync_memops;
};

/* false: nothing there, or not allocated. VMM mappings and IPC ones count too. */
bool sim_allocation_find(CUdeviceptr address, struct sim_allocation *found);

/* Whole pages of the allocation, for accounting. */
size_t sim_allocation_size(const struct sim_allocation *allocation);

/* pool.c; memory_lock. Memory of the pool (or of none: NULL) is free again. */
void sim_pool_returned(struct sim_pool *pool, size_t bytes);

/* heap.c; memory_lock. 0: no room, a page must be added. */
CUdeviceptr sim_heap_take(struct sim_context *context, size_t bytes, struct sim_block *block);
/* Takes the block out; true: its mapping is empty now and off the heap. */
bool sim_heap_give(struct sim_mapping *mapping, struct sim_block *block);

/* A mapping of fresh memory, readable and writable, in the page table. NULL, with
 * *result saying why. Without the lock. */
struct sim_mapping *sim_mapping_new(struct sim_context *context, enum sim_mapping_kind kind,
				    size_t bytes, CUresult *result);
/* Puts extents with open fds in the page table; the fds are closed, the extents owned
 * (also on failure). Without the lock. */
struct sim_mapping *sim_mapping_make(struct sim_context *context, enum sim_mapping_kind kind,
				     size_t bytes, struct sim_extent *extents, unsigned count,
				     CUresult *result);
/* Unmaps and frees. Without the lock; nobody else may find it any more. */
void sim_mapping_free(struct sim_mapping *mapping);

#endif
