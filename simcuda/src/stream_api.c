/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: creation, the NULL and per-thread ones, waiting, host functions. */
#include <stdlib.h>

#include "capture.h"
#include "queue.h"
#include "surface.h"

#define PRIORITY_GREATEST (-5)

/* The streams of this thread, one for each context it used its own stream in. */
struct own_stream {
	struct own_stream *next;
	struct sim_context *context;
	uint64_t context_id; /* a revived primary context is another one */
	struct sim_stream *stream;
	uint64_t stream_id;
};

static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void own_free(void *argument)
{
	struct own_stream *own = argument;

	while (own) {
		struct own_stream *next = own->next;

		if (!atomic_load(&sim_root.forked))
			sim_stream_close(own->stream, own->stream_id);
		free(own);
		own = next;
	}
}

static void own_key_make(void)
{
	pthread_key_create(&own_key, own_free);
}

struct sim_stream *sim_stream_own(struct sim_context *context)
{
	struct own_stream *first, *own;

	pthread_once(&own_once, own_key_make);
	first = pthread_getspecific(own_key);
	for (own = first; own; own = own->next)
		if (own->context == context && own->context_id == context->id)
			return own->stream;
	own = calloc(1, sizeof(*own));
	if (!own)
		return NULL;
	own->stream = sim_stream_new(context, 0, 0);
	if (!own->stream) {
		free(own);
		return NULL;
	}
	own->stream_id = own->stream->id;
	own->stream->per_thread = true;
	own->context = context;
	own->context_id = context->id;
	own->next = first;
	pthread_setspecific(own_key, own);
	return own->stream;
}

CUresult sim_stream_get(CUstream handle, bool per_thread, struct sim_stream **stream)
{
	struct sim_context *context;
	CUresult result;

	per_thread = per_thread || sim_per_thread_calls > 0;
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		result = sim_current(&context);
		if (result != CUDA_SUCCESS)
			return result;
		if (handle == CU_STREAM_PER_THREAD || (!handle && per_thread))
			*stream = sim_stream_own(context);
		else
			*stream = context->legacy;
		return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = sim_ready();
	if (result != CUDA_SUCCESS)
		return result;
	if (sim_in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	*stream = (struct sim_stream *)handle;
	if ((*stream)->magic != SIM_STREAM_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (atomic_load(&(*stream)->context->destroyed))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return sim_context_error((*stream)->context);
}

SIM_API CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct sim_stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	if (!phStream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (priority > 0)
		priority = 0;
	if (priority < PRIORITY_GREATEST)
		priority = PRIORITY_GREATEST;
	stream = sim_stream_new(context, flags, priority);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*phStream = (CUstream)stream;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	return cuStreamCreateWithPriority(phStream, Flags, 0);
}

static CUresult destroy(CUstream hStream)
{
	struct sim_stream *stream = (struct sim_stream *)hStream;
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!hStream || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->magic != SIM_STREAM_MAGIC || stream->legacy || stream->per_thread)
		return CUDA_ERROR_INVALID_HANDLE;
	if (sim_capturing(stream))
		sim_capture_stream_gone(stream);
	sim_stream_close(stream, stream->id);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamDestroy(CUstream hStream)
{
	return destroy(hStream);
}

SIM_API CUresult cuStreamDestroy_v2(CUstream hStream)
{
	return destroy(hStream);
}

SIM_API CUresult cuStreamSynchronize(CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return sim_capture_refuse(stream);
	return sim_stream_wait(stream);
}

SIM_API CUresult cuStreamQuery(CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return sim_capture_refuse(stream);
	return sim_stream_query(stream);
}

SIM_API CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = stream->priority;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!streamId)
		return CUDA_ERROR_INVALID_VALUE;
	*streamId = stream->id;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = stream->flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = stream->context->device->ordinal;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = (CUcontext)stream->context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
	CUresult result = cuStreamGetCtx(hStream, pCtx);

	if (result == CUDA_SUCCESS && pGreenCtx)
		*pGreenCtx = NULL;
	return result;
}

/* ---- host functions ----------------------------------------------------------- */

struct host_op {
	struct sim_op op;
	CUhostFn function;
	CUstreamCallback callback;
	CUstream handle;
	void *user_data;
};

static CUresult host_run(struct sim_op *op)
{
	struct host_op *host = (struct host_op *)op;

	sim_in_host_function = true;
	if (host->function)
		host->function(host->user_data);
	else
		host->callback(host->handle, sim_context_error(op->stream->context),
			       host->user_data);
	sim_in_host_function = false;
	return CUDA_SUCCESS;
}

static void host_release(struct sim_op *op)
{
	free(op);
}

static CUresult host_enqueue(struct sim_stream *stream, const struct host_op *what)
{
	struct host_op *host = malloc(sizeof(*host));

	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*host = *what;
	host->op.run = host_run;
	host->op.release = host_release;
	return sim_enqueue(stream, &host->op);
}

CUresult sim_host_func_enqueue(struct sim_stream *stream, CUhostFn function, void *user_data)
{
	struct host_op host = {.function = function, .user_data = user_data};

	return host_enqueue(stream, &host);
}

SIM_API CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capturing(stream))
		return sim_capture_host(stream, fn, userData);
	return sim_host_func_enqueue(stream, fn, userData);
}

SIM_API CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData,
				     unsigned int syncMode)
{
	(void)syncMode;
	return cuLaunchHostFunc(hStream, fn, userData);
}

SIM_API CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
				     unsigned int flags)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capturing(stream))
		return sim_capture_refuse(stream);
	struct host_op host = {
		.op.flags = SIM_OP_ALWAYS,
		.callback = callback,
		.handle = hStream,
		.user_data = userData,
	};

	return host_enqueue(stream, &host);
}
