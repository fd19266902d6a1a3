/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes do: parameters checked, copied and led to memory of the node's own. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "live.h"
#include "module.h"

#define MEM_OPS_MAX 256u

/* Pointers into the payload itself, after it was moved. */
static void settle(struct sim_payload *payload, CUgraphNodeType type)
{
	if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
		for (unsigned i = 0; i < payload->kernel->parameters; i++)
			payload->argument_pointers[i] =
				payload->arguments + sim_kernel_offset(payload->kernel, i);
		payload->params.kernel.kernelParams = payload->argument_pointers;
		payload->params.kernel.extra = NULL;
	} else if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
		payload->params.conditional.phGraph_out = payload->bodies;
	} else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
		payload->params.graph.graph = payload->bodies[0];
	}
}

static CUresult set_kernel(struct sim_payload *made, const CUDA_KERNEL_NODE_PARAMS_v3 *params)
{
	CUfunction function = params->func ? params->func : (CUfunction)(void *)params->kern;
	struct sim_dims dims = {
		{params->gridDimX, params->gridDimY, params->gridDimZ},
		{params->blockDimX, params->blockDimY, params->blockDimZ},
		params->sharedMemBytes,
	};
	CUresult result = sim_launch_check(function, &dims, &made->kernel);

	/* A graph refuses a function it does not know as a bad value. */
	if (result == CUDA_ERROR_INVALID_HANDLE)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = sim_launch_params(made->kernel, params->kernelParams, params->extra,
					   made->arguments);
	return result;
}

/* One side of a copy: something is named, and rows do not overlap. */
static bool side_valid(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array,
		       size_t pitch, size_t row, const CUDA_MEMCPY3D *shape)
{
	bool strided = shape->Height > 1 || shape->Depth > 1;

	switch (type) {
	case CU_MEMORYTYPE_ARRAY:
		return sim_live_is(array, SIM_LIVE_ARRAY);
	case CU_MEMORYTYPE_HOST:
		return host && (!strided || pitch >= row);
	case CU_MEMORYTYPE_DEVICE:
	case CU_MEMORYTYPE_UNIFIED:
		return device && (!strided || pitch >= row);
	default:
		return false;
	}
}

