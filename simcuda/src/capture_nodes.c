/* SPDX-License-Identifier: Apache-2.0 */
/* What calls on a capturing stream become: nodes, and joins of other streams. */
#include <stdlib.h>

#include "capture.h"
#include "live.h"

/* The stream's part of a capture that is still good. The lock stays taken either way. */
static CUresult enter(struct sim_stream *stream, struct sim_captured **captured)
{
	pthread_mutex_lock(&sim_capture_lock);
	*captured = sim_captured_of(stream);
	if (!*captured)
		return CUDA_ERROR_ILLEGAL_STATE;
	return (*captured)->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static CUresult leave(CUresult result)
{
	pthread_mutex_unlock(&sim_capture_lock);
	return result;
}

/* Appends a node behind the stream's frontier; it is the frontier then. */
static CUresult append(struct sim_captured *captured, CUgraphNodeParams *params)
{
	struct sim_capture *capture = captured->capture;
	struct sim_frontier *frontier = &captured->frontier;
	CUgraphNode node;
	CUresult result;

	pthread_mutex_lock(&sim_graph_lock);
	if (!sim_live_is(capture->graph, SIM_LIVE_GRAPH))
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else
		result = sim_node_add(capture->graph, params->type, params, frontier->nodes,
				      frontier->data, frontier->count, &node);
	sim_graph_unlock();
	if (result == CUDA_SUCCESS) {
		frontier->count = 0;
		if (sim_frontier_add(frontier, &node, NULL, 1))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result != CUDA_SUCCESS)
		sim_capture_invalidate(capture);
	return result;
}

static CUresult capture_node(struct sim_stream *stream, CUgraphNodeParams *params)
{
	struct sim_captured *captured;
	CUresult result = enter(stream, &captured);

	return leave(result == CUDA_SUCCESS ? append(captured, params) : result);
}

CUresult sim_capture_kernel(struct sim_stream *stream, CUfunction function,
			    const struct sim_dims *dims, const struct sim_kernel *kernel,
			    const void *params)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
	size_t bytes = sim_kernel_offset(kernel, kernel->parameters);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)params,
			 CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};

	any.kernel.func = function;
	any.kernel.gridDimX = dims->grid[0];
	any.kernel.gridDimY = dims->grid[1];
	any.kernel.gridDimZ = dims->grid[2];
	any.kernel.blockDimX = dims->block[0];
	any.kernel.blockDimY = dims->block[1];
	any.kernel.blockDimZ = dims->block[2];
	any.kernel.sharedMemBytes = dims->shared;
	any.kernel.extra = extra;
	return capture_node(stream, &any);
}

CUresult sim_capture_launch(struct sim_stream *stream, CUgraphExec exec)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_GRAPH};

	if (!sim_live_is(exec, SIM_LIVE_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	any.graph.graph = exec->graph;
	return capture_node(stream, &any);
}

CUresult sim_capture_copy(struct sim_stream *stream, const struct sim_copy *copy)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};

	sim_copy_to_3d(&any.memcpy.copyParams, copy);
	return capture_node(stream, &any);
}

CUresult sim_capture_set(struct sim_stream *stream, const struct sim_set *set)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMSET};

	any.memset.dst = set->address;
	any.memset.pitch = set->pitch;
	any.memset.value = set->value;
	any.memset.elementSize = set->element;
	any.memset.width = set->width;
	any.memset.height = set->height;
	return capture_node(stream, &any);
}

CUresult sim_capture_host(struct sim_stream *stream, CUhostFn function, void *user_data)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_HOST};

	any.host.fn = function;
	any.host.userData = user_data;
	return capture_node(stream, &any);
}

CUresult sim_capture_mem_ops(struct sim_stream *stream, const CUstreamBatchMemOpParams *ops,
			     unsigned count)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};

	any.memOp.count = count;
	any.memOp.paramArray = (CUstreamBatchMemOpParams *)(uintptr_t)ops;
	return capture_node(stream, &any);
}

