/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses. Two spans of the host's address space at a fixed distance: the
 * first is what applications see, always PROT_NONE; the second, the alias span, is
 * where the memory is mapped with the rights that the device has, and where simulated
 * work touches it. A device's page table is the host's own page table.
 *
 * Unless said otherwise everything here is called with root->memory_lock held.
 */
#ifndef SIM_VA_H
#define SIM_VA_H

#include "sim.h"
#include "vram.h"

enum sim_mapping_kind {
	SIM_MAPPING_VMM,   /* cuMemMap: rights are set by the application */
	SIM_MAPPING_ALLOC, /* one allocation of cuMemAlloc and its like */
	SIM_MAPPING_HEAP,  /* a page of small allocations */
	SIM_MAPPING_IPC	   /* somebody else's allocation */
};

struct sim_region { /* reserved addresses */
	CUdeviceptr base;
	size_t pages;
	bool user; /* cuMemAddressReserve */
};

struct sim_block;  /* heap.c */
struct sim_handle; /* handle.h */

struct sim_mapping {
	enum sim_mapping_kind kind;
	CUdeviceptr base;
	size_t pages;
	size_t bytes; /* as asked for */
	struct sim_device *device;
	struct sim_context *context; /* NULL in VMM */
	uint64_t buffer_id;
	enum sim_access access;		  /* in force, by any device */
	uint8_t granted[SIM_DEVICES_MAX]; /* VMM: CUmemAccess_flags by device */
	struct sim_handle *handle;	  /* VMM */
	struct sim_extent *extents;	  /* else; owned, fds closed */
	unsigned extent_count;
	struct sim_region *region; /* not VMM: freed with the mapping */
	struct sim_block *blocks;  /* HEAP */
	struct sim_mapping *heap_next;
	struct sim_pool *pool; /* it came from */
	bool freeing;	       /* cuMemFreeAsync is under way */
	unsigned ipc_users;    /* IPC: how often opened */
	size_t ipc_offset;     /* IPC: of the pointer handed out */
	uint32_t ipc_generation;
	int sync_memops;		  /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
	struct sim_mapping *next, **link; /* of sim_va's list */
};

struct sim_entry {
	struct sim_region *region;
	struct sim_mapping *mapping;
};

struct sim_va {
	size_t pages;
	size_t rotor;
	struct sim_entry *entries;
	/* enum sim_access in force, a byte for each page; read without any lock. */
	_Atomic uint8_t *access;
	_Atomic uint32_t *reach; /* likewise: which devices have it (reach.c) */
	struct sim_mapping *mappings;
	struct sim_handles *handles;
};

/* Without the lock, once. 0 or -ENOMEM. */
int sim_va_start(void);

/* hint: 0 or where the caller would like it. NULL: no room. */
struct sim_region *sim_va_reserve(size_t pages, size_t align_pages, CUdeviceptr hint);
void sim_va_release(struct sim_region *region);

/* The region or mapping that holds the address, or NULL. */
struct sim_region *sim_va_region(CUdeviceptr address);
struct sim_mapping *sim_va_find(CUdeviceptr address);

/*
 * Puts mapping (base, pages and kind set) into the page table, its memory being the
 * extents, without any rights yet. 0 or a negative errno; nothing is changed then.
 */
int sim_va_map(struct sim_mapping *mapping, const struct sim_extent *extents, unsigned count);
/* Takes it out again. The caller frees what the mapping owns. */
void sim_va_unmap(struct sim_mapping *mapping);

/*
 * Changes rights. If there were any before, the range is without any for a random 0
 * to 200 us: no change of a mapping is atomic on a real GPU either. changed: some device's
 * rights do, although those of all together may stay as they are.
 */
void sim_va_protect(struct sim_mapping *mapping, enum sim_access access, bool changed);

/* Any thread, any lock, also a signal handler: the access in force at the address. */
enum sim_access sim_va_access(CUdeviceptr address);

/* reach.c: notes which devices have rights to the mapping. */
void sim_reach_note(const struct sim_mapping *mapping);
/* Any thread, without the lock: whether kernels of the context may touch what is mapped
 * at the address. */
bool sim_reaches(struct sim_context *context, CUdeviceptr address);

static inline bool sim_va_inside(CUdeviceptr address)
{
	return address >= sim_va_base && address < sim_va_end;
}

#endif
