/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"

_Thread_local bool sim_in_host_function;

/* Structs to be used again; queue_lock. */
static struct sim_stream *spare_streams;

static void lock(void)
{
	pthread_mutex_lock(&sim_root.queue_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&sim_root.queue_lock);
}

void sim_fence_put(struct sim_fence *fence)
{
	if (fence && !--fence->users)
		free(fence);
}

/* queue_lock held. */
static void stream_put(struct sim_stream *stream)
{
	struct sim_stream **link = &stream->context->streams;

	if (--stream->users)
		return;
	while (*link && *link != stream)
		link = &(*link)->next;
	if (*link)
		*link = stream->next;
	pthread_cond_destroy(&stream->arrival);
	stream->magic = 0;
	stream->next = spare_streams;
	spare_streams = stream;
}

struct sim_stream *sim_stream_new(struct sim_context *context, unsigned flags, int priority)
{
	struct sim_stream *stream;
	pthread_condattr_t attributes;

	lock();
	stream = spare_streams;
	if (stream)
		spare_streams = stream->next;
	unlock();
	if (!stream)
		stream = malloc(sizeof(*stream));
	if (!stream)
		return NULL;
	memset(stream, 0, sizeof(*stream));
	pthread_condattr_init(&attributes);
	pthread_cond_init(&stream->arrival, &attributes);
	pthread_condattr_destroy(&attributes);
	stream->context = context;
	stream->id = sim_next_id();
	stream->flags = flags;
	stream->priority = priority;
	stream->users = 1;
	lock();
	stream->magic = SIM_STREAM_MAGIC;
	stream->next = context->streams;
	context->streams = stream;
	unlock();
	return stream;
}

