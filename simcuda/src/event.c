/* SPDX-License-Identifier: Apache-2.0 */
/* Events. Each record is a fence; the event stands for its last one. */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "queue.h"

#define FLAGS_KNOWN (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

struct record_op {
	struct sim_op op;
	struct sim_fence *fence;
};

static struct sim_event *spare_events; /* queue_lock; see queue.h */

static void lock(void)
{
	pthread_mutex_lock(&sim_root.queue_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&sim_root.queue_lock);
}

static CUresult event_get(CUevent handle, struct sim_event **event)
{
	CUresult ready = sim_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	*event = (struct sim_event *)handle;
	if (!handle || (*event)->magic != SIM_EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct sim_event *event;

	if (result != CUDA_SUCCESS)
		return result;
	if (!phEvent || Flags & ~(unsigned)FLAGS_KNOWN ||
	    ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	event = spare_events;
	if (event)
		spare_events = event->next;
	unlock();
	if (!event)
		event = malloc(sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(event, 0, sizeof(*event));
	event->context = context;
	event->flags = Flags;
	lock();
	event->magic = SIM_EVENT_MAGIC;
	event->next = context->events;
	context->events = event;
	unlock();
	*phEvent = (CUevent)event;
	return CUDA_SUCCESS;
}

/* queue_lock held; off its context's list. */
static void retire(struct sim_event *event)
{
	event->magic = 0;
	sim_fence_put(event->fence);
	event->fence = NULL;
	event->next = spare_events;
	spare_events = event;
}

static CUresult destroy(CUevent hEvent)
{
	struct sim_event *event, **link;
	CUresult result = event_get(hEvent, &event);

	if (result != CUDA_SUCCESS)
		return result;
	lock();
	for (link = &event->context->events; *link && *link != event;)
		link = &(*link)->next;
	if (*link == event)
		*link = event->next;
	retire(event);
	unlock();
	return CUDA_SUCCESS;
}

void sim_context_events_gone(struct sim_context *context)
{
	lock();
	while (context->events) {
		struct sim_event *event = context->events;

		context->events = event->next;
		retire(event);
	}
	unlock();
}

SIM_API CUresult cuEventDestroy(CUevent hEvent)
{
	return destroy(hEvent);
}

SIM_API CUresult cuEventDestroy_v2(CUevent hEvent)
{
	return destroy(hEvent);
}

static CUresult record_run(struct sim_op *op)
{
	struct record_op *record = (struct record_op *)op;

	lock();
	record->fence->done = true;
	record->fence->done_ns = sim_now_ns();
	pthread_cond_broadcast(&sim_root.progress);
	unlock();
	return CUDA_SUCCESS;
}

static void record_release(struct sim_op *op)
{
	struct record_op *record = (struct record_op *)op;

	/* Dropped without having run: those who wait must not wait for ever. */
	lock();
	if (!record->fence->done) {
		record->fence->done = true;
		pthread_cond_broadcast(&sim_root.progress);
	}
	sim_fence_put(record->fence);
	unlock();
	free(record);
}

CUresult sim_record_enqueue(struct sim_stream *stream, struct sim_event *event)
{
	struct record_op *record = calloc(1, sizeof(*record));
	struct sim_fence *fence = calloc(1, sizeof(*fence));

	if (!record || !fence) {
		free(record);
		free(fence);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	record->op.run = record_run;
	record->op.release = record_release;
	record->op.flags = SIM_OP_ALWAYS | SIM_OP_INLINE;
	record->fence = fence;
	fence->users = 2;
	lock();
	sim_fence_put(event->fence);
	event->fence = fence;
	event->capture_node = NULL;
	unlock();
	return sim_enqueue(stream, &record->op);
}

static CUresult record(CUevent hEvent, CUstream hStream, unsigned flags)
{
	struct sim_stream *stream;
	struct sim_event *event;
	CUresult result = event_get(hEvent, &event);

	if (result == CUDA_SUCCESS)
		result = sim_stream_get(hStream, false, &stream);
	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->context != stream->context)
		return CUDA_ERROR_INVALID_HANDLE;
	if (sim_capturing(stream))
		return sim_capture_record(stream, event, flags);
	if (flags)
		return CUDA_ERROR_ILLEGAL_STATE;
	return sim_record_enqueue(stream, event);
}

SIM_API CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
	return record(hEvent, hStream, 0);
}

SIM_API CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
	return record(hEvent, hStream, flags);
}

SIM_API CUresult cuEventQuery(CUevent hEvent)
{
	struct sim_event *event;
	CUresult result = event_get(hEvent, &event);

	if (result != CUDA_SUCCESS)
		return result;
	if (event->capture_node)
		return CUDA_ERROR_CAPTURED_EVENT;
	lock();
	result = !event->fence || event->fence->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
	unlock();
	if (sim_context_error(event->context) != CUDA_SUCCESS)
		return sim_context_error(event->context);
	return result;
}

SIM_API CUresult cuEventSynchronize(CUevent hEvent)
{
	struct sim_event *event;
	CUresult result = event_get(hEvent, &event);
	struct sim_fence *fence;

	if (result != CUDA_SUCCESS)
		return result;
	if (event->capture_node)
		return CUDA_ERROR_CAPTURED_EVENT;
	lock();
	fence = event->fence;
	if (fence) {
		fence->users++;
		while (!fence->done)
			pthread_cond_wait(&sim_root.progress, &sim_root.queue_lock);
		sim_fence_put(fence);
	}
	unlock();
	return sim_context_error(event->context);
}

static CUresult elapsed(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	struct sim_event *start, *end;
	CUresult result = event_get(hStart, &start);

	if (result == CUDA_SUCCESS)
		result = event_get(hEnd, &end);
	if (result != CUDA_SUCCESS)
		return result;
	if (!pMilliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
		return CUDA_ERROR_INVALID_HANDLE;
	lock();
	if (!start->fence || !end->fence)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (!start->fence->done || !end->fence->done)
		result = CUDA_ERROR_NOT_READY;
	else
		*pMilliseconds =
			(float)((double)(int64_t)(end->fence->done_ns - start->fence->done_ns) /
				1e6);
	unlock();
	return result;
}

SIM_API CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	return elapsed(pMilliseconds, hStart, hEnd);
}

SIM_API CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	return elapsed(pMilliseconds, hStart, hEnd);
}

/* ---- waiting in a stream ------------------------------------------------------- */

static CUresult nothing_run(struct sim_op *op)
{
	(void)op;
	return CUDA_SUCCESS;
}

static void nothing_release(struct sim_op *op)
{
	free(op);
}

CUresult sim_wait_enqueue(struct sim_stream *stream, struct sim_event *event)
{
	struct sim_op *op = calloc(1, sizeof(*op));
	struct sim_fence *fence;
	CUresult result;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	op->run = nothing_run;
	op->release = nothing_release;
	op->flags = SIM_OP_INLINE;
	lock();
	fence = event->fence;
	if (fence)
		fence->users++;
	unlock();
	if (!fence) {
		free(op);
		return CUDA_SUCCESS;
	}
	result = sim_enqueue_after(stream, op, fence);
	lock();
	sim_fence_put(fence);
	unlock();
	return result;
}

SIM_API CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
	struct sim_stream *stream;
	struct sim_event *event;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result == CUDA_SUCCESS)
		result = event_get(hEvent, &event);
	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capturing(stream) || event->capture_node)
		return sim_capture_wait(stream, event, Flags);
	return sim_wait_enqueue(stream, event);
}
