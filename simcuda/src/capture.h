/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. A captured stream has the set of nodes that its next node will
 * depend on; other streams join a capture by waiting for an event recorded in it.
 *
 * One lock, taken before sim_graph_lock and queue_lock, guards all captures.
 */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "graph_exec.h"
#include "sim.h"

static inline bool sim_capturing(struct sim_stream *stream)
{
	return __atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE) != NULL;
}

/* Work for the legacy stream would depend on a blocking stream of the context that
 * captures: IMPLICIT, and the capture is invalidated. Success for other streams. */
CUresult sim_capture_legacy_check(struct sim_stream *stream);

CUresult sim_capture_kernel(struct sim_stream *stream, CUfunction function,
			    const struct sim_dims *dims, const struct sim_kernel *kernel,
			    const void *params);
/* A launch of an instantiated graph becomes a child graph. */
CUresult sim_capture_launch(struct sim_stream *stream, CUgraphExec exec);

/* ---- between capture.c and capture_nodes.c; the lock held -------------------- */

struct sim_frontier {
	size_t count;
	CUgraphNode *nodes;
	CUgraphEdgeData *data;
};

struct sim_capture;

/* A stream that takes part; stream->capture leads here. */
struct sim_captured {
	struct sim_capture *capture;
	struct sim_stream *stream;
	struct sim_frontier frontier;
	struct sim_captured *next;
};

/* Where an event recorded in the capture stands. */
struct sim_captured_event {
	struct sim_event *event;
	struct sim_frontier frontier;
	struct sim_captured_event *next;
};

struct sim_capture {
	uint64_t id; /* event->capture_node holds it, as a pointer */
	CUstreamCaptureMode mode;
	pthread_t thread; /* that began it */
	bool invalid;
	bool own_graph; /* made by the capture: freed when it fails */
	CUgraph graph;
	struct sim_stream *origin;
	struct sim_captured *streams;
	struct sim_captured_event *events;
	/* Nodes that the caller took out of a frontier on purpose: need no joining. */
	struct sim_frontier released;
	struct sim_capture *next;
};

extern pthread_mutex_t sim_capture_lock;
extern struct sim_capture *sim_captures;

struct sim_captured *sim_captured_of(struct sim_stream *stream);
struct sim_capture *sim_capture_by_id(const void *id);
/* Makes the stream part of the capture. NULL: no memory. */
struct sim_captured *sim_capture_join(struct sim_capture *capture, struct sim_stream *stream);
void sim_capture_invalidate(struct sim_capture *capture);

/* 0 or -ENOMEM. The union, without doubles. */
int sim_frontier_add(struct sim_frontier *frontier, const CUgraphNode *nodes,
		     const CUgraphEdgeData *data, size_t count);
void sim_frontier_clear(struct sim_frontier *frontier);

#endif
