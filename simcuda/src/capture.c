/* SPDX-License-Identifier: Apache-2.0 */
/* Captures: begun, ended, asked about, invalidated. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "live.h"
#include "surface.h"

pthread_mutex_t sim_capture_lock = PTHREAD_MUTEX_INITIALIZER;
struct sim_capture *sim_captures;

/* What this thread's own calls are measured against: cuThreadExchangeStreamCaptureMode. */
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

int sim_frontier_add(struct sim_frontier *frontier, const CUgraphNode *nodes,
		     const CUgraphEdgeData *data, size_t count)
{
	size_t most = frontier->count + count;
	CUgraphNode *grown = realloc(frontier->nodes, (most + 1) * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	frontier->nodes = grown;
	CUgraphEdgeData *grown_data = realloc(frontier->data, (most + 1) * sizeof(*grown_data));
	if (!grown_data)
		return -ENOMEM;
	frontier->data = grown_data;
	for (size_t i = 0; i < count; i++) {
		size_t at = 0;

		while (at < frontier->count && frontier->nodes[at] != nodes[i])
			at++;
		if (at < frontier->count)
			continue;
		frontier->nodes[at] = nodes[i];
		memset(&frontier->data[at], 0, sizeof(*frontier->data));
		if (data)
			frontier->data[at] = data[i];
		frontier->count++;
	}
	return 0;
}

void sim_frontier_clear(struct sim_frontier *frontier)
{
	free(frontier->nodes);
	free(frontier->data);
	*frontier = (struct sim_frontier){0};
}

struct sim_captured *sim_captured_of(struct sim_stream *stream)
{
	return stream->capture;
}

struct sim_capture *sim_capture_by_id(const void *id)
{
	for (struct sim_capture *at = sim_captures; at; at = at->next)
		if ((const void *)(uintptr_t)at->id == id)
			return at;
	return NULL;
}

void sim_capture_invalidate(struct sim_capture *capture)
{
	capture->invalid = true;
}

static void stream_mark(struct sim_stream *stream, struct sim_captured *captured)
{
	pthread_mutex_lock(&sim_root.queue_lock);
	__atomic_store_n(&stream->capture, captured, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&sim_root.queue_lock);
}

struct sim_captured *sim_capture_join(struct sim_capture *capture, struct sim_stream *stream)
{
	struct sim_captured *captured = calloc(1, sizeof(*captured));

	if (!captured)
		return NULL;
	captured->capture = capture;
	captured->stream = stream;
	captured->next = capture->streams;
	capture->streams = captured;
	stream_mark(stream, captured);
	return captured;
}

/* The capture and its streams' parts of it. The graph is freed if it is the capture's. */
static void capture_free(struct sim_capture *capture, bool keep_graph)
{
	for (struct sim_capture **at = &sim_captures; *at; at = &(*at)->next) {
		if (*at == capture) {
			*at = capture->next;
			break;
		}
	}
	while (capture->streams) {
		struct sim_captured *gone = capture->streams;

		capture->streams = gone->next;
		stream_mark(gone->stream, NULL);
		sim_frontier_clear(&gone->frontier);
		free(gone);
	}
	while (capture->events) {
		struct sim_captured_event *gone = capture->events;

		capture->events = gone->next;
		sim_frontier_clear(&gone->frontier);
		free(gone);
	}
	sim_frontier_clear(&capture->released);
	if (capture->own_graph && !keep_graph) {
		pthread_mutex_lock(&sim_graph_lock);
		if (sim_live_is(capture->graph, SIM_LIVE_GRAPH))
			sim_graph_free(capture->graph);
		sim_graph_unlock();
	}
	free(capture);
}

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, CUgraph graph,
		      const CUgraphNode *dependencies, const CUgraphEdgeData *data, size_t count)
{
	struct sim_stream *stream;
	struct sim_capture *capture;
	struct sim_captured *captured;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	for (size_t i = 0; i < count; i++)
		if (!sim_live_is(dependencies[i], SIM_LIVE_NODE) || dependencies[i]->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_capture_lock);
	if (stream->capture) {
		free(capture);
		pthread_mutex_unlock(&sim_capture_lock);
		return CUDA_ERROR_ILLEGAL_STATE;
	}
	*capture = (struct sim_capture){
		.id = sim_next_id(),
		.mode = mode,
		.thread = pthread_self(),
		.own_graph = !graph,
		.graph = graph,
		.origin = stream,
		.next = sim_captures,
	};
	sim_captures = capture;
	if (!graph) {
		pthread_mutex_lock(&sim_graph_lock);
		capture->graph = sim_graph_new();
		sim_graph_unlock();
	}
	captured = capture->graph ? sim_capture_join(capture, stream) : NULL;
	if (!captured || sim_frontier_add(&captured->frontier, dependencies, data, count)) {
		capture_free(capture, false);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&sim_capture_lock);
	return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	return begin(stream, mode, NULL, NULL, NULL, 0);
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
				     const CUgraphNode *dependencies, const CUgraphEdgeData *data,
				     size_t count, CUstreamCaptureMode mode)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_live_is(graph, SIM_LIVE_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	return begin(stream, mode, graph, dependencies, data, count);
}

