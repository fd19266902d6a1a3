/* SPDX-License-Identifier: Apache-2.0 */
#include "streams.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "process.h"
#include "stream_work.h"
#include "sync.h"
#include "wrap.h"

__thread bool gksm_per_thread_seen __attribute__((tls_model("initial-exec")));

struct gksm_streams *gksm_streams_of(struct gksm *process)
{
	struct gksm_streams *streams = __atomic_load_n(&process->streams, __ATOMIC_ACQUIRE);
	struct gksm_streams *fresh;

	if (streams)
		return streams;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (__atomic_compare_exchange_n(&process->streams, &streams, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	free(fresh);
	return streams;
}

int gksm_device_of(struct gksm *process, struct gksm_streams *streams, CUcontext *context,
		   CUdevice *device)
{
	struct gksm_known_context *known;
	struct gksm_visit visit;
	CUresult result;

	if (!*context && (GKSM_REAL(cuCtxGetCurrent)(context) != CUDA_SUCCESS || !*context))
		return -ENODEV;
	gksm_mutex_lock(&streams->lock);
	for (known = streams->contexts; known && known->context != *context;)
		known = known->next;
	if (known)
		*device = known->device;
	gksm_mutex_unlock(&streams->lock);
	if (known)
		return 0;
	if (gksm_visit_enter(streams, *context, &visit) != CUDA_SUCCESS)
		return -ENODEV;
	result = GKSM_REAL(cuCtxGetDevice)(device);
	gksm_visit_leave(&visit);
	if (result != CUDA_SUCCESS)
		return -ENODEV;
	gksm_context_known(process, *context, *device);
	return 0;
}

bool gksm_stream_find(struct gksm *process, struct gksm_streams *streams, CUstream stream,
		      CUcontext *context, CUdevice *device, bool *non_blocking)
{
	struct gksm_known_stream *known;

	*context = NULL;
	*non_blocking = false;
	gksm_mutex_lock(&streams->lock);
	known = streams->streams;
	/* Whose legacy stream is meant says the current context. */
	while (known && (known->gone || known->stream != stream || stream == CU_STREAM_LEGACY))
		known = known->next;
	if (known) {
		*context = known->context;
		*device = known->device;
		*non_blocking = known->non_blocking;
	}
	gksm_mutex_unlock(&streams->lock);
	return known || gksm_device_of(process, streams, context, device) == 0;
}

void gksm_context_known(struct gksm *process, CUcontext context, CUdevice device)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	struct gksm_known_context *fresh = malloc(sizeof(*fresh));
	struct gksm_known_stream *legacy = malloc(sizeof(*legacy));
	struct gksm_known_context *known = NULL;

	if (streams && fresh && legacy) {
		gksm_mutex_lock(&streams->lock);
		for (known = streams->contexts; known && known->context != context;)
			known = known->next;
		if (!known) {
			*fresh = (struct gksm_known_context){
				.next = streams->contexts, .context = context, .device = device};
			*legacy = (struct gksm_known_stream){.next = streams->streams,
							     .context = context,
							     .device = device,
							     .stream = CU_STREAM_LEGACY};
			streams->contexts = fresh;
			streams->streams = legacy;
			fresh = NULL;
			legacy = NULL;
		}
		gksm_mutex_unlock(&streams->lock);
	}
	free(fresh);
	free(legacy);
}

struct gksm_known_stream *gksm_stream_step(struct gksm_streams *streams, CUdevice device,
					   struct gksm_known_stream *from)
{
	struct gksm_known_stream *next;

	gksm_mutex_lock(&streams->lock);
	next = from ? from->next : streams->streams;
	while (next && (next->gone || next->device != device))
		next = next->next;
	if (next)
		next->users++;
	if (from)
		from->users--;
	gksm_mutex_unlock(&streams->lock);
	return next;
}

void gksm_stream_known(struct gksm *process, CUcontext context, CUstream stream)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	struct gksm_known_stream *fresh;
	unsigned flags = 0;
	CUdevice device;

	if (!streams || !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return;
	fresh = malloc(sizeof(*fresh));
	if (!fresh || gksm_device_of(process, streams, &context, &device)) {
		free(fresh);
		return;
	}
	GKSM_REAL(cuStreamGetFlags)(stream, &flags);
	*fresh = (struct gksm_known_stream){.context = context,
					    .device = device,
					    .stream = stream,
					    .non_blocking = flags & CU_STREAM_NON_BLOCKING};
	gksm_mutex_lock(&streams->lock);
	fresh->next = streams->streams;
	streams->streams = fresh;
	gksm_mutex_unlock(&streams->lock);
}

/* Takes one stream out of the list: the named one, or (stream NULL) one of the
 * context. With the lock held on entry and on return. */
static struct gksm_known_stream *unlink_stream(struct gksm_streams *streams, CUstream stream,
					       CUcontext context)
{
	struct gksm_known_stream **link, *known = streams->streams;

	while (known &&
	       (known->gone || (stream ? known->stream != stream : known->context != context)))
		known = known->next;
	if (!known)
		return NULL;
	known->gone = true;
	while (known->users) {
		gksm_mutex_unlock(&streams->lock);
		gksm_sleep_ns(GKSM_POLL_FIRST_NS);
		gksm_mutex_lock(&streams->lock);
	}
	for (link = &streams->streams; *link != known;)
		link = &(*link)->next;
	*link = known->next;
	return known;
}

void gksm_stream_gone(struct gksm *process, CUstream stream)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	struct gksm_known_stream *known;
	CUcontext context;
	bool non_blocking;
	CUdevice device;

