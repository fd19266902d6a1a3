/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "context.h"
#include "host.h"

#define SMALL_MAX ((size_t)1 << 20)
#define PITCH 512u

static void lock(void)
{
	pthread_mutex_lock(&sim_root.memory_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&sim_root.memory_lock);
}

bool sim_allocation_find(CUdeviceptr address, struct sim_allocation *found)
{
	struct sim_mapping *mapping = sim_va_find(address);
	struct sim_block *block;

	if (!mapping)
		return false;
	found->mapping = mapping;
	found->block = NULL;
	if (mapping->kind != SIM_MAPPING_HEAP) {
		found->base = mapping->base + mapping->ipc_offset;
		found->bytes = mapping->bytes;
		found->buffer_id = mapping->buffer_id;
		found->pool = &mapping->pool;
		found->freeing = &mapping->freeing;
		found->sync_memops = &mapping->sync_memops;
		return address >= found->base && address - found->base < found->bytes;
	}
	for (block = mapping->blocks; block; block = block->next) {
		CUdeviceptr base = mapping->base + (CUdeviceptr)block->first * SIM_UNIT;

		if (address < base || address - base >= block->bytes)
			continue;
		found->block = block;
		found->base = base;
		found->bytes = block->bytes;
		found->buffer_id = block->buffer_id;
		found->pool = &block->pool;
		found->freeing = &block->freeing;
		found->sync_memops = &block->sync_memops;
		return true;
	}
	return false;
}

size_t sim_allocation_size(const struct sim_allocation *allocation)
{
	return allocation->block ? (size_t)allocation->block->units * SIM_UNIT
				 : allocation->mapping->pages * SIM_PAGE;
}

static void extents_free(struct sim_extent *extents, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (extents[i].fd >= 0)
			close(extents[i].fd);
		sim_vram_dropped(&extents[i]);
	}
	free(extents);
}

static CUresult map_fresh(struct sim_mapping *mapping, struct sim_extent *extents, unsigned count)
{
	mapping->region = sim_va_reserve(mapping->pages, 1, 0);
	if (!mapping->region)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->base = mapping->region->base;
	if (sim_va_map(mapping, extents, count)) {
		sim_va_release(mapping->region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	sim_va_protect(mapping, SIM_ACCESS_READ_WRITE, true);
	return CUDA_SUCCESS;
}

struct sim_mapping *sim_mapping_make(struct sim_context *context, enum sim_mapping_kind kind,
				     size_t bytes, struct sim_extent *extents, unsigned count,
				     CUresult *result)
{
	struct sim_mapping *mapping = calloc(1, sizeof(*mapping));

	*result = CUDA_ERROR_OUT_OF_MEMORY;
	if (mapping) {
		mapping->kind = kind;
		mapping->bytes = bytes;
		mapping->device = extents[0].device;
		mapping->context = context;
		mapping->buffer_id = sim_next_id();
		mapping->extents = extents;
		mapping->extent_count = count;
		for (unsigned i = 0; i < count; i++)
			mapping->pages += extents[i].pages;
		lock();
		*result = map_fresh(mapping, extents, count);
		unlock();
	}
	if (*result != CUDA_SUCCESS) {
		free(mapping);
		extents_free(extents, count);
		return NULL;
	}
	/* From here on the mapping keeps the memory. */
	for (unsigned i = 0; i < count; i++) {
		close(extents[i].fd);
		extents[i].fd = -1;
	}
	return mapping;
}

struct sim_mapping *sim_mapping_new(struct sim_context *context, enum sim_mapping_kind kind,
				    size_t bytes, CUresult *result)
{
	size_t pages = (bytes + SIM_PAGE - 1) / SIM_PAGE;
	struct sim_extent *extents;
	unsigned count;
	int error;

	error = bytes > SIZE_MAX - SIM_PAGE || pages > UINT32_MAX
			? -ENOMEM
			: sim_vram_take(context->device, (unsigned)pages, false, &extents, &count);
	if (error) {
		*result = error == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
		return NULL;
	}
	return sim_mapping_make(context, kind, bytes, extents, count, result);
}

void sim_mapping_free(struct sim_mapping *mapping)
{
	lock();
	sim_va_unmap(mapping);
	sim_va_release(mapping->region);
	unlock();
	extents_free(mapping->extents, mapping->extent_count);
	free(mapping);
}

static CUresult alloc_small(struct sim_context *context, size_t bytes, CUdeviceptr *address)
{
	struct sim_block *block = calloc(1, sizeof(*block));
	CUresult result = CUDA_SUCCESS;

	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	block->buffer_id = sim_next_id();
	for (;;) {
		struct sim_mapping *page;

		lock();
		*address = sim_heap_take(context, bytes, block);
		unlock();
		if (*address)
			return CUDA_SUCCESS;
		page = sim_mapping_new(context, SIM_MAPPING_HEAP, SIM_PAGE, &result);
		if (!page) {
			free(block);
			return result;
		}
		lock();
		page->heap_next = context->heap;
		context->heap = page;
		*address = sim_heap_take(context, bytes, block);
		unlock();
		if (*address)
			return CUDA_SUCCESS;
	}
}

CUresult sim_memory_alloc(struct sim_context *context, size_t bytes, CUdeviceptr *address)
{
	struct sim_mapping *mapping;
	CUresult result;

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes <= SMALL_MAX)
		return alloc_small(context, bytes, address);
	mapping = sim_mapping_new(context, SIM_MAPPING_ALLOC, bytes, &result);
	if (mapping)
		*address = mapping->base;
	return result;
}

CUresult sim_memory_free(struct sim_context *context, CUdeviceptr address)
{
	struct sim_allocation found;
	bool empty = true;

	(void)context;
	lock();
	if (!sim_allocation_find(address, &found) || found.base != address ||
	    (found.mapping->kind != SIM_MAPPING_ALLOC && !found.block)) {
		unlock();
		return CUDA_ERROR_INVALID_VALUE;
	}
	sim_pool_returned(*found.pool, sim_allocation_size(&found));
	if (found.block) {
		empty = sim_heap_give(found.mapping, found.block);
		free(found.block);
	} else {
		/* So that a second free at the same time finds nothing. */
		found.mapping->bytes = 0;
	}
	unlock();
	if (empty)
		sim_mapping_free(found.mapping);
	return CUDA_SUCCESS;
}

void sim_memory_context_gone(struct sim_context *context)
{
	for (;;) {
		struct sim_mapping *mapping;

		lock();
		for (mapping = sim_root.va->mappings; mapping; mapping = mapping->next)
			if (mapping->context == context)
				break;
		context->heap = NULL;
		if (!mapping) {
			unlock();
			return;
		}
		mapping->context = NULL;
		sim_pool_returned(mapping->pool, mapping->pages * SIM_PAGE);
		while (mapping->blocks) {
			struct sim_block *block = mapping->blocks;

			sim_pool_returned(block->pool, (size_t)block->units * SIM_UNIT);
			mapping->blocks = block->next;
			free(block);
		}
		unlock();
		sim_mapping_free(mapping);
	}
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result == CUDA_SUCCESS)
		result = sim_capture_unsafe_call(context);
	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_memory_alloc(context, bytesize, dptr);
}

SIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
				    size_t Height, unsigned int ElementSizeBytes)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	size_t pitch, bytes;

	if (result == CUDA_SUCCESS)
		result = sim_capture_unsafe_call(context);
	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !pPitch || !WidthInBytes || !Height ||
	    (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (WidthInBytes > SIZE_MAX - PITCH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pitch = (WidthInBytes + PITCH - 1) / PITCH * PITCH;
	if (__builtin_mul_overflow(pitch, Height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = sim_memory_alloc(context, bytes, dptr);
	if (result == CUDA_SUCCESS)
		*pPitch = pitch;
	return result;
}

/* The context whose work a free of the address waits for; NULL: no such allocation. */
static struct sim_context *owner(CUdeviceptr address)
{
	struct sim_context *context = NULL;
	struct sim_host_range *range;
	struct sim_allocation found;

	lock();
	if (sim_allocation_find(address, &found)) {
		if (found.base == address && !*found.freeing)
			context = found.mapping->context;
	} else {
		range = sim_host_find((uintptr_t)address);
		if (range && range->kind == SIM_HOST_MANAGED && range->base == address)
			context = range->context;
	}
	unlock();
	return context;
}

SIM_API CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct sim_context *context, *owning;
	CUresult result = sim_current(&context);

	if (result == CUDA_SUCCESS)
		result = sim_capture_unsafe_call(context);
	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr)
		return CUDA_SUCCESS;
	owning = owner(dptr);
	if (!owning)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_context_quiesce(owning);
	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_va_inside(dptr))
		return sim_host_free((uintptr_t)dptr, SIM_HOST_MANAGED) ? CUDA_SUCCESS
									: CUDA_ERROR_INVALID_VALUE;
	return sim_memory_free(owning, dptr);
}

SIM_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	uint64_t used;

	if (result != CUDA_SUCCESS)
		return result;
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	used = sim_vram_used(context->device);
	*total = context->device->total_bytes;
	*free_bytes = context->device->total_bytes - used;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct sim_host_range *range;
	struct sim_allocation found;
	CUdeviceptr base = 0;
	size_t bytes = 0;

	if (result != CUDA_SUCCESS)
		return result;
	lock();
	if (sim_allocation_find(dptr, &found)) {
		base = found.base;
		bytes = found.bytes;
	} else if ((range = sim_host_find((uintptr_t)dptr))) {
		base = range->base;
		bytes = range->bytes;
	}
	unlock();
	if (!bytes)
		return CUDA_ERROR_NOT_FOUND;
	if (pbase)
		*pbase = base;
	if (psize)
		*psize = bytes;
	return CUDA_SUCCESS;
}
