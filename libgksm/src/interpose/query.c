/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about an address. Arena memory is VMM memory in pages; programs asked for
 * cuMemAlloc memory and choose their transports by what they hear. So they hear one
 * story: an allocation of the requested size, readable and writable, of legacy kind,
 * whatever state its pages are in.
 */
#include <string.h>

#include "access.h"
#include "alloc.h"
#include "interpose/export.h"
#include "process.h"
#include "wrap.h"

static void put(void *data, const void *value, size_t bytes)
{
	memcpy(data, value, bytes);
}

static void put_int(void *data, int value)
{
	put(data, &value, sizeof(value));
}

static void put_u64(void *data, uint64_t value)
{
	put(data, &value, sizeof(value));
}

static CUresult real_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	return GKSM_REAL(cuPointerGetAttribute)(data, attribute, address);
}

/* How wide the driver's booleans are, only the driver knows; it answers such questions
 * for reserved addresses too. */
static void put_bool(void *data, bool value, CUpointer_attribute attribute, CUdeviceptr address)
{
	unsigned char bytes[sizeof(uint64_t)];
	size_t width = 1;

	memset(bytes, 0xee, sizeof(bytes));
	if (real_attribute(bytes, attribute, address) == CUDA_SUCCESS)
		while (width < sizeof(bytes) && bytes[width] != 0xee)
			width++;
	memset(data, 0, width);
	*(unsigned char *)data = value;
}

/* The allocation's share of the arena, as the driver would map plain memory. */
static size_t mapping_bytes(const struct gksm_allocation_info *info)
{
	return (info->bytes + GKSM_PAGE_SIZE - 1) / GKSM_PAGE_SIZE * GKSM_PAGE_SIZE;
}

