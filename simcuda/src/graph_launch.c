/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of instantiated graphs: their nodes, enqueued in order. */
#include <errno.h>
#include <stdlib.h>

#include "capture.h"
#include "graph_exec.h"
#include "graph_nodes.h"
#include "live.h"
#include "surface.h"

static CUresult enqueue_all(struct sim_stream *stream, CUgraphNode *order, size_t count);

static CUresult enqueue_graph(struct sim_stream *stream, CUgraph graph)
{
	CUgraphNode *order = calloc(graph->count + 1, sizeof(CUgraphNode));
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (order) {
		int failed = sim_graph_order(graph, order);

		if (failed == -ELOOP)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (!failed)
			result = enqueue_all(stream, order, graph->count);
	}
	free(order);
	return result;
}

/* The value is the one each launch begins with: nothing in simcuda changes it. */
static CUresult enqueue_conditional(struct sim_stream *stream, CUgraphNode node)
{
	const CUDA_CONDITIONAL_NODE_PARAMS *params = &node->payload.params.conditional;
	unsigned value = node->graph->conditional_values[(unsigned)params->handle - 1];
	unsigned body = value;

	if (params->type == CU_GRAPH_COND_TYPE_IF)
		body = value ? 0 : 1;
	else if (params->type == CU_GRAPH_COND_TYPE_WHILE)
		return CUDA_SUCCESS;
	if (body >= node->payload.body_count)
		return CUDA_SUCCESS;
	return enqueue_graph(stream, node->payload.bodies[body]);
}

static CUresult enqueue_node(struct sim_stream *stream, CUgraphNode node)
{
	struct sim_payload *payload = &node->payload;
	struct sim_copy copy;
	struct sim_set set;

	if (node->disabled)
		return CUDA_SUCCESS;
	switch (node->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return sim_kernel_enqueue(stream, payload->kernel, payload->arguments);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		sim_copy_from_3d(&copy, &payload->params.memcpy.copyParams);
		return sim_copy_enqueue(stream, &copy, false);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		sim_set_from_params(&set, &payload->params.memset);
		return sim_set_enqueue(stream, &set);
	case CU_GRAPH_NODE_TYPE_HOST:
		return sim_host_func_enqueue(stream, payload->params.host.fn,
					     payload->params.host.userData);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return enqueue_graph(stream, payload->bodies[0]);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return sim_wait_enqueue(stream,
					(struct sim_event *)payload->params.eventWait.event);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return sim_record_enqueue(stream,
					  (struct sim_event *)payload->params.eventRecord.event);
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return sim_mem_ops_enqueue(stream, payload->params.memOp.paramArray,
					   payload->params.memOp.count);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		payload->memory->handed_out = true;
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		payload->memory->handed_out = false;
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return enqueue_conditional(stream, node);
	default:
		return CUDA_SUCCESS;
	}
}

static CUresult enqueue_all(struct sim_stream *stream, CUgraphNode *order, size_t count)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = enqueue_node(stream, order[i]);
	return result;
}

/* Allocation nodes hold their memory from the first launch until the exec is gone. */
static void reserve(CUgraphExec exec, struct sim_device *device)
{
	if (exec->reserved_on)
		return;
	for (size_t i = 0; i < exec->count; i++)
		if (exec->order[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			exec->reserved_bytes += exec->order[i]->payload.memory->bytes;
	exec->reserved_on = device;
	sim_graph_memory_reserve(device, exec->reserved_bytes);
}

/* sim_graph_lock. */
static CUresult launch(CUgraphExec exec, struct sim_stream *stream)
{
	CUresult result = CUDA_SUCCESS;

	if (exec->finished)
		result = sim_wait_enqueue(stream, (struct sim_event *)exec->finished);
	else
		result = cuEventCreate(&exec->finished, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS)
		return result;
	reserve(exec, stream->context->device);
	result = enqueue_all(stream, exec->order, exec->count);
	if (result == CUDA_SUCCESS)
		result = sim_record_enqueue(stream, (struct sim_event *)exec->finished);
	return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return sim_capture_launch(stream, exec);
	pthread_mutex_lock(&sim_graph_lock);
	if (!sim_live_is(exec, SIM_LIVE_EXEC))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return sim_graph_leave(launch(exec, stream));
}

/* Nothing is to be prepared: an exec is ready to run as it is. */
CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return sim_capture_refuse(stream);
	return sim_live_is(exec, SIM_LIVE_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
