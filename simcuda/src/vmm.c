/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management, as strict as a real driver: a handle is mapped whole, a
 * mapping is unmapped and given rights whole, an imported handle cannot be exported.
 * Nothing here waits for running work.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "handle.h"
#include "va.h"

static CUresult from_errno(int error)
{
	switch (error) {
	case 0:
		return CUDA_SUCCESS;
	case -ENOMEM:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case -EINVAL:
	case -ESTALE:
		return CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

static CUresult prop_check(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!sim_device(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (prop->allocFlags.gpuDirectRDMACapable && sim_root.config.rdma == SIM_RDMA_NONE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
					       CUmemAllocationGranularity_flags option)
{
	CUresult result = sim_ready();

	if (result == CUDA_SUCCESS)
		result = prop_check(prop);
	if (result != CUDA_SUCCESS)
		return result;
	if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
			     option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = SIM_PAGE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
				     CUdeviceptr addr, unsigned long long flags)
{
	CUresult result = sim_ready();
	struct sim_region *region;

	if (result != CUDA_SUCCESS)
		return result;
	if (!ptr || !size || size % SIM_PAGE || flags || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	region = sim_va_reserve(size / SIM_PAGE, alignment / SIM_PAGE, addr);
	if (region) {
		region->user = true;
		*ptr = region->base;
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return region ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool region_empty(const struct sim_region *region)
{
	for (size_t i = 0; i < region->pages; i++)
		if (sim_va_find(region->base + i * SIM_PAGE))
			return false;
	return true;
}

SIM_API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult result = sim_ready();
	struct sim_region *region;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.memory_lock);
	region = sim_va_region(ptr);
	if (!region || !region->user || region->base != ptr || region->pages * SIM_PAGE != size ||
	    !region_empty(region))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		sim_va_release(region);
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

static void extents_close(struct sim_extent *extents, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		close(extents[i].fd);
		sim_vram_dropped(&extents[i]);
	}
	free(extents);
}

SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
			     const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result = sim_ready();
	struct sim_extent *extents;
	struct sim_handle *created;
	size_t pages = size / SIM_PAGE;
	unsigned count;
	bool whole;
	int error;

	if (result == CUDA_SUCCESS)
		result = prop_check(prop);
	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !size || size % SIM_PAGE || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (pages > UINT32_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* One fd stands for one run of pages in one bank. A handle that is too large for
	 * that, or finds no such run, cannot be exported. */
	whole = prop->requestedHandleTypes && pages <= SIM_BANK_PAGES;
	struct sim_device *device = sim_device(prop->location.id);

	error = whole ? sim_vram_take(device, (unsigned)pages, true, &extents, &count) : -ENOMEM;
	if (error == -ENOMEM)
		error = sim_vram_take(device, (unsigned)pages, false, &extents, &count);
	if (error)
		return from_errno(error);

	pthread_mutex_lock(&sim_root.memory_lock);
	created = sim_handle_new(device, prop, extents, count);
	if (created)
		*handle = created->value;
	pthread_mutex_unlock(&sim_root.memory_lock);
	if (!created)
		extents_close(extents, count);
	return created ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result = sim_ready();
	struct sim_handle *found;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.memory_lock);
	found = sim_handle_find(handle);
	if (found)
		sim_handle_release(found);
	pthread_mutex_unlock(&sim_root.memory_lock);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map_locked(CUdeviceptr ptr, size_t size, struct sim_handle *handle)
{
	struct sim_region *region = sim_va_region(ptr);
	struct sim_mapping *mapping;
	int error;

	if (!region || !region->user || ptr + size > region->base + region->pages * SIM_PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	for (CUdeviceptr at = ptr; at < ptr + size; at += SIM_PAGE)
		if (sim_va_find(at))
			return CUDA_ERROR_INVALID_VALUE;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->kind = SIM_MAPPING_VMM;
	mapping->base = ptr;
	mapping->pages = size / SIM_PAGE;
	mapping->bytes = size;
	mapping->device = handle->device;
	mapping->handle = handle;
	mapping->buffer_id = sim_next_id();
	error = sim_va_map(mapping, handle->extents, handle->extent_count);
	if (error) {
		free(mapping);
		return from_errno(error);
	}
	sim_handle_mapped(handle);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
			  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = sim_ready();
	struct sim_handle *found;

	if (result != CUDA_SUCCESS)
		return result;
	if (!size || ptr % SIM_PAGE || size % SIM_PAGE || offset % SIM_PAGE || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	found = sim_handle_find(handle);
	if (!found || offset + size > found->pages * SIM_PAGE || offset + size < size)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (offset || size != found->pages * SIM_PAGE)
		result = CUDA_ERROR_NOT_SUPPORTED;
	else
		result = map_locked(ptr, size, found);
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

/* true: the range is made up of whole VMM mappings, without a gap. */
static bool whole_mappings(CUdeviceptr ptr, size_t size)
{
	CUdeviceptr at = ptr;

	if (!size || ptr % SIM_PAGE || size % SIM_PAGE || ptr + size < ptr)
		return false;
	while (at < ptr + size) {
		struct sim_mapping *mapping = sim_va_find(at);

		if (!mapping || mapping->kind != SIM_MAPPING_VMM || mapping->base != at)
			return false;
		at += mapping->pages * SIM_PAGE;
	}
	return at == ptr + size;
}

SIM_API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.memory_lock);
	if (!whole_mappings(ptr, size))
		result = CUDA_ERROR_INVALID_VALUE;
	for (CUdeviceptr at = ptr; result == CUDA_SUCCESS && at < ptr + size;) {
		struct sim_mapping *mapping = sim_va_find(at);

		at += mapping->pages * SIM_PAGE;
		sim_va_unmap(mapping);
		sim_handle_unmapped(mapping->handle);
		free(mapping);
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

/* As drivers do that promise more than they hold. */
static bool access_refused(const struct sim_mapping *mapping)
{
	return sim_root.config.rdma == SIM_RDMA_UNMAPPABLE &&
	       mapping->handle->prop.allocFlags.gpuDirectRDMACapable;
}

static void access_apply(struct sim_mapping *mapping, const CUmemAccessDesc *desc, size_t count)
{
	enum sim_access access = SIM_ACCESS_NONE;

	for (size_t i = 0; i < count; i++)
		mapping->granted[desc[i].location.id] = (uint8_t)desc[i].flags;
	for (int i = 0; i < SIM_DEVICES_MAX; i++) {
		if (mapping->granted[i] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			access = SIM_ACCESS_READ_WRITE;
		else if (mapping->granted[i] == CU_MEM_ACCESS_FLAGS_PROT_READ &&
			 access == SIM_ACCESS_NONE)
			access = SIM_ACCESS_READ;
	}
	sim_va_protect(mapping, access);
}

static CUresult access_check(const CUmemAccessDesc *desc, size_t count)
{
	if (!desc || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return CUDA_ERROR_INVALID_VALUE;
		if (!sim_device(desc[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		    desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
		    desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
				size_t count)
{
	CUresult result = sim_ready();

	if (result == CUDA_SUCCESS)
		result = access_check(desc, count);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.memory_lock);
	if (!whole_mappings(ptr, size))
		result = CUDA_ERROR_INVALID_VALUE;
	for (CUdeviceptr at = ptr; result == CUDA_SUCCESS && at < ptr + size;) {
		struct sim_mapping *mapping = sim_va_find(at);

		if (access_refused(mapping))
			result = CUDA_ERROR_UNKNOWN;
		else
			access_apply(mapping, desc, count);
		at += mapping->pages * SIM_PAGE;
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

SIM_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
				CUdeviceptr ptr)
{
	CUresult result = sim_ready();
	struct sim_mapping *mapping;

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sim_root.memory_lock);
	mapping = sim_va_find(ptr);
	if (!mapping || mapping->kind != SIM_MAPPING_VMM)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*flags = mapping->granted[location->id];
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

SIM_API CUresult cuMemExportToShareableHandle(void *shareableHandle,
					      CUmemGenericAllocationHandle handle,
					      CUmemAllocationHandleType handleType,
					      unsigned long long flags)
{
	CUresult result = sim_ready();
	struct sim_handle *found;
	int fd;

	if (result != CUDA_SUCCESS)
		return result;
	if (!shareableHandle || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&sim_root.memory_lock);
	found = sim_handle_find(handle);
	if (!found || found->imported || !found->prop.requestedHandleTypes) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (!found->one_fd) {
		result = CUDA_ERROR_NOT_SUPPORTED;
	} else {
		fd = fcntl(found->extents[0].fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			result = CUDA_ERROR_OPERATING_SYSTEM;
		else
			memcpy(shareableHandle, &fd, sizeof(fd));
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
						void *osHandle,
						CUmemAllocationHandleType shHandleType)
{
	CUresult result = sim_ready();
	struct sim_extent *extent;
	struct sim_handle *made;
	int error;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	extent = calloc(1, sizeof(*extent));
	if (!extent)
		return CUDA_ERROR_OUT_OF_MEMORY;
	error = sim_vram_identify((int)(intptr_t)osHandle, extent);
	if (error) {
		free(extent);
		return from_errno(error);
	}
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = extent->device->ordinal},
	};

	pthread_mutex_lock(&sim_root.memory_lock);
	made = sim_handle_new(extent->device, &prop, extent, 1);
	if (made) {
		made->imported = true;
		*handle = made->value;
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	if (!made)
		extents_close(extent, 1);
	return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
							CUmemGenericAllocationHandle handle)
{
	CUresult result = sim_ready();
	struct sim_handle *found;

	if (result != CUDA_SUCCESS)
		return result;
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	found = sim_handle_find(handle);
	if (found)
		*prop = found->prop;
	pthread_mutex_unlock(&sim_root.memory_lock);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	CUresult result = sim_ready();
	struct sim_mapping *mapping;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	mapping = sim_va_find((CUdeviceptr)(uintptr_t)addr);
	if (!mapping || mapping->kind != SIM_MAPPING_VMM) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		result = from_errno(sim_handle_retain(mapping->handle));
		if (result == CUDA_SUCCESS)
			*handle = mapping->handle->value;
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}