/* CUDA_ERROR_NOT_SUPPORTED: not an attribute that we have to answer ourselves. */
static CUresult answer(void *data, CUpointer_attribute attribute, CUdeviceptr address,
		       const struct gksm_allocation_info *info)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		put(data, &info->context, sizeof(info->context));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		put_int(data, CU_MEMORYTYPE_DEVICE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		put_u64(data, address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		return CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		put_u64(data, info->buffer_id);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		put_int(data, info->device);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		put_u64(data, info->base);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		put_u64(data, info->bytes);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		put_u64(data, mapping_bytes(info));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		put_bool(data, true, attribute, address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		put_bool(data, info->rdma, attribute, address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		put_bool(data, false, attribute, address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		put_u64(data, 0);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		put_int(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/* Who asks for these is about to let a device of another kind at the memory. */
static bool means_rdma(CUpointer_attribute attribute)
{
	return attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS ||
	       attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
}

static CUresult attribute_of(struct gksm *process, void *data, CUpointer_attribute attribute,
			     CUdeviceptr address, const struct gksm_allocation_info *info)
{
	CUresult result;

	if (means_rdma(attribute)) {
		result = gksm_export_allocation(process, info);
		if (result != CUDA_SUCCESS)
			return result;
		return real_attribute(data, attribute, address);
	}
	result = answer(data, attribute, address, info);
	/* One of a newer driver. */
	return result == CUDA_ERROR_NOT_SUPPORTED ? real_attribute(data, attribute, address)
						  : result;
}

GKSM_WRAP(cuPointerGetAttribute)(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct gksm *process = gksm_process();
	struct gksm_allocation_info info;

	if (!process || !data || !gksm_is_ours(process, address))
		return real_attribute(data, attribute, address);
	if (!gksm_allocation_find(process, address, &info))
		return CUDA_ERROR_INVALID_VALUE;
	return attribute_of(process, data, attribute, address, &info);
}

/* Unlike the single question this one never fails for what does not apply: it leaves
 * a zero. */
GKSM_WRAP(cuPointerGetAttributes)(unsigned int count, CUpointer_attribute *attributes, void **data,
				  CUdeviceptr address)
{
	struct gksm *process = gksm_process();
	struct gksm_allocation_info info;

	if (!process || !count || !attributes || !data || !gksm_is_ours(process, address))
		return GKSM_REAL(cuPointerGetAttributes)(count, attributes, data, address);
	/* In the arena and not allocated: what the driver says of memory it never saw. */
	if (!gksm_allocation_find(process, address, &info))
		return GKSM_REAL(cuPointerGetAttributes)(count, attributes, data, 1);
	for (unsigned int i = 0; i < count; i++) {
		CUresult result;

		if (!data[i])
			return CUDA_ERROR_INVALID_VALUE;
		if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
			put_u64(data[i], 0);
			continue;
		}
		if (!means_rdma(attributes[i]) &&
		    answer(data[i], attributes[i], address, &info) == CUDA_SUCCESS)
			continue;
		if (means_rdma(attributes[i])) {
			result = gksm_export_allocation(process, &info);
			if (result != CUDA_SUCCESS)
				return result;
		}
		result = GKSM_REAL(cuPointerGetAttributes)(1, &attributes[i], &data[i], address);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

GKSM_WRAP(cuPointerSetAttribute)(const void *value, CUpointer_attribute attribute,
				 CUdeviceptr address)
{
	struct gksm *process = gksm_process();
	struct gksm_allocation_info info;
	CUresult result;

	if (!process || !gksm_is_ours(process, address))
		return GKSM_REAL(cuPointerSetAttribute)(value, attribute, address);
	if (!value || !gksm_allocation_find(process, address, &info))
		return CUDA_ERROR_INVALID_VALUE;
	if (means_rdma(attribute)) {
		result = gksm_export_allocation(process, &info);
		if (result != CUDA_SUCCESS)
			return result;
	}
	/* It holds for the allocation; the driver sees one in each page. */
	result = CUDA_SUCCESS;
	for (size_t at = 0; result == CUDA_SUCCESS && at < info.bytes; at += GKSM_PAGE_SIZE)
		result = GKSM_REAL(cuPointerSetAttribute)(value, attribute, info.base + at);
	return result;
}

GKSM_WRAP(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	struct gksm *process = gksm_process();
	struct gksm_allocation_info info;

	if (!process || !gksm_is_ours(process, address))
		return GKSM_REAL(cuMemGetAddressRange_v2)(base, bytes, address);
	if (!gksm_allocation_find(process, address, &info))
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = info.base;
	if (bytes)
		*bytes = info.bytes;
	return CUDA_SUCCESS;
}

/*
 * The calls of the VMM interface refuse plain memory, and so they refuse ours: a
 * handle of a page that is shared, or will be, must not get out, and rights and
 * mappings are not the program's to change.
 */
static bool not_vmm(CUdeviceptr address)
{
	struct gksm *process = gksm_process();

	return process && gksm_is_ours(process, address);
}

GKSM_WRAP(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *address)
{
	if (not_vmm((CUdeviceptr)(uintptr_t)address))
		return CUDA_ERROR_INVALID_VALUE;
	return GKSM_REAL(cuMemRetainAllocationHandle)(handle, address);
}

GKSM_WRAP(cuMemGetAccess)(unsigned long long *flags, const CUmemLocation *location,
			  CUdeviceptr address)
{
	if (not_vmm(address))
		return CUDA_ERROR_INVALID_VALUE;
	return GKSM_REAL(cuMemGetAccess)(flags, location, address);
}

GKSM_WRAP(cuMemSetAccess)(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *rights,
			  size_t count)
{
	if (not_vmm(address))
		return CUDA_ERROR_INVALID_VALUE;
	return GKSM_REAL(cuMemSetAccess)(address, bytes, rights, count);
}

GKSM_WRAP(cuMemUnmap)(CUdeviceptr address, size_t bytes)
{
	if (not_vmm(address))
		return CUDA_ERROR_INVALID_VALUE;
	return GKSM_REAL(cuMemUnmap)(address, bytes);
}

GKSM_WRAP(cuMemMap)(CUdeviceptr address, size_t bytes, size_t offset,
		    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	if (not_vmm(address))
		return CUDA_ERROR_INVALID_VALUE;
	return GKSM_REAL(cuMemMap)(address, bytes, offset, handle, flags);
}

GKSM_WRAP(cuMemAddressFree)(CUdeviceptr address, size_t bytes)
{
	if (not_vmm(address))
		return CUDA_ERROR_INVALID_VALUE;
	return GKSM_REAL(cuMemAddressFree)(address, bytes);
}

/* The place for what a process is to be told of free memory while others share: the
 * driver's own figure until then. */
GKSM_WRAP(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total_bytes)
{
	return GKSM_REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
}
