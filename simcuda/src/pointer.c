/* SPDX-License-Identifier: Apache-2.0 */
/* What an address is: pointer attributes. */
#include <string.h>

#include "alloc.h"
#include "handle.h"
#include "host.h"

/* One story about an address, whatever kind of memory it is. */
struct about {
	CUdeviceptr address;
	CUcontext context;
	CUmemorytype type;
	bool host_visible, managed, legacy_ipc, vmm, rdma;
	int ordinal;
	CUdeviceptr start;
	size_t bytes;
	CUdeviceptr mapping_start;
	size_t mapping_bytes;
	unsigned long long buffer_id;
	unsigned long long block_id;
	unsigned long long handle_types;
	unsigned access;
	void *pool;
	int *sync_memops;
};

static void about_device(struct about *about, const struct sim_allocation *found)
{
	const struct sim_mapping *mapping = found->mapping;

	about->type = CU_MEMORYTYPE_DEVICE;
	about->context = (CUcontext)mapping->context;
	about->ordinal = mapping->device->ordinal;
	about->start = found->base;
	about->bytes = found->bytes;
	about->mapping_start = mapping->base;
	about->mapping_bytes = mapping->pages * SIM_PAGE;
	about->buffer_id = found->buffer_id;
	about->block_id = mapping->buffer_id;
	about->pool = *found->pool;
	about->sync_memops = found->sync_memops;
	about->access = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	about->vmm = mapping->kind == SIM_MAPPING_VMM;
	about->legacy_ipc = !about->vmm && !about->pool;
	about->rdma = sim_root.config.rdma != SIM_RDMA_NONE &&
		      (!about->vmm || mapping->handle->prop.allocFlags.gpuDirectRDMACapable);
	if (about->vmm) {
		about->handle_types =
			mapping->handle->imported ? 0 : mapping->handle->prop.requestedHandleTypes;
		if (mapping->access != SIM_ACCESS_READ_WRITE)
			about->access = mapping->access == SIM_ACCESS_READ
						? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
						: CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
	}
}

static void about_host(struct about *about, struct sim_host_range *range)
{
	about->managed = range->kind == SIM_HOST_MANAGED;
	about->type = about->managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
	about->host_visible = true;
	about->context = (CUcontext)range->context;
	about->ordinal = range->context->device->ordinal;
	about->start = about->mapping_start = range->base;
	about->bytes = about->mapping_bytes = range->bytes;
	about->buffer_id = about->block_id = range->buffer_id;
	about->access = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	about->sync_memops = &range->sync_memops;
}

/* memory_lock held. false: an address that the driver does not know. */
static bool about_make(CUdeviceptr address, struct about *about)
{
	struct sim_host_range *range;
	struct sim_allocation found;

	memset(about, 0, sizeof(*about));
	about->address = address;
	if (sim_allocation_find(address, &found)) {
		about_device(about, &found);
		return true;
	}
	range = sim_host_find((uintptr_t)address);
	if (range)
		about_host(about, range);
	return range != NULL;
}

#define GIVE(type, value)                      \
	do {                                   \
		*(type *)data = (type)(value); \
		return CUDA_SUCCESS;           \
	} while (0)

static CUresult attribute(const struct about *about, CUpointer_attribute which, void *data)
{
	switch (which) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		/* Memory that was mapped belongs to no context. */
		if (about->vmm)
			return CUDA_ERROR_INVALID_VALUE;
		GIVE(CUcontext, about->context);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		GIVE(unsigned, about->type);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		GIVE(CUdeviceptr, about->address);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!about->host_visible)
			return CUDA_ERROR_INVALID_VALUE;
		GIVE(void *, (uintptr_t)about->address);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		GIVE(int, *about->sync_memops);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		GIVE(unsigned long long, about->buffer_id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		GIVE(unsigned char, about->managed);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		GIVE(int, about->ordinal);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		GIVE(unsigned char, about->legacy_ipc);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		GIVE(CUdeviceptr, about->start);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		GIVE(size_t, about->bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		GIVE(unsigned char, true);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		GIVE(unsigned long long, about->handle_types);
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		GIVE(unsigned char, about->rdma);
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		GIVE(unsigned, about->access);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		GIVE(void *, about->pool);
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		GIVE(size_t, about->mapping_bytes);
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		GIVE(CUdeviceptr, about->mapping_start);
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		GIVE(unsigned long long, about->block_id);
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		GIVE(unsigned char, false);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static size_t attribute_size(CUpointer_attribute which)
{
	switch (which) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return 4;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return 1;
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		return 16;
	default:
		return 8;
	}
}

SIM_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr ptr)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct about about;

	if (result != CUDA_SUCCESS)
		return result;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	result =
		about_make(ptr, &about) ? attribute(&about, which, data) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

/* Unlike the single call this one succeeds for any address: what there is not is 0. */
SIM_API CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
					void **data, CUdeviceptr ptr)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct about about;
	bool known;

	if (result != CUDA_SUCCESS)
		return result;
	if (!numAttributes || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	known = about_make(ptr, &about);
	for (unsigned i = 0; i < numAttributes && result == CUDA_SUCCESS; i++) {
		if (attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
		    attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE || !data[i]) {
			result = CUDA_ERROR_INVALID_VALUE;
			break;
		}
		memset(data[i], 0, attribute_size(attributes[i]));
		if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL && !known)
			*(int *)data[i] = -2; /* as a real driver says: no device */
		if (known)
			(void)attribute(&about, attributes[i], data[i]);
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}

SIM_API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute which,
				       CUdeviceptr ptr)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct about about;

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.memory_lock);
	if (!about_make(ptr, &about) || about.type != CU_MEMORYTYPE_DEVICE)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*about.sync_memops = *(const unsigned *)value != 0;
	pthread_mutex_unlock(&sim_root.memory_lock);
	return result;
}
