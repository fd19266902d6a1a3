/* SPDX-License-Identifier: Apache-2.0 */
#include "context.h"

#include <stdlib.h>
#include <string.h>

#include "queue.h"

/* Small: all thread-local data of the library shares the little static TLS that a
 * dlopen() can get (fault.c needs it static). */
#define STACK_MAX 64

static _Thread_local struct {
	struct sim_context *entries[STACK_MAX];
	int depth;
} stack;

struct sim_context *sim_stack_top(void)
{
	return stack.depth ? stack.entries[stack.depth - 1] : NULL;
}

bool sim_stack_push(struct sim_context *context)
{
	if (stack.depth == STACK_MAX)
		return false;
	stack.entries[stack.depth++] = context;
	return true;
}

struct sim_context *sim_stack_pop(void)
{
	return stack.depth ? stack.entries[--stack.depth] : NULL;
}

void sim_stack_forget(struct sim_context *context)
{
	while (stack.depth && stack.entries[stack.depth - 1] == context)
		stack.depth--;
}

static void limits_reset(struct sim_context *context)
{
	memset(context->limits, 0, sizeof(context->limits));
	context->limits[CU_LIMIT_STACK_SIZE] = 1024;
	context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20;
	context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
	context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
	context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

bool sim_context_revive(struct sim_context *context, unsigned flags)
{
	context->legacy = sim_stream_new(context, 0, 0);
	if (!context->legacy)
		return false;
	context->legacy->legacy = true;
	context->id = sim_next_id();
	context->flags = flags;
	context->cache_config = CU_FUNC_CACHE_PREFER_NONE;
	context->surface = NULL;
	atomic_store(&context->peers, 0);
	limits_reset(context);
	atomic_store(&context->users, 1);
	atomic_store(&context->error, 0);
	atomic_store(&context->destroyed, false);
	return true;
}

struct sim_context *sim_context_new(struct sim_device *device, unsigned flags, bool primary)
{
	struct sim_context *context = calloc(1, sizeof(*context));

	if (!context)
		return NULL;
	context->magic = SIM_CONTEXT_MAGIC;
	context->device = device;
	context->primary = primary;
	pthread_mutex_init(&context->serial, NULL);
	if (!sim_context_revive(context, flags)) {
		free(context);
		return NULL;
	}
	context->next = atomic_load(&sim_root.contexts);
	while (!atomic_compare_exchange_weak(&sim_root.contexts, &context->next, context))
		;
	return context;
}

void sim_context_destroy(struct sim_context *context)
{
	/* A healthy context finishes what it was given. */
	if (!atomic_load(&context->error))
		sim_context_wait(context);
	sim_capture_context_gone(context);
	atomic_store(&context->destroyed, true);
	sim_context_drain(context);
	sim_context_events_gone(context);
	sim_surface_context_gone(context);
	sim_memory_context_gone(context);
	sim_host_context_gone(context);
}

CUresult sim_context_error(struct sim_context *context)
{
	return (CUresult)atomic_load(&context->error);
}

static CUresult usable(struct sim_context *context)
{
	CUresult ready = sim_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (sim_in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (atomic_load(&context->destroyed))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return CUDA_SUCCESS;
}

CUresult sim_current_any(struct sim_context **context)
{
	*context = sim_stack_top();
	return usable(*context);
}

CUresult sim_current(struct sim_context **context)
{
	CUresult result = sim_current_any(context);

	return result == CUDA_SUCCESS ? sim_context_error(*context) : result;
}

CUresult sim_context_get(CUcontext handle, struct sim_context **context)
{
	struct sim_context *known;
	CUresult ready = sim_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (!handle)
		return sim_current_any(context);
	*context = (struct sim_context *)handle;
	/* No lock: whoever destroys a context may wait for work that waits for the caller. */
	for (known = atomic_load(&sim_root.contexts); known && known != *context;)
		known = known->next;
	return known ? usable(known) : CUDA_ERROR_INVALID_CONTEXT;
}

void sim_context_kill(struct sim_context *context, CUresult error)
{
	int healthy = 0;

	if (!atomic_compare_exchange_strong(&context->error, &healthy, (int)error))
		return;
	pthread_mutex_lock(&sim_root.queue_lock);
	pthread_cond_broadcast(&sim_root.progress);
	pthread_mutex_unlock(&sim_root.queue_lock);
}

CUresult sim_context_quiesce(struct sim_context *context)
{
	CUresult result;

	pthread_mutex_lock(&context->serial);
	result = sim_context_wait(context);
	pthread_mutex_unlock(&context->serial);
	return result;
}

bool sim_context_capturing(struct sim_context *context)
{
	struct sim_stream *stream;

	pthread_mutex_lock(&sim_root.queue_lock);
	for (stream = context->streams; stream && !stream->capture;)
		stream = stream->next;
	pthread_mutex_unlock(&sim_root.queue_lock);
	return stream != NULL;
}