/* Whether the memory can be reached is found out when the node runs. */
static CUresult set_memcpy(const CUDA_MEMCPY3D *shape)
{
	if (shape->reserved0 || shape->reserved1 ||
	    !side_valid(shape->srcMemoryType, shape->srcHost, shape->srcDevice, shape->srcArray,
			shape->srcPitch, shape->srcXInBytes + shape->WidthInBytes, shape) ||
	    !side_valid(shape->dstMemoryType, shape->dstHost, shape->dstDevice, shape->dstArray,
			shape->dstPitch, shape->dstXInBytes + shape->WidthInBytes, shape))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult set_memset(const CUDA_MEMSET_NODE_PARAMS_v2 *params)
{
	if ((params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4) ||
	    !params->dst || params->dst % params->elementSize ||
	    (params->height > 1 && params->pitch < params->width * params->elementSize))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult set_event(CUevent handle)
{
	const struct sim_event *event = (const struct sim_event *)handle;

	return event && event->magic == SIM_EVENT_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_child(struct sim_payload *made, const CUDA_CHILD_GRAPH_NODE_PARAMS *params,
			  CUgraph graph)
{
	if (!sim_live_is(params->graph, SIM_LIVE_GRAPH) || params->graph == graph)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
		if (params->graph->owner)
			return CUDA_ERROR_INVALID_VALUE;
		made->bodies[0] = params->graph;
	} else {
		made->bodies[0] = sim_graph_clone(params->graph);
	}
	made->body_count = made->bodies[0] ? 1 : 0;
	return made->bodies[0] ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_alloc(struct sim_payload *made, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!params->bytesize || params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    params->poolProps.location.id != context->device->ordinal ||
	    (params->accessDescCount && !params->accessDescs))
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_graph_memory_new(context, params->bytesize, &made->memory);
	if (result != CUDA_SUCCESS)
		return result;
	params->dptr = made->memory->address;
	made->params.alloc = *params;
	/* Every simulated device reaches all memory: the list need not be kept. */
	made->params.alloc.accessDescs = NULL;
	made->params.alloc.accessDescCount = 0;
	return CUDA_SUCCESS;
}

static CUresult set_free(struct sim_payload *made, CUdeviceptr address)
{
	made->memory = sim_graph_memory_at(address);
	if (!made->memory)
		return CUDA_ERROR_INVALID_VALUE;
	made->memory->users++;
	return CUDA_SUCCESS;
}

static CUresult set_mem_ops(struct sim_payload *made,
			    const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *params)
{
	size_t bytes = params->count * sizeof(*params->paramArray);

	if (!params->count || params->count > MEM_OPS_MAX || !params->paramArray || params->flags)
		return CUDA_ERROR_INVALID_VALUE;
	made->params.memOp.paramArray = malloc(bytes);
	if (!made->params.memOp.paramArray)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(made->params.memOp.paramArray, params->paramArray, bytes);
	return CUDA_SUCCESS;
}

/* A handle names its graph, and its place among the graph's values, from 1. */
static CUresult set_conditional(struct sim_payload *made,
				const CUDA_CONDITIONAL_NODE_PARAMS *params, CUgraph graph)
{
	unsigned place = (unsigned)params->handle, most = 1;

	if (params->handle >> 32 != graph->id || !place || place > graph->conditional_count)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->type == CU_GRAPH_COND_TYPE_IF)
		most = 2;
	else if (params->type == CU_GRAPH_COND_TYPE_SWITCH)
		most = SIM_GRAPH_BODIES;
	else if (params->type != CU_GRAPH_COND_TYPE_WHILE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!params->size || params->size > most)
		return CUDA_ERROR_INVALID_VALUE;
	/* No simulated kernel sets a condition: a loop once entered would not end. */
	if (params->type == CU_GRAPH_COND_TYPE_WHILE && graph->conditional_values[place - 1])
		return CUDA_ERROR_NOT_SUPPORTED;
	for (unsigned i = 0; i < params->size; i++) {
		made->bodies[i] = sim_graph_new();
		if (!made->bodies[i])
			return CUDA_ERROR_OUT_OF_MEMORY;
		made->body_count++;
	}
	return CUDA_SUCCESS;
}

CUresult sim_payload_set(struct sim_payload *payload, CUgraphNodeType type,
			 CUgraphNodeParams *params, CUgraph graph)
{
	struct sim_payload made = {.attributes = payload->attributes};
	CUresult result = CUDA_SUCCESS;

	if (params)
		made.params = *params;
	made.params.type = type;
	switch (type) {
	case CU_GRAPH_NODE_TYPE_EMPTY:
		break;
	case CU_GRAPH_NODE_TYPE_KERNEL:
		result = set_kernel(&made, &params->kernel);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		result = set_memcpy(&params->memcpy.copyParams);
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		result = set_memset(&params->memset);
		break;
	case CU_GRAPH_NODE_TYPE_HOST:
		result = params->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		result = set_child(&made, &params->graph, graph);
		break;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		result = set_event(params->eventWait.event);
		break;
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		result = set_event(params->eventRecord.event);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		result = set_alloc(&made, &params->alloc);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		result = set_free(&made, params->free.dptr);
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		made.params.memOp.paramArray = NULL;
		result = set_mem_ops(&made, &params->memOp);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		result = set_conditional(&made, &params->conditional, graph);
		break;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	made.attributes = NULL;
	if (result != CUDA_SUCCESS) {
		sim_payload_free(&made);
		return result;
	}
	made.attributes = payload->attributes;
	payload->attributes = NULL;
	sim_payload_free(payload);
	*payload = made;
	settle(payload, type);
	if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		params->conditional.phGraph_out = payload->bodies;
	return CUDA_SUCCESS;
}

CUresult sim_payload_clone(struct sim_payload *to, const struct sim_payload *from,
			   CUgraphNode owner)
{
	struct sim_payload made = *from;
	CUgraphNodeType type = from->params.type;

	made.attributes = NULL;
	made.body_count = 0;
	if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
		made.params.memOp.paramArray = NULL;
		if (set_mem_ops(&made, &from->params.memOp) != CUDA_SUCCESS)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (made.memory)
		made.memory->users++;
	if (from->attributes) {
		size_t bytes = CU_LAUNCH_ATTRIBUTE_MAX * sizeof(*from->attributes);

		made.attributes = malloc(bytes);
		if (!made.attributes)
			goto fail;
		memcpy(made.attributes, from->attributes, bytes);
	}
	for (unsigned i = 0; i < from->body_count; i++) {
		made.bodies[i] = sim_graph_clone(from->bodies[i]);
		if (!made.bodies[i])
			goto fail;
		made.bodies[i]->owner = owner;
		made.body_count++;
	}
	*to = made;
	settle(to, type);
	return CUDA_SUCCESS;
fail:
	sim_payload_free(&made);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_payload_free(struct sim_payload *payload)
{
	for (unsigned i = 0; i < payload->body_count; i++)
		sim_graph_free(payload->bodies[i]);
	if (payload->params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
		free(payload->params.memOp.paramArray);
	if (payload->memory)
		sim_graph_memory_put(payload->memory);
	free(payload->attributes);
	memset(payload, 0, sizeof(*payload));
}
