/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and their threads. A stream gets its thread with its first op. Struct
 * sim_stream and sim_event are never given back to malloc, so that looking at a
 * destroyed handle is safe; they are used again.
 */
#ifndef SIM_QUEUE_H
#define SIM_QUEUE_H

#include "sim.h"

struct sim_dependency {
	struct sim_dependency *next;
	struct sim_stream *stream; /* until it has completed `sequence`, or */
	uint64_t sequence;
	struct sim_fence *fence; /* until it is done */
};

/* As sim_enqueue, and returns when this op has ended: later ones are not waited for. */
CUresult sim_enqueue_and_wait(struct sim_stream *stream, struct sim_op *op);

/* NULL: no memory. The stream has one user, its handle. */
struct sim_stream *sim_stream_new(struct sim_context *context, unsigned flags, int priority);
/* The handle is gone; work already enqueued still runs. id: the stream's; nothing is
 * done when the struct is another stream's by now. */
void sim_stream_close(struct sim_stream *stream, uint64_t id);

/* Legacy NULL stream of the context / of the calling thread in the context. */
struct sim_stream *sim_stream_own(struct sim_context *context);

/* Takes all streams of a context down: work ends or is dropped, threads end. The
 * context must be marked destroyed or dead already. */
void sim_context_drain(struct sim_context *context);

/* event.c: its events are destroyed. */
void sim_context_events_gone(struct sim_context *context);

/* queue_lock held. */
void sim_fence_put(struct sim_fence *fence);

/* true inside a host function: API calls are not permitted there. */
extern _Thread_local bool sim_in_host_function;

#endif
