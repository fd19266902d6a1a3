/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of physical memory (cuMemCreate, cuMemImportFromShareableHandle). A handle
 * lives while the application holds it or it is mapped. All with root->memory_lock.
 */
#ifndef SIM_HANDLE_H
#define SIM_HANDLE_H

#include "sim.h"
#include "vram.h"

struct sim_handle {
	CUmemGenericAllocationHandle value;
	CUmemAllocationProp prop;
	struct sim_device *device;
	size_t pages;
	bool imported;
	bool one_fd; /* a single extent: can be exported */
	unsigned users;
	unsigned mappings;
	struct sim_extent *extents; /* fds open while users > 0 */
	unsigned extent_count;
};

struct sim_handles {
	struct sim_handle **slots;
	size_t count;
	uint64_t last; /* values are never used twice */
};

/* NULL: no memory. The handle has one user. */
struct sim_handle *sim_handle_new(struct sim_device *device, const CUmemAllocationProp *prop,
				  struct sim_extent *extents, unsigned count);
/* NULL: none, or released. */
struct sim_handle *sim_handle_find(CUmemGenericAllocationHandle value);
/* One more user, also of a handle that is only mapped. 0 or a negative errno. */
int sim_handle_retain(struct sim_handle *handle);
void sim_handle_release(struct sim_handle *handle);
/* Around sim_va_map and sim_va_unmap. */
void sim_handle_mapped(struct sim_handle *handle);
void sim_handle_unmapped(struct sim_handle *handle);

#endif