/*
 * Marks what the nodes depend on, themselves included: 1 seen, 2 followed. Round by
 * round from the newest node to the oldest, because almost every edge leads to an
 * older one; a graph may be too deep to recurse.
 */
static void mark_ancestors(CUgraph graph, const struct sim_frontier *from)
{
	bool more = true;

	for (size_t i = 0; i < from->count; i++)
		if (sim_live_is(from->nodes[i], SIM_LIVE_NODE) && !from->nodes[i]->mark)
			from->nodes[i]->mark = 1;
	while (more) {
		more = false;
		for (size_t i = graph->count; i--;) {
			CUgraphNode node = graph->nodes[i];

			if (node->mark != 1)
				continue;
			node->mark = 2;
			for (size_t e = 0; e < node->edge_count; e++) {
				CUgraphNode older = node->edges[e].from;

				if (older->mark)
					continue;
				older->mark = 1;
				more = more || older->index > i;
			}
		}
	}
}

/* All that other streams captured must lead into what the origin waits for. */
static bool all_joined(struct sim_capture *capture)
{
	struct sim_captured *origin = sim_captured_of(capture->origin);
	CUgraph graph = capture->graph;
	bool joined = true;

	pthread_mutex_lock(&sim_graph_lock);
	for (size_t i = 0; i < graph->count; i++)
		graph->nodes[i]->mark = 0;
	mark_ancestors(graph, &origin->frontier);
	mark_ancestors(graph, &capture->released);
	for (struct sim_captured *at = capture->streams; at; at = at->next)
		for (size_t i = 0; i < at->frontier.count; i++)
			joined = joined && sim_live_is(at->frontier.nodes[i], SIM_LIVE_NODE) &&
				 at->frontier.nodes[i]->mark;
	sim_graph_unlock();
	return joined;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	struct sim_stream *stream;
	struct sim_captured *captured;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	pthread_mutex_lock(&sim_capture_lock);
	captured = sim_captured_of(stream);
	if (!captured) {
		result = CUDA_ERROR_ILLEGAL_STATE;
	} else if (captured->capture->origin != stream) {
		sim_capture_invalidate(captured->capture);
		result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	} else if (captured->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
		   !pthread_equal(captured->capture->thread, pthread_self())) {
		result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	} else {
		struct sim_capture *capture = captured->capture;

		if (capture->invalid || !sim_live_is(capture->graph, SIM_LIVE_GRAPH))
			result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		else if (!all_joined(capture))
			result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
		else
			*graph = capture->graph;
		capture_free(capture, result == CUDA_SUCCESS);
	}
	pthread_mutex_unlock(&sim_capture_lock);
	return result;
}

/* A blocking stream of the context, other than this legacy one, captures. */
static struct sim_capture *blocking_capture(struct sim_stream *stream)
{
	for (struct sim_capture *capture = sim_captures; stream->legacy && capture;
	     capture = capture->next)
		for (struct sim_captured *at = capture->streams; at; at = at->next)
			if (at->stream->context == stream->context &&
			    !(at->stream->flags & CU_STREAM_NON_BLOCKING) && !at->stream->legacy)
				return capture;
	return NULL;
}

