/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of graph allocation nodes. It is backed from the moment the node is made,
 * and given back when the last graph with the node is gone; what was launched and not
 * freed by then belongs to the program, which frees it by its address.
 */
#include <stdlib.h>

#include "device_api.h"
#include "graph.h"

/* Of each device, as cuDeviceGetGraphMemAttribute counts them. sim_graph_lock. */
static struct {
	uint64_t current, high;
} reserved[SIM_DEVICES_MAX];

static struct listed {
	struct sim_graph_memory memory;
	struct listed *next;
} *first;

CUresult sim_graph_memory_new(struct sim_context *context, size_t bytes,
			      struct sim_graph_memory **memory)
{
	struct listed *made = calloc(1, sizeof(*made));
	CUresult result;

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = sim_memory_alloc(context, bytes, &made->memory.address);
	if (result != CUDA_SUCCESS) {
		free(made);
		return result;
	}
	made->memory.users = 1;
	made->memory.context = context;
	made->memory.bytes = (bytes + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
	made->next = first;
	first = made;
	*memory = &made->memory;
	return CUDA_SUCCESS;
}

void sim_graph_memory_put(struct sim_graph_memory *memory)
{
	if (--memory->users)
		return;
	for (struct listed **at = &first; *at; at = &(*at)->next) {
		if (&(*at)->memory == memory) {
			*at = (*at)->next;
			break;
		}
	}
	if (!memory->handed_out && !memory->context->destroyed)
		sim_memory_free(memory->context, memory->address);
	free(memory);
}

struct sim_graph_memory *sim_graph_memory_at(CUdeviceptr address)
{
	for (struct listed *at = first; at; at = at->next)
		if (at->memory.address == address)
			return &at->memory;
	return NULL;
}

void sim_graph_memory_reserve(struct sim_device *device, size_t bytes)
{
	uint64_t *current = &reserved[device->ordinal].current;

	*current += bytes;
	if (*current > reserved[device->ordinal].high)
		reserved[device->ordinal].high = *current;
}

void sim_graph_memory_unreserve(struct sim_device *device, size_t bytes)
{
	reserved[device->ordinal].current -= bytes;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_lock);
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = reserved[ordinal].current;
		break;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = reserved[ordinal].high;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	sim_graph_unlock();
	return result;
}

/* Only the high-water marks can be set, and only back to now. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || *(const cuuint64_t *)value ||
	    (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
	     attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_lock);
	reserved[ordinal].high = reserved[ordinal].current;
	sim_graph_unlock();
	return CUDA_SUCCESS;
}

/* Nothing is cached: there is nothing to trim. */
CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
	struct sim_device *device;

	return sim_device_get(ordinal, &device);
}