	if (!streams || !stream || stream == CU_STREAM_LEGACY)
		return;
	/* Remembered first: at no moment is its work in neither list. */
	if (gksm_stream_find(process, streams, stream, &context, &device, &non_blocking))
		gksm_work_remember(streams, context, device, stream);
	gksm_mutex_lock(&streams->lock);
	known = unlink_stream(streams, stream, NULL);
	gksm_mutex_unlock(&streams->lock);
	free(known);
}

/* Takes the context out of the list; it stays in the hands of the caller. */
static struct gksm_known_context *unlink_context(struct gksm_streams *streams, CUcontext context)
{
	struct gksm_known_context **link, *known;

	for (link = &streams->contexts; (known = *link) && known->context != context;)
		link = &known->next;
	if (known)
		*link = known->next;
	return known;
}

void gksm_context_streams_gone(struct gksm *process, CUcontext context)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	struct gksm_known_context *known;
	struct gksm_known_stream *stream;

	if (!streams || !context)
		return;
	gksm_mutex_lock(&streams->lock);
	known = unlink_context(streams, context);
	while ((stream = unlink_stream(streams, NULL, context)))
		free(stream);
	gksm_mutex_unlock(&streams->lock);
	free(known);
	gksm_works_gone(streams, context);
}

void gksm_green_context_gone(struct gksm *process, CUcontext context)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	struct gksm_known_stream *homeless = NULL, *stream;
	struct gksm_known_context *known;

	if (!streams || !context)
		return;
	gksm_mutex_lock(&streams->lock);
	known = unlink_context(streams, context);
	while ((stream = unlink_stream(streams, NULL, context))) {
		stream->next = homeless;
		homeless = stream;
	}
	while ((stream = homeless)) {
		homeless = stream->next;
		if (stream->stream == CU_STREAM_LEGACY) {
			free(stream);
			continue;
		}
		/* From now on it is asked in whatever context is current. */
		stream->context = NULL;
		stream->gone = false;
		stream->next = streams->streams;
		streams->streams = stream;
	}
	gksm_mutex_unlock(&streams->lock);
	free(known);
}

bool gksm_stream_capturing(struct gksm *process, CUstream stream)
{
	struct gksm_streams *streams = __atomic_load_n(&process->streams, __ATOMIC_ACQUIRE);

	/* Every capture begins in a wrapper. */
	return streams && atomic_load(&streams->captures) && gksm_capturing(stream);
}

void gksm_relaxed_enter(struct gksm *process, struct gksm_relaxed *relaxed)
{
	struct gksm_streams *streams = __atomic_load_n(&process->streams, __ATOMIC_ACQUIRE);

	relaxed->entered = false;
	if (!streams || !atomic_load(&streams->captures))
		return;
	relaxed->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	relaxed->entered =
		GKSM_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed->mode) == CUDA_SUCCESS;
}

void gksm_relaxed_leave(struct gksm_relaxed *relaxed)
{
	if (relaxed->entered)
		GKSM_REAL(cuThreadExchangeStreamCaptureMode)(&relaxed->mode);
}

void gksm_capture_begins(struct gksm *process, CUstream stream)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	CUcontext context;
	bool non_blocking;
	CUdevice device;

	if (!streams)
		return;
	atomic_fetch_add(&streams->captures, 1);
	if (!gksm_stream_find(process, streams, stream, &context, &device, &non_blocking))
		return;
	gksm_work_remember(streams, context, device, stream);
	/* While a blocking stream captures, the legacy stream cannot be asked either. */
	if (!non_blocking)
		gksm_work_remember(streams, context, device, CU_STREAM_LEGACY);
}

void gksm_capture_ended(struct gksm *process)
{
	struct gksm_streams *streams = gksm_streams_of(process);

	if (streams)
		atomic_fetch_sub(&streams->captures, 1);
}

void gksm_stream_waits_event(struct gksm *process, CUstream stream)
{
	struct gksm_streams *streams = __atomic_load_n(&process->streams, __ATOMIC_ACQUIRE);
	CUcontext context;
	bool non_blocking;
	CUdevice device;

	/* Waiting for an event of a capture makes this stream part of it. */
	if (!streams || !atomic_load(&streams->captures))
		return;
	if (gksm_stream_find(process, streams, stream, &context, &device, &non_blocking))
		gksm_work_remember(streams, context, device, stream);
}

bool gksm_other_threads_streams(struct gksm_streams *streams)
{
	return atomic_load(&streams->per_thread_threads) > (gksm_per_thread_seen ? 1u : 0u);
}

void gksm_per_thread_used(struct gksm *process)
{
	struct gksm_streams *streams;

	if (gksm_per_thread_seen)
		return;
	streams = gksm_streams_of(process);
	if (!streams)
		return;
	gksm_per_thread_seen = true;
	atomic_fetch_add(&streams->per_thread_threads, 1);
}