CUresult sim_capture_legacy_check(struct sim_stream *stream)
{
	struct sim_capture *capture;

	if (!stream->legacy)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim_capture_lock);
	capture = blocking_capture(stream);
	if (capture)
		sim_capture_invalidate(capture);
	pthread_mutex_unlock(&sim_capture_lock);
	return capture ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_capture_lock);
	struct sim_captured *captured = sim_captured_of(stream);
	if (blocking_capture(stream))
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	else if (!captured)
		*status = CU_STREAM_CAPTURE_STATUS_NONE;
	else
		*status = captured->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
						     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	pthread_mutex_unlock(&sim_capture_lock);
	return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies,
				   const CUgraphEdgeData **data, size_t *count)
{
	struct sim_stream *stream;
	CUresult result = cuStreamIsCapturing(handle, status);

	if (result != CUDA_SUCCESS)
		return result;
	result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);
	if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return result;
	pthread_mutex_lock(&sim_capture_lock);
	struct sim_captured *captured = sim_captured_of(stream);
	if (captured) {
		if (id)
			*id = captured->capture->id;
		if (graph)
			*graph = captured->capture->graph;
		if (dependencies)
			*dependencies = captured->frontier.nodes;
		if (data)
			*data = captured->frontier.data;
		if (count)
			*count = captured->frontier.count;
	}
	pthread_mutex_unlock(&sim_capture_lock);
	return result;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, count);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

/* What SET takes out of the frontier is released: it need not be joined any more. */
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies,
					      const CUgraphEdgeData *data, size_t count,
					      unsigned int flags)
{
	struct sim_stream *stream;
	struct sim_captured *captured;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_capture_lock);
	captured = sim_captured_of(stream);
	if (!captured)
		result = CUDA_ERROR_ILLEGAL_STATE;
	else if (captured->capture->invalid)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		if (!sim_live_is(dependencies[i], SIM_LIVE_NODE) ||
		    dependencies[i]->graph != captured->capture->graph)
			result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
		if (sim_frontier_add(&captured->capture->released, captured->frontier.nodes, NULL,
				     captured->frontier.count))
			result = CUDA_ERROR_OUT_OF_MEMORY;
		else
			captured->frontier.count = 0;
	}
	if (result == CUDA_SUCCESS &&
	    sim_frontier_add(&captured->frontier, dependencies, data, count))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&sim_capture_lock);
	return result;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count,
					   unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(stream, dependencies, NULL, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode old = thread_mode;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

CUresult sim_capture_refuse(struct sim_stream *stream)
{
	pthread_mutex_lock(&sim_capture_lock);
	struct sim_captured *captured = sim_captured_of(stream);
	bool already = captured && captured->capture->invalid;
	if (captured)
		sim_capture_invalidate(captured->capture);
	pthread_mutex_unlock(&sim_capture_lock);
	return already ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		       : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* A call of this thread is unsafe for captures of mode GLOBAL begun anywhere, and for
 * its own that are not RELAXED; how far depends on the thread's mode too. */
static bool endangers(const struct sim_capture *capture)
{
	bool own = pthread_equal(capture->thread, pthread_self());

	if (capture->invalid || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
		return own || capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
	return thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && own;
}

CUresult sim_capture_unsafe_call(struct sim_context *context)
{
	CUresult result = CUDA_SUCCESS;

	(void)context;
	pthread_mutex_lock(&sim_capture_lock);
	for (struct sim_capture *at = sim_captures; at; at = at->next) {
		if (endangers(at)) {
			sim_capture_invalidate(at);
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&sim_capture_lock);
	return result;
}

void sim_capture_stream_gone(struct sim_stream *stream)
{
	pthread_mutex_lock(&sim_capture_lock);
	struct sim_captured *captured = sim_captured_of(stream);
	if (captured && captured->capture->origin == stream) {
		capture_free(captured->capture, false);
	} else if (captured) {
		struct sim_capture *capture = captured->capture;

		sim_capture_invalidate(capture);
		for (struct sim_captured **at = &capture->streams; *at; at = &(*at)->next) {
			if (*at == captured) {
				*at = captured->next;
				break;
			}
		}
		stream_mark(stream, NULL);
		sim_frontier_clear(&captured->frontier);
		free(captured);
	}
	pthread_mutex_unlock(&sim_capture_lock);
}
