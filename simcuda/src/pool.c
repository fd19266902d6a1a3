/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools: their attributes, and which one a device uses. They keep nothing in
 * reserve, they count. */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "pool.h"

#define HANDLE_TYPES (unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

struct sim_pools {
	struct sim_pool standard[SIM_DEVICES_MAX];
	struct sim_pool *current[SIM_DEVICES_MAX];
	struct sim_pool *spare;
};

static void lock(void)
{
	pthread_mutex_lock(&sim_root.memory_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&sim_root.memory_lock);
}

static void pool_init(struct sim_pool *pool, struct sim_device *device, const CUmemPoolProps *props)
{
	memset(pool, 0, sizeof(*pool));
	pool->magic = POOL_MAGIC;
	pool->device = device;
	pool->props = *props;
	for (int i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	pool->access[device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* memory_lock held. NULL: no memory. */
static struct sim_pools *pools(void)
{
	struct sim_pools *made;

	if (sim_root.pools)
		return sim_root.pools;
	made = calloc(1, sizeof(*made));
	for (int i = 0; made && i < sim_root.device_count; i++) {
		CUmemPoolProps props = {
			.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = i},
		};

		pool_init(&made->standard[i], &sim_root.devices[i], &props);
		made->standard[i].standard = true;
		made->current[i] = &made->standard[i];
	}
	sim_root.pools = made;
	return made;
}

struct sim_pool *sim_pool_get(CUmemoryPool handle)
{
	struct sim_pool *pool = (struct sim_pool *)handle;

	return pool && pool->magic == POOL_MAGIC ? pool : NULL;
}

struct sim_pool *sim_pool_current(struct sim_device *device)
{
	return pools() ? pools()->current[device->ordinal] : NULL;
}

/* ---- pools ------------------------------------------------------------------------ */

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	CUresult result = sim_ready();
	struct sim_pool *made = NULL;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    poolProps->handleTypes & ~HANDLE_TYPES)
		return CUDA_ERROR_INVALID_VALUE;
	if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!sim_device(poolProps->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	lock();
	if (pools()) {
		made = pools()->spare;
		if (made)
			pools()->spare = made->next;
		else
			made = malloc(sizeof(*made));
	}
	if (made)
		pool_init(made, sim_device(poolProps->location.id), poolProps);
	unlock();
	*pool = (CUmemoryPool)made;
	return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void forget(struct sim_pool *pool)
{
	struct sim_mapping *mapping;

	for (mapping = sim_root.va->mappings; mapping; mapping = mapping->next) {
		if (mapping->pool == pool)
			mapping->pool = NULL;
		for (struct sim_block *block = mapping->blocks; block; block = block->next)
			if (block->pool == pool)
				block->pool = NULL;
	}
}

SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct sim_pool *found;
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	lock();
	found = sim_pool_get(pool);
	if (!found || found->standard) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		/* What was allocated from it stays until it is freed. */
		forget(found);
		if (pools()->current[found->device->ordinal] == found)
			pools()->current[found->device->ordinal] =
				&pools()->standard[found->device->ordinal];
		found->magic = 0;
		found->next = pools()->spare;
		pools()->spare = found;
	}
	unlock();
	return result;
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	CUresult result = sim_ready();

	(void)minBytesToKeep;
	if (result != CUDA_SUCCESS)
		return result;
	return sim_pool_get(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult attribute_set(struct sim_pool *pool, CUmemPool_attribute attr, const void *value)
{
	int reuse = (int)attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;

	switch (attr) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[reuse] = *(const int *)value != 0;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->release_threshold = *(const cuuint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		/* A high-water mark can only be reset. */
		if (*(const cuuint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		pool->used_high = pool->used;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult attribute_get(const struct sim_pool *pool, CUmemPool_attribute attr, void *value)
{
	int reuse = (int)attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;

	switch (attr) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = pool->reuse[reuse];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = pool->release_threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = pool->used_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
		*(CUmemAllocationType *)value = pool->props.allocType;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
		*(CUmemAllocationHandleType *)value = pool->props.handleTypes;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_LOCATION_ID:
		*(int *)value = pool->props.location.id;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_LOCATION_TYPE:
		*(CUmemLocationType *)value = pool->props.location.type;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
		*(cuuint64_t *)value = pool->props.maxSize;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
		*(int *)value = 0;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	lock();
	result = sim_pool_get(pool) && value ? attribute_set(sim_pool_get(pool), attr, value)
					     : CUDA_ERROR_INVALID_VALUE;
	unlock();
	return result;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	lock();
	result = sim_pool_get(pool) && value ? attribute_get(sim_pool_get(pool), attr, value)
					     : CUDA_ERROR_INVALID_VALUE;
	unlock();
	return result;
}

SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	CUresult result = sim_ready();
	struct sim_pool *found;

	if (result != CUDA_SUCCESS)
		return result;
	lock();
	found = sim_pool_get(pool);
	if (!found || !map || !count)
		result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (!sim_device(map[i].location.id))
			result = CUDA_ERROR_INVALID_DEVICE;
		/* The device that the memory is on cannot lose it. */
		else if (map[i].location.id == found->device->ordinal &&
			 map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			result = CUDA_ERROR_INVALID_DEVICE;
		else
			found->access[map[i].location.id] = (uint8_t)map[i].flags;
	}
	unlock();
	return result;
}

SIM_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool,
				    CUmemLocation *location)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !sim_pool_get(memPool))
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	lock();
	*flags = (CUmemAccess_flags)sim_pool_get(memPool)->access[location->id];
	unlock();
	return CUDA_SUCCESS;
}

/* ---- a device's pools --------------------------------------------------------------- */

static CUresult device_pool(CUmemoryPool *pool, CUdevice dev, bool standard)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	lock();
	if (!pools())
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		*pool = (CUmemoryPool)(standard ? &pools()->standard[dev] : pools()->current[dev]);
	unlock();
	return result;
}

static CUresult device_pool_set(CUdevice dev, CUmemoryPool pool)
{
	CUresult result = sim_ready();
	struct sim_pool *found;

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	lock();
	found = sim_pool_get(pool);
	if (!found || found->device->ordinal != dev || !pools())
		result = CUDA_ERROR_INVALID_VALUE;
	else
		pools()->current[dev] = found;
	unlock();
	return result;
}

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
	return device_pool(pool_out, dev, true);
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	return device_pool(pool, dev, false);
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	return device_pool_set(dev, pool);
}

static CUresult location_check(const CUmemLocation *location, CUmemAllocationType type)
{
	CUresult ready = sim_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (!location)
		return CUDA_ERROR_INVALID_VALUE;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
			       type == CU_MEM_ALLOCATION_TYPE_PINNED
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
					CUmemAllocationType type)
{
	CUresult result = location_check(location, type);

	return result == CUDA_SUCCESS ? device_pool(pool_out, location->id, true) : result;
}

SIM_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
				 CUmemAllocationType type)
{
	CUresult result = location_check(location, type);

	return result == CUDA_SUCCESS ? device_pool(pool, location->id, false) : result;
}

SIM_API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
				 CUmemoryPool pool)
{
	CUresult result = location_check(location, type);

	return result == CUDA_SUCCESS ? device_pool_set(location->id, pool) : result;
}