static bool blocking(const struct sim_stream *stream)
{
	return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static void dependencies_drop(struct sim_op *op)
{
	while (op->dependencies) {
		struct sim_dependency *dependency = op->dependencies;

		op->dependencies = dependency->next;
		if (dependency->stream)
			stream_put(dependency->stream);
		sim_fence_put(dependency->fence);
		free(dependency);
	}
}

static bool dependencies_met(const struct sim_op *op)
{
	const struct sim_dependency *dependency;

	for (dependency = op->dependencies; dependency; dependency = dependency->next) {
		if (dependency->stream && dependency->stream->completed < dependency->sequence)
			return false;
		if (dependency->fence && !dependency->fence->done)
			return false;
	}
	return true;
}

static bool depend(struct sim_op *op, struct sim_stream *stream, struct sim_fence *fence)
{
	struct sim_dependency *dependency = calloc(1, sizeof(*dependency));

	if (!dependency)
		return false;
	if (stream) {
		stream->users++;
		dependency->stream = stream;
		dependency->sequence = stream->enqueued;
	}
	if (fence) {
		fence->users++;
		dependency->fence = fence;
	}
	dependency->next = op->dependencies;
	op->dependencies = dependency;
	return true;
}

/* The legacy stream and the blocking ones wait for each other. */
static bool depend_implicitly(struct sim_stream *stream, struct sim_op *op)
{
	struct sim_context *context = stream->context;

	if (!blocking(stream))
		return true;
	if (!stream->legacy) {
		struct sim_stream *legacy = context->legacy;

		return legacy->completed == legacy->enqueued || depend(op, legacy, NULL);
	}
	for (struct sim_stream *other = context->streams; other; other = other->next)
		if (other != stream && blocking(other) && other->completed != other->enqueued &&
		    !depend(op, other, NULL))
			return false;
	return true;
}

static bool context_over(struct sim_context *context)
{
	return atomic_load(&context->error) || atomic_load(&context->destroyed);
}

/* Runs without the lock. */
static void op_finish(struct sim_stream *stream, struct sim_op *op)
{
	struct sim_context *context = stream->context;
	CUresult result = CUDA_SUCCESS;

	if (!context_over(context) || (op->flags & SIM_OP_ALWAYS))
		result = op->run(op);
	if (result != CUDA_SUCCESS)
		sim_context_kill(context, result);
	op->release(op);
}

static void *stream_main(void *argument)
{
	struct sim_stream *stream = argument;
	struct sim_context *context = stream->context;

	sim_fault_thread_start();
	lock();
	for (;;) {
		struct sim_op *op;
		uint64_t sequence;

		while (!stream->first && !stream->closing)
			pthread_cond_wait(&stream->arrival, &sim_root.queue_lock);
		op = stream->first;
		if (!op)
			break;
		/* Its turn has not come while the one before it runs on its caller's thread. */
		while (op->sequence != stream->completed + 1 ||
		       (!dependencies_met(op) && !context_over(context)))
			pthread_cond_wait(&sim_root.progress, &sim_root.queue_lock);
		dependencies_drop(op);
		stream->first = op->next;
		if (!stream->first)
			stream->last = NULL;
		sequence = op->sequence;
		unlock();
		op_finish(stream, op);
		lock();
		stream->completed = sequence;
		pthread_cond_broadcast(&sim_root.progress);
	}
	context->stream_threads--;
	pthread_cond_broadcast(&sim_root.progress);
	stream_put(stream);
	unlock();
	return NULL;
}

/* queue_lock held. */
static bool thread_start(struct sim_stream *stream)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;
	int error;

	/* The application's signals are not for these threads; faults are. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, &attributes, stream_main, stream);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (error)
		return false;
	stream->has_thread = true;
	stream->users++;
	stream->context->stream_threads++;
	return true;
}

/* queue_lock held. Takes the op's place in the stream; *now tells that the caller is to
 * run it, with run_now(). */
static CUresult append(struct sim_stream *stream, struct sim_op *op, struct sim_fence *fence,
		       bool *now)
{
	struct sim_context *context = stream->context;

	if (atomic_load(&context->destroyed))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (stream->closing)
		return CUDA_ERROR_INVALID_HANDLE;
	if (atomic_load(&context->error) && !(op->flags & SIM_OP_ALWAYS))
		return atomic_load(&context->error);
	if (!depend_implicitly(stream, op) || (fence && !fence->done && !depend(op, NULL, fence)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*now = (op->flags & SIM_OP_INLINE) && !op->dependencies &&
	       stream->completed == stream->enqueued;
	if (*now) {
		op->sequence = ++stream->enqueued;
		stream->users++;
		context->stream_threads++;
		return CUDA_SUCCESS;
	}
	if (!stream->has_thread && !thread_start(stream))
		return CUDA_ERROR_OPERATING_SYSTEM;
	op->sequence = ++stream->enqueued;
	if (stream->last)
		stream->last->next = op;
	else
		stream->first = op;
	stream->last = op;
	pthread_cond_signal(&stream->arrival);
	return CUDA_SUCCESS;
}

/* Without the lock. */
static void run_now(struct sim_stream *stream, struct sim_op *op)
{
	struct sim_context *context = stream->context;
	uint64_t sequence = op->sequence;
	sigset_t faults, before;

	/* A fault that is blocked would end the process. */
	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	sigaddset(&faults, SIGBUS);
	pthread_sigmask(SIG_UNBLOCK, &faults, &before);
	op_finish(stream, op);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	lock();
	stream->completed = sequence;
	context->stream_threads--;
	pthread_cond_broadcast(&sim_root.progress);
	stream_put(stream);
	unlock();
}

/* wait: until the op has ended. */
static CUresult enqueue(struct sim_stream *stream, struct sim_op *op, struct sim_fence *fence,
			bool wait)
{
	struct sim_context *context = stream->context;
	bool now = false;
	CUresult result;

	op->stream = stream;
	op->next = NULL;
	op->dependencies = NULL;
	lock();
	result = append(stream, op, fence, &now);
	if (result != CUDA_SUCCESS)
		dependencies_drop(op);
	if (result == CUDA_SUCCESS && wait && !now) {
		/* The op itself may be gone as soon as the lock is. */
		uint64_t sequence = op->sequence;

		stream->users++;
		while (stream->completed < sequence)
			pthread_cond_wait(&sim_root.progress, &sim_root.queue_lock);
		stream_put(stream);
	}
	unlock();
	if (result != CUDA_SUCCESS) {
		op->release(op);
		return result;
	}
	if (now)
		run_now(stream, op);
	return wait ? sim_context_error(context) : CUDA_SUCCESS;
}

CUresult sim_enqueue_after(struct sim_stream *stream, struct sim_op *op, struct sim_fence *fence)
{
	return enqueue(stream, op, fence, false);
}

CUresult sim_enqueue_and_wait(struct sim_stream *stream, struct sim_op *op)
{
	return enqueue(stream, op, NULL, true);
}

CUresult sim_enqueue(struct sim_stream *stream, struct sim_op *op)
{
	return enqueue(stream, op, NULL, false);
}

/* What a wait on the stream waits for: for the NULL stream everything that it orders,
 * for none at all the whole context. */
static bool covers(const struct sim_stream *stream, const struct sim_stream *other)
{
	return !stream || other == stream || (stream->legacy && blocking(other));
}

static bool pending(const struct sim_context *context, const struct sim_stream *stream)
{
	const struct sim_stream *other;

	for (other = context->streams; other; other = other->next)
		if (covers(stream, other) && other->completed != other->enqueued)
			return true;
	return false;
}

/* queue_lock held. Waits for the ops that the covered streams have now. */
static void wait_locked(struct sim_context *context, const struct sim_stream *of)
{
	struct sim_op marker = {0};
	struct sim_stream *stream;
	bool known = true;

	for (stream = context->streams; stream; stream = stream->next)
		if (covers(of, stream) && stream->completed != stream->enqueued)
			known = depend(&marker, stream, NULL) && known;
	/* Out of memory for the list: wait until nothing at all is left. */
	while (known ? !dependencies_met(&marker) : pending(context, of))
		pthread_cond_wait(&sim_root.progress, &sim_root.queue_lock);
	dependencies_drop(&marker);
}

CUresult sim_stream_wait(struct sim_stream *stream)
{
	struct sim_context *context = stream->context;

	lock();
	stream->users++;
	wait_locked(context, stream);
	stream_put(stream);
	unlock();
	return sim_context_error(context);
}

CUresult sim_context_wait(struct sim_context *context)
{
	lock();
	wait_locked(context, NULL);
	unlock();
	return sim_context_error(context);
}

CUresult sim_stream_query(struct sim_stream *stream)
{
	CUresult result;

	lock();
	result = pending(stream->context, stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
	unlock();
	if (sim_context_error(stream->context) != CUDA_SUCCESS)
		result = sim_context_error(stream->context);
	return result;
}

/* queue_lock held. */
static void close_locked(struct sim_stream *stream)
{
	if (stream->closing)
		return;
	stream->closing = true;
	stream->magic = 0;
	pthread_cond_signal(&stream->arrival);
	stream_put(stream);
}

void sim_stream_close(struct sim_stream *stream, uint64_t id)
{
	lock();
	if (stream->magic == SIM_STREAM_MAGIC && stream->id == id)
		close_locked(stream);
	unlock();
}

void sim_context_drain(struct sim_context *context)
{
	lock();
	pthread_cond_broadcast(&sim_root.progress);
	for (struct sim_stream *stream = context->streams; stream;) {
		struct sim_stream *next = stream->next;

		close_locked(stream);
		stream = next;
	}
	while (context->stream_threads)
		pthread_cond_wait(&sim_root.progress, &sim_root.queue_lock);
	context->legacy = NULL;
	unlock();
}
