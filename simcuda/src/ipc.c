/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC of cuMemAlloc memory. The 64 bytes name the runs of pages that the
 * allocation is made of; whoever opens it takes a lock of its own on them, so the
 * memory outlives its owner there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"

#define TICKET_MAGIC 0x4953u
#define RUNS_MAX 8

struct run {
	uint16_t first;
	uint16_t pages;
};

struct ticket {
	uint16_t magic;
	uint8_t run_count;
	uint8_t slot;	 /* of the exporter, on the device */
	uint32_t device; /* the first bytes of its UUID */
	uint32_t generation;
	uint32_t offset; /* of the allocation in its first page */
	uint64_t bytes;
	struct run runs[RUNS_MAX];
	uint8_t reserved[8];
};

_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "it is sent as one");

static uint32_t device_name(const struct sim_device *device)
{
	uint32_t name;

	memcpy(&name, device->uuid.bytes, sizeof(name));
	return name;
}

static struct sim_device *device_by_name(uint32_t name)
{
	for (int i = 0; i < sim_root.device_count; i++)
		if (device_name(&sim_root.devices[i]) == name)
			return &sim_root.devices[i];
	return NULL;
}

/* Extents that follow each other over the border of two banks make one run. */
static bool runs_make(const struct sim_mapping *mapping, struct ticket *ticket)
{
	for (unsigned i = 0; i < mapping->extent_count; i++) {
		const struct sim_extent *extent = &mapping->extents[i];
		struct run *last = ticket->run_count ? &ticket->runs[ticket->run_count - 1] : NULL;

		ticket->generation += sim_vram_generation(extent);
		if (last && last->first + last->pages == extent->first &&
		    last->pages + extent->pages <= UINT16_MAX) {
			last->pages = (uint16_t)(last->pages + extent->pages);
			continue;
		}
		if (ticket->run_count == RUNS_MAX)
			return false;
		ticket->runs[ticket->run_count++] =
			(struct run){(uint16_t)extent->first, (uint16_t)extent->pages};
	}
	return true;
}

SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct ticket ticket = {.magic = TICKET_MAGIC};
	struct sim_allocation found;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pHandle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	if (!sim_allocation_find(dptr, &found) || found.base != dptr || *found.pool ||
	    (found.mapping->kind != SIM_MAPPING_ALLOC && !found.block)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (!runs_make(found.mapping, &ticket)) {
		result = CUDA_ERROR_NOT_SUPPORTED;
	} else {
		ticket.slot = (uint8_t)found.mapping->device->slot;
		ticket.device = device_name(found.mapping->device);
		ticket.offset = (uint32_t)(found.base - found.mapping->base);
		ticket.bytes = found.bytes;
		memcpy(pHandle, &ticket, sizeof(ticket));
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

/* The extents of the runs, cut at bank borders, each locked by us. NULL: gone. */
static struct sim_extent *extents_join(struct sim_device *device, const struct ticket *ticket,
				       unsigned *count)
{
	struct sim_extent *extents = NULL;
	unsigned pages = 0;
	uint32_t generation = 0;
	bool joined = true;

	*count = 0;
	for (unsigned i = 0; i < ticket->run_count; i++)
		pages += ticket->runs[i].pages;
	if (pages)
		extents = calloc(pages, sizeof(*extents));
	if (!extents)
		return NULL;
	for (unsigned i = 0; i < ticket->run_count && joined; i++) {
		uint32_t first = ticket->runs[i].first, end = first + ticket->runs[i].pages;

		while (first < end && joined) {
			uint32_t bank_end = (first / SIM_BANK_PAGES + 1) * SIM_BANK_PAGES;
			struct sim_extent extent = {
				.device = device,
				.fd = -1,
				.first = first,
				.pages = (bank_end < end ? bank_end : end) - first,
			};

			joined = extent.first + extent.pages <= device->page_count &&
				 !sim_vram_join(&extent, sim_vram_generation(&extent));
			if (!joined)
				break;
			generation += sim_vram_generation(&extent);
			extents[(*count)++] = extent;
			first += extent.pages;
		}
	}
	/* The locks are ours now, so the pages cannot change hands any more: if the count
	 * of hand-outs is still the exporter's, they are the exporter's. */
	if (joined && generation == ticket->generation)
		return extents;
	for (unsigned i = 0; i < *count; i++) {
		close(extents[i].fd);
		sim_vram_dropped(&extents[i]);
	}
	free(extents);
	return NULL;
}

/* Opening again what the context has open gives the same address once more. */
static CUdeviceptr opened_before(struct sim_context *context, const struct ticket *ticket)
{
	CUdeviceptr address = 0;

	pthread_mutex_lock(&sim_root.memory_lock);
	for (struct sim_mapping *m = sim_root.va->mappings; m && !address; m = m->next) {
		if (m->kind != SIM_MAPPING_IPC || m->context != context ||
		    m->ipc_generation != ticket->generation ||
		    m->extents[0].first != ticket->runs[0].first ||
		    m->ipc_offset != ticket->offset || m->bytes != ticket->bytes)
			continue;
		m->ipc_users++;
		address = m->base + m->ipc_offset;
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return address;
}

static CUresult open_handle(CUdeviceptr *pdptr, const CUipcMemHandle *handle, unsigned flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct sim_mapping *mapping;
	struct sim_extent *extents;
	struct sim_device *device;
	struct ticket ticket;
	unsigned count;

	if (result != CUDA_SUCCESS)
		return result;
	memcpy(&ticket, handle, sizeof(ticket));
	device = device_by_name(ticket.device);
	if (!pdptr || flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
	    ticket.magic != TICKET_MAGIC || !device || !ticket.run_count ||
	    ticket.run_count > RUNS_MAX || ticket.offset >= SIM_PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	/* The owner cannot open its own. */
	if (ticket.slot == device->slot)
		return CUDA_ERROR_INVALID_CONTEXT;
	*pdptr = opened_before(context, &ticket);
	if (*pdptr)
		return CUDA_SUCCESS;
	extents = extents_join(device, &ticket, &count);
	if (!extents)
		return CUDA_ERROR_INVALID_VALUE;
	mapping = sim_mapping_make(context, SIM_MAPPING_IPC, ticket.bytes, extents, count, &result);
	if (!mapping)
		return result;
	pthread_mutex_lock(&sim_root.memory_lock);
	mapping->ipc_users = 1;
	mapping->ipc_offset = ticket.offset;
	mapping->ipc_generation = ticket.generation;
	*pdptr = mapping->base + ticket.offset;
	pthread_mutex_unlock(&sim_root.memory_lock);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle,
				       unsigned int Flags)
{
	return open_handle(pdptr, &handle, Flags);
}

SIM_API CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	return open_handle(pdptr, &handle, Flags);
}

SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct sim_mapping *mapping = NULL;
	struct sim_allocation found;
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result == CUDA_SUCCESS)
		result = sim_context_quiesce(context);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.memory_lock);
	if (!sim_allocation_find(dptr, &found) || found.base != dptr ||
	    found.mapping->kind != SIM_MAPPING_IPC || !found.mapping->ipc_users)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!--found.mapping->ipc_users)
		mapping = found.mapping;
	if (mapping)
		mapping->bytes = 0;
	pthread_mutex_unlock(&sim_root.memory_lock);
	if (mapping)
		sim_mapping_free(mapping);
	return result;
}
