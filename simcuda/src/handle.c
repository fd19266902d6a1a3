/* SPDX-License-Identifier: Apache-2.0 */
#include "handle.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "va.h"

/* A handle's value: a serial number above its place in the table. */
#define SLOT_BITS 24

static struct sim_handles *table(void)
{
	if (!sim_root.va->handles)
		sim_root.va->handles = calloc(1, sizeof(struct sim_handles));
	return sim_root.va->handles;
}

static size_t slot_take(struct sim_handles *handles, struct sim_handle *handle)
{
	struct sim_handle **grown;
	size_t count;

	for (size_t tried = 0; tried < handles->count; tried++) {
		size_t i = (handles->last + tried) % handles->count;

		if (!handles->slots[i]) {
			handles->slots[i] = handle;
			return i;
		}
	}
	count = handles->count ? handles->count * 2 : 256;
	if (count > (size_t)1 << SLOT_BITS)
		return SIZE_MAX;
	grown = realloc(handles->slots, count * sizeof(*grown));
	if (!grown)
		return SIZE_MAX;
	for (size_t i = handles->count; i < count; i++)
		grown[i] = NULL;
	size_t slot = handles->count;

	handles->slots = grown;
	handles->count = count;
	handles->slots[slot] = handle;
	return slot;
}

struct sim_handle *sim_handle_new(struct sim_device *device, const CUmemAllocationProp *prop,
				  struct sim_extent *extents, unsigned count)
{
	struct sim_handle *handle = calloc(1, sizeof(*handle));
	struct sim_handles *handles = table();
	size_t slot;

	if (!handle || !handles || (slot = slot_take(handles, handle)) == SIZE_MAX) {
		free(handle);
		return NULL;
	}
	handle->value = ++handles->last << SLOT_BITS | slot;
	handle->device = device;
	handle->prop = *prop;
	handle->extents = extents;
	handle->extent_count = count;
	handle->one_fd = count == 1;
	handle->users = 1;
	for (unsigned i = 0; i < count; i++)
		handle->pages += extents[i].pages;
	return handle;
}

struct sim_handle *sim_handle_find(CUmemGenericAllocationHandle value)
{
	struct sim_handles *handles = table();
	size_t slot = value & (((size_t)1 << SLOT_BITS) - 1);
	struct sim_handle *handle;

	if (!handles || slot >= handles->count)
		return NULL;
	handle = handles->slots[slot];
	return handle && handle->value == value && handle->users ? handle : NULL;
}

static void fds_close(struct sim_handle *handle)
{
	for (unsigned i = 0; i < handle->extent_count; i++) {
		if (handle->extents[i].fd >= 0)
			close(handle->extents[i].fd);
		handle->extents[i].fd = -1;
	}
}

static void settle(struct sim_handle *handle)
{
	if (handle->users)
		return;
	/* The mappings alone keep the memory from here on. */
	fds_close(handle);
	if (handle->mappings)
		return;
	for (unsigned i = 0; i < handle->extent_count; i++)
		sim_vram_dropped(&handle->extents[i]);
	sim_root.va->handles->slots[handle->value & (((size_t)1 << SLOT_BITS) - 1)] = NULL;
	free(handle->extents);
	free(handle);
}

int sim_handle_retain(struct sim_handle *handle)
{
	if (!handle->users) {
		for (unsigned i = 0; i < handle->extent_count; i++) {
			/* Mapped here, so it cannot have been handed out again. */
			struct sim_extent *extent = &handle->extents[i];
			int error = sim_vram_join(extent, sim_vram_generation(extent));

			if (error) {
				fds_close(handle);
				return error;
			}
		}
	}
	handle->users++;
	return 0;
}

void sim_handle_release(struct sim_handle *handle)
{
	handle->users--;
	settle(handle);
}

void sim_handle_mapped(struct sim_handle *handle)
{
	handle->mappings++;
}

void sim_handle_unmapped(struct sim_handle *handle)
{
	handle->mappings--;
	settle(handle);
}
