/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices reach which memory. Their page tables are one here, the host's, so a
 * kernel asks before it touches memory that another device has: mapped memory is for the
 * devices that were given access to it, plain memory for its own device, for contexts
 * with peer access to that, and for those whom its pool lets in. Copies need none of it.
 */
#include "alloc.h"
#include "pool.h"

#define PLAIN (1u << 31) /* beside the bits of devices */

static uint32_t bit(const struct sim_device *device)
{
	return 1u << device->ordinal;
}

void sim_reach_note(const struct sim_mapping *mapping)
{
	size_t first = (mapping->base - sim_va_base) >> SIM_PAGE_SHIFT;
	uint32_t reach = 0;

	if (mapping->kind == SIM_MAPPING_VMM) {
		for (int i = 0; i < SIM_DEVICES_MAX; i++)
			if (mapping->granted[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE)
				reach |= 1u << i;
	} else {
		reach = PLAIN | bit(mapping->device);
		/* Opened with the flag that lets the opener's device in. */
		if (mapping->kind == SIM_MAPPING_IPC)
			reach |= bit(mapping->context->device);
	}
	for (size_t i = first; i < first + mapping->pages; i++)
		atomic_store(&sim_root.va->reach[i], reach);
}

static bool pool_lets_in(const struct sim_device *device, CUdeviceptr address)
{
	struct sim_allocation found;
	bool may;

	pthread_mutex_lock(&sim_root.memory_lock);
	may = sim_allocation_find(address, &found) && *found.pool &&
	      (*found.pool)->access[device->ordinal] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
	pthread_mutex_unlock(&sim_root.memory_lock);
	return may;
}

bool sim_reaches(struct sim_context *context, CUdeviceptr address)
{
	uint32_t reach, may;

	/* Nobody's: an ordinary fault. */
	if (sim_va_access(address) == SIM_ACCESS_NONE)
		return true;
	reach = atomic_load(&sim_root.va->reach[(address - sim_va_base) >> SIM_PAGE_SHIFT]);
	may = bit(context->device);
	if (reach & PLAIN)
		may |= atomic_load(&context->peers);
	return (reach & may) || ((reach & PLAIN) && pool_lets_in(context->device, address));
}