CUresult sim_capture_alloc(struct sim_stream *stream, size_t bytes, CUdeviceptr *address)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
	CUresult result;

	any.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	any.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	any.alloc.poolProps.location.id = stream->context->device->ordinal;
	any.alloc.bytesize = bytes;
	result = capture_node(stream, &any);
	if (result == CUDA_SUCCESS)
		*address = any.alloc.dptr;
	return result;
}

CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};

	any.free.dptr = address;
	return capture_node(stream, &any);
}

/* An event recorded in a capture stands for the stream's frontier, unless the caller
 * wants it recorded anew at each launch of the graph. */
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event, unsigned flags)
{
	struct sim_captured *captured;
	struct sim_captured_event *at;
	CUresult result = enter(stream, &captured);

	if (result != CUDA_SUCCESS)
		return leave(result);
	if (flags & CU_EVENT_RECORD_EXTERNAL) {
		CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD};

		any.eventRecord.event = (CUevent)event;
		return leave(append(captured, &any));
	}
	for (at = captured->capture->events; at && at->event != event; at = at->next)
		;
	if (!at) {
		at = calloc(1, sizeof(*at));
		if (!at)
			return leave(CUDA_ERROR_OUT_OF_MEMORY);
		at->event = event;
		at->next = captured->capture->events;
		captured->capture->events = at;
	}
	at->frontier.count = 0;
	if (sim_frontier_add(&at->frontier, captured->frontier.nodes, captured->frontier.data,
			     captured->frontier.count))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	pthread_mutex_lock(&sim_root.queue_lock);
	event->capture_node = (void *)(uintptr_t)captured->capture->id;
	pthread_mutex_unlock(&sim_root.queue_lock);
	return leave(CUDA_SUCCESS);
}

/* The capture that the event was recorded in, and where. sim_capture_lock. */
static struct sim_captured_event *captured_event(struct sim_event *event,
						 struct sim_capture **capture)
{
	*capture = event->capture_node ? sim_capture_by_id(event->capture_node) : NULL;
	for (struct sim_captured_event *at = *capture ? (*capture)->events : NULL; at;
	     at = at->next)
		if (at->event == event)
			return at;
	return NULL;
}

CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags)
{
	struct sim_capture *capture;
	struct sim_captured_event *recorded;
	struct sim_captured *captured;

	pthread_mutex_lock(&sim_capture_lock);
	captured = sim_captured_of(stream);
	recorded = captured_event(event, &capture);
	if (captured && captured->capture->invalid)
		return leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	if (captured && (flags & CU_EVENT_WAIT_EXTERNAL)) {
		CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT};

		any.eventWait.event = (CUevent)event;
		return leave(append(captured, &any));
	}
	if (!recorded) {
		/* Recorded outside, or in a capture that has ended. */
		if (!captured)
			return leave(CUDA_ERROR_CAPTURED_EVENT);
		sim_capture_invalidate(captured->capture);
		return leave(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	}
	if (capture->invalid)
		return leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	if (captured && captured->capture != capture) {
		sim_capture_invalidate(captured->capture);
		sim_capture_invalidate(capture);
		return leave(CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	if (stream->legacy) {
		sim_capture_invalidate(capture);
		return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	}
	if (!captured)
		captured = sim_capture_join(capture, stream);
	if (!captured || sim_frontier_add(&captured->frontier, recorded->frontier.nodes,
					  recorded->frontier.data, recorded->frontier.count))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	return leave(CUDA_SUCCESS);
}

/* A stream of the context that takes part in any capture; NULL: none does. */
static struct sim_stream *captured_stream_of(const struct sim_context *context)
{
	struct sim_stream *found = NULL;

	pthread_mutex_lock(&sim_capture_lock);
	for (struct sim_capture *capture = sim_captures; capture; capture = capture->next)
		for (struct sim_captured *at = capture->streams; at; at = at->next)
			if (at->stream->context == context)
				found = at->stream;
	pthread_mutex_unlock(&sim_capture_lock);
	return found;
}

void sim_capture_context_gone(struct sim_context *context)
{
	struct sim_stream *stream;

	while ((stream = captured_stream_of(context)))
		sim_capture_stream_gone(stream);
}
