/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is work pending, and waiting for it outside the driver.
 *
 * A context's answer covers every context of its device: VMM mappings are visible in
 * all of them, so a kernel of any may touch a page.
 *
 * Work of a stream that cannot be asked any more (destroyed, or part of a capture) is
 * remembered as an event recorded just before that. Per-thread streams can be asked
 * by their own thread only; for the others an event is recorded in the legacy stream,
 * which every blocking stream, per-thread ones included, is ordered with.
 *
 * No lock is held across a driver call. An entry in use is counted and whoever wants
 * to unlink it waits for that: a query blocks while another thread sits in a full
 * launch queue, and nobody who only creates a stream may block with it.
 */
#include "streams.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "process.h"
#include "sync.h"
#include "wrap.h"

#define POLLS_BEFORE_SLEEP 8
#define SLEEP_FIRST_NS 10000u
#define SLEEP_MOST_NS 500000u
/* How long a question may take that needs an event in the legacy stream. */
#define GLANCE_NS 50000u

struct known_context {
	struct known_context *next;
	CUcontext context;
	CUdevice device;
};

struct known_stream {
	struct known_stream *next;
	CUcontext context;
	CUdevice device;
	CUstream stream;
	bool non_blocking;
	bool gone; /* its owner waits for users to become 0 */
	unsigned users;
};

struct work {
	struct work *next;
	CUcontext context;
	CUdevice device;
	CUevent event;
};

struct gksm_streams {
	struct gksm_mutex lock;
	struct known_context *contexts;
	struct known_stream *streams;
	struct work *spare_works;	/* events that nobody waits for */
	struct gksm_mutex orphans_lock; /* taken before lock, held while they are asked */
	struct work *orphans;		/* of streams that cannot be asked any more */
	_Atomic uint32_t captures;
	_Atomic uint32_t per_thread_threads;
};

enum answer { IDLE, PENDING, CAPTURING, DEAD };

/* initial-exec: the library is there from process start, and __tls_get_addr would be
 * a NEEDED beyond libc. */
static __thread bool per_thread_seen __attribute__((tls_model("initial-exec")));

static struct gksm_streams *streams_of(struct gksm *process)
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

/* A visit makes a context current for a few calls and keeps them out of captures. */
struct visit {
	bool pushed;
	bool relaxed;
	CUstreamCaptureMode mode;
};

static CUresult enter(struct gksm_streams *streams, CUcontext context, struct visit *visit)
{
	CUcontext current = NULL;
	CUresult result = GKSM_REAL(cuCtxGetCurrent)(&current);

	*visit = (struct visit){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
	if (context && context != current) {
		result = GKSM_REAL(cuCtxPushCurrent_v2)(context);
		if (result != CUDA_SUCCESS)
			return result;
		visit->pushed = true;
	} else if (!current) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (atomic_load(&streams->captures))
		visit->relaxed =
			GKSM_REAL(cuThreadExchangeStreamCaptureMode)(&visit->mode) == CUDA_SUCCESS;
	return CUDA_SUCCESS;
}

static void leave(struct visit *visit)
{
	CUcontext popped;

	if (visit->relaxed)
		GKSM_REAL(cuThreadExchangeStreamCaptureMode)(&visit->mode);
	if (visit->pushed)
		GKSM_REAL(cuCtxPopCurrent_v2)(&popped);
}

static enum answer meaning(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
		return IDLE;
	case CUDA_ERROR_NOT_READY:
		return PENDING;
	case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
	case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
	case CUDA_ERROR_CAPTURED_EVENT:
		return CAPTURING;
	default:
		return DEAD;
	}
}

static bool capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = GKSM_REAL(cuStreamIsCapturing)(stream, &status);

	if (result != CUDA_SUCCESS)
		return meaning(result) == CAPTURING;
	return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static enum answer ask_stream(CUstream stream)
{
	return capturing(stream) ? CAPTURING : meaning(GKSM_REAL(cuStreamQuery)(stream));
}

static enum answer ask_known(struct gksm_streams *streams, const struct known_stream *known)
{
	struct visit visit;
	enum answer answer;

	if (enter(streams, known->context, &visit) != CUDA_SUCCESS)
		return DEAD;
	answer = ask_stream(known->stream);
	leave(&visit);
	return answer;
}

/* The device of a context; 0 or -ENODEV. Learns about contexts made before us. */
static int device_of(struct gksm *process, struct gksm_streams *streams, CUcontext *context,
		     CUdevice *device)
{
	struct known_context *known;
	struct visit visit;
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
	if (enter(streams, *context, &visit) != CUDA_SUCCESS)
		return -ENODEV;
	result = GKSM_REAL(cuCtxGetDevice)(device);
	leave(&visit);
	if (result != CUDA_SUCCESS)
		return -ENODEV;
	gksm_context_known(process, *context, *device);
	return 0;
}

/* What is known of a stream. false: there is no current context to ask about it. */
static bool find_stream(struct gksm *process, struct gksm_streams *streams, CUstream stream,
			CUcontext *context, CUdevice *device, bool *non_blocking)
{
	struct known_stream *known;

	*context = NULL;
	*non_blocking = false;
	gksm_mutex_lock(&streams->lock);
	for (known = streams->streams; known && (known->gone || known->stream != stream);)
		known = known->next;
	if (known) {
		*context = known->context;
		*device = known->device;
		*non_blocking = known->non_blocking;
	}
	gksm_mutex_unlock(&streams->lock);
	return known || device_of(process, streams, context, device) == 0;
}

void gksm_context_known(struct gksm *process, CUcontext context, CUdevice device)
{
	struct gksm_streams *streams = streams_of(process);
	struct known_context *known;
	struct known_context *fresh = malloc(sizeof(*fresh));

	if (!streams || !fresh) {
		free(fresh);
		return;
	}
	gksm_mutex_lock(&streams->lock);
	for (known = streams->contexts; known && known->context != context;)
		known = known->next;
	if (!known) {
		*fresh = (struct known_context){
			.next = streams->contexts, .context = context, .device = device};
		streams->contexts = fresh;
		fresh = NULL;
	}
	gksm_mutex_unlock(&streams->lock);
	free(fresh);
}

static struct work *take_spare(struct gksm_streams *streams, CUcontext context)
{
	struct work **link, *work;

	gksm_mutex_lock(&streams->lock);
	for (link = &streams->spare_works; *link && (*link)->context != context;)
		link = &(*link)->next;
	work = *link;
	if (work)
		*link = work->next;
	gksm_mutex_unlock(&streams->lock);
	return work;
}

static void put_spare(struct gksm_streams *streams, struct work *work)
{
	gksm_mutex_lock(&streams->lock);
	work->next = streams->spare_works;
	streams->spare_works = work;
	gksm_mutex_unlock(&streams->lock);
}

/* An event of the current context, recorded in the stream. NULL: it could not be,
 * and *answer says why (PENDING: no memory). */
static struct work *record(struct gksm_streams *streams, CUcontext context, CUdevice device,
			   CUstream stream, enum answer *answer)
{
	struct work *work = take_spare(streams, context);
	CUresult result;

	if (work) {
		result = GKSM_REAL(cuEventRecord)(work->event, stream);
		if (result == CUDA_SUCCESS)
			return work;
		*answer = meaning(result);
		if (*answer == CAPTURING) {
			put_spare(streams, work);
			return NULL;
		}
		/* left over from a context that had this address before */
		free(work);
	}
	work = malloc(sizeof(*work));
	*answer = PENDING;
	if (!work)
		return NULL;
	*work = (struct work){.context = context, .device = device};
	result = GKSM_REAL(cuEventCreate)(&work->event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS) {
		free(work);
		*answer = result == CUDA_ERROR_OUT_OF_MEMORY ? PENDING : DEAD;
		return NULL;
	}
	result = GKSM_REAL(cuEventRecord)(work->event, stream);
	if (result == CUDA_SUCCESS)
		return work;
	GKSM_REAL(cuEventDestroy_v2)(work->event);
	free(work);
	*answer = meaning(result);
	return NULL;
}

static enum answer ask_work(const struct work *work)
{
	return meaning(GKSM_REAL(cuEventQuery)(work->event));
}

/* Steps through the streams of a device: the one returned is in use until the next
 * step. NULL at the end. */
static struct known_stream *step(struct gksm_streams *streams, CUdevice device,
				 struct known_stream *from)
{
	struct known_stream *next;

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

/* Puts the orphans that have fired back among the spares. true: one is left. */
static bool orphans_pending(struct gksm_streams *streams, CUdevice device)
{
	struct work **link, *work;
	bool pending = false;

	gksm_mutex_lock(&streams->orphans_lock);
	for (link = &streams->orphans; (work = *link);) {
		if (work->device != device) {
			link = &work->next;
		} else if (ask_work(work) == PENDING) {
			pending = true;
			link = &work->next;
		} else {
			*link = work->next;
			put_spare(streams, work);
		}
	}
	gksm_mutex_unlock(&streams->orphans_lock);
	return pending;
}

static uint64_t deadline_after(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : gksm_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

/* Polls until the work is done; it goes back to the spares. */
static int poll_work(struct gksm_streams *streams, struct work *work, uint64_t deadline)
{
	uint64_t pause = SLEEP_FIRST_NS;
	enum answer answer;
	int result;

	for (unsigned polls = 0;; polls++) {
		answer = ask_work(work);
		if (answer != PENDING || gksm_now_ns() >= deadline)
			break;
		if (polls < POLLS_BEFORE_SLEEP)
			continue;
		gksm_sleep_ns(pause);
		pause = pause * 2 > SLEEP_MOST_NS ? SLEEP_MOST_NS : pause * 2;
	}
	result = answer == DEAD ? -ENODEV : answer == PENDING ? -ETIMEDOUT : 0;
	if (answer == DEAD) {
		GKSM_REAL(cuEventDestroy_v2)(work->event);
		free(work);
	} else {
		put_spare(streams, work);
	}
	return result;
}

static bool other_threads_have_streams(struct gksm_streams *streams)
{
	return atomic_load(&streams->per_thread_threads) > (per_thread_seen ? 1u : 0u);
}

/* The streams of a context that are in no list: the legacy one and this thread's own. */
static bool unlisted_pending(struct gksm_streams *streams, CUcontext context, CUdevice device,
			     CUstream except)
{
	enum answer answer;
	struct work *work;

	if (except != CU_STREAM_LEGACY && ask_stream(CU_STREAM_LEGACY) != IDLE)
		return true;
	if (per_thread_seen && except != CU_STREAM_PER_THREAD &&
	    ask_stream(CU_STREAM_PER_THREAD) != IDLE)
		return true;
	if (!other_threads_have_streams(streams))
		return false;
	if (capturing(CU_STREAM_LEGACY))
		return true;
	work = record(streams, context, device, CU_STREAM_LEGACY, &answer);
	return !work || poll_work(streams, work, gksm_now_ns() + GLANCE_NS) != 0;
}

bool gksm_work_pending(struct gksm *process, CUcontext context, CUstream except)
{
	struct gksm_streams *streams = streams_of(process);
	struct known_stream *known;
	struct visit visit;
	bool pending;
	CUdevice device;

	if (!streams || device_of(process, streams, &context, &device) ||
	    enter(streams, context, &visit) != CUDA_SUCCESS)
		return true;
	pending = orphans_pending(streams, device) ||
		  unlisted_pending(streams, context, device, except);
	for (known = step(streams, device, NULL); known; known = step(streams, device, known))
		pending = pending || (known->stream != except && ask_known(streams, known) != IDLE);
	leave(&visit);
	return pending;
}

/* Waits for what the stream has to do now. A stream in a capture has nothing to do
 * but what was remembered as an orphan when the capture began. */
static int wait_stream(struct gksm_streams *streams, CUcontext context, CUdevice device,
		       CUstream stream, uint64_t deadline)
{
	enum answer answer;
	struct work *work = NULL;
	struct visit visit;
	int result = 0;

	if (enter(streams, context, &visit) != CUDA_SUCCESS)
		return -ENODEV;
	answer = ask_stream(stream);
	/* An event, not the stream: others may go on filling the stream for ever. */
	if (answer == PENDING)
		work = record(streams, context, device, stream, &answer);
	if (work)
		result = poll_work(streams, work, deadline);
	else if (answer == DEAD)
		result = -ENODEV;
	else if (answer == PENDING)
		result = -ETIMEDOUT;
	leave(&visit);
	return result;
}

static int wait_unlisted(struct gksm_streams *streams, CUcontext context, CUdevice device,
			 uint64_t deadline)
{
	enum answer answer;
	struct work *work;
	int result;

	if (other_threads_have_streams(streams) && !capturing(CU_STREAM_LEGACY)) {
		work = record(streams, context, device, CU_STREAM_LEGACY, &answer);
		if (work)
			return poll_work(streams, work, deadline);
	}
	result = wait_stream(streams, context, device, CU_STREAM_LEGACY, deadline);
	if (!result && per_thread_seen)
		result = wait_stream(streams, context, device, CU_STREAM_PER_THREAD, deadline);
	return result;
}

int gksm_wait_idle(struct gksm *process, CUcontext context, int timeout_ms)
{
	struct gksm_streams *streams = streams_of(process);
	uint64_t deadline = deadline_after(timeout_ms);
	uint64_t pause = SLEEP_FIRST_NS;
	struct known_stream *known;
	struct visit visit;
	CUdevice device;
	int result;

	if (!streams)
		return -ETIMEDOUT;
	if (device_of(process, streams, &context, &device) ||
	    enter(streams, context, &visit) != CUDA_SUCCESS)
		return -ENODEV;
	result = wait_unlisted(streams, context, device, deadline);
	for (known = step(streams, device, NULL); known; known = step(streams, device, known)) {
		int one = 0;

		if (result)
			continue;
		one = wait_stream(streams, known->context, device, known->stream, deadline);
		/* another context's death is not this one's */
		result = one == -ENODEV && known->context != context ? 0 : one;
	}
	while (!result && orphans_pending(streams, device)) {
		if (gksm_now_ns() >= deadline)
			result = -ETIMEDOUT;
		gksm_sleep_ns(pause);
		pause = pause * 2 > SLEEP_MOST_NS ? SLEEP_MOST_NS : pause * 2;
	}
	leave(&visit);
	return result;
}

int gksm_wait_order(struct gksm *process, CUstream stream, int timeout_ms)
{
	struct gksm_streams *streams = streams_of(process);
	uint64_t deadline = deadline_after(timeout_ms);
	enum answer answer = PENDING;
	bool non_blocking;
	CUcontext context;
	struct work *work = NULL;
	struct visit visit;
	CUdevice device;
	int result;

	if (!streams)
		return -ETIMEDOUT;
	if (!stream)
		stream = CU_STREAM_LEGACY;
	if (!find_stream(process, streams, stream, &context, &device, &non_blocking) ||
	    enter(streams, context, &visit) != CUDA_SUCCESS)
		return -ENODEV;
	if (capturing(stream))
		answer = CAPTURING;
	else if (non_blocking)
		answer = meaning(GKSM_REAL(cuStreamQuery)(stream));
	/* A blocking stream may be idle while the legacy stream, which its next copy
	 * has to wait for, is not. An event in it waits as that copy would. */
	if (answer == PENDING)
		work = record(streams, context, device, stream, &answer);
	if (work)
		result = poll_work(streams, work, deadline);
	else
		result = answer == IDLE	       ? 0
			 : answer == CAPTURING ? -EBUSY
			 : answer == DEAD      ? -ENODEV
					       : -ETIMEDOUT;
	leave(&visit);
	return result;
}

bool gksm_stream_capturing(struct gksm *process, CUstream stream)
{
	struct gksm_streams *streams = __atomic_load_n(&process->streams, __ATOMIC_ACQUIRE);

	/* Every capture begins in a wrapper. */
	return streams && atomic_load(&streams->captures) && capturing(stream);
}

/* What the stream has to do now becomes an orphan. */
static void remember_work(struct gksm_streams *streams, CUcontext context, CUdevice device,
			  CUstream stream)
{
	enum answer answer;
	struct visit visit;
	struct work *work;

	if (enter(streams, context, &visit) != CUDA_SUCCESS)
		return;
	if (ask_stream(stream) == PENDING) {
		work = record(streams, context, device, stream, &answer);
		if (work) {
			gksm_mutex_lock(&streams->orphans_lock);
			work->next = streams->orphans;
			streams->orphans = work;
			gksm_mutex_unlock(&streams->orphans_lock);
		}
	}
	leave(&visit);
}

void gksm_stream_known(struct gksm *process, CUcontext context, CUstream stream)
{
	struct gksm_streams *streams = streams_of(process);
	struct known_stream *fresh;
	unsigned flags = 0;
	CUdevice device;

	if (!streams || !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return;
	fresh = malloc(sizeof(*fresh));
	if (!fresh || device_of(process, streams, &context, &device)) {
		free(fresh);
		return;
	}
	GKSM_REAL(cuStreamGetFlags)(stream, &flags);
	*fresh = (struct known_stream){.context = context,
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
static struct known_stream *unlink_stream(struct gksm_streams *streams, CUstream stream,
					  CUcontext context)
{
	struct known_stream **link, *known = streams->streams;

	while (known &&
	       (known->gone || (stream ? known->stream != stream : known->context != context)))
		known = known->next;
	if (!known)
		return NULL;
	known->gone = true;
	while (known->users) {
		gksm_mutex_unlock(&streams->lock);
		gksm_sleep_ns(SLEEP_FIRST_NS);
		gksm_mutex_lock(&streams->lock);
	}
	for (link = &streams->streams; *link != known;)
		link = &(*link)->next;
	*link = known->next;
	return known;
}

void gksm_stream_gone(struct gksm *process, CUstream stream)
{
	struct gksm_streams *streams = streams_of(process);
	struct known_stream *known;

	if (!streams || !stream)
		return;
	gksm_mutex_lock(&streams->lock);
	known = unlink_stream(streams, stream, NULL);
	gksm_mutex_unlock(&streams->lock);
	if (!known)
		return;
	remember_work(streams, known->context, known->device, stream);
	free(known);
}

static void drop_works(struct work **list, CUcontext context, struct work **dropped)
{
	struct work *work;

	while ((work = *list)) {
		if (work->context != context) {
			list = &work->next;
			continue;
		}
		*list = work->next;
		work->next = *dropped;
		*dropped = work;
	}
}

void gksm_context_streams_gone(struct gksm *process, CUcontext context)
{
	struct gksm_streams *streams = streams_of(process);
	struct known_context **link, *known;
	struct work *dropped = NULL, *work;
	struct known_stream *stream;

	if (!streams || !context)
		return;
	gksm_mutex_lock(&streams->lock);
	for (link = &streams->contexts; (known = *link) && known->context != context;)
		link = &known->next;
	if (known)
		*link = known->next;
	while ((stream = unlink_stream(streams, NULL, context)))
		free(stream);
	gksm_mutex_unlock(&streams->lock);
	free(known);

	gksm_mutex_lock(&streams->orphans_lock);
	drop_works(&streams->orphans, context, &dropped);
	gksm_mutex_lock(&streams->lock);
	drop_works(&streams->spare_works, context, &dropped);
	gksm_mutex_unlock(&streams->lock);
	gksm_mutex_unlock(&streams->orphans_lock);
	while ((work = dropped)) {
		dropped = work->next;
		GKSM_REAL(cuEventDestroy_v2)(work->event);
		free(work);
	}
}

void gksm_capture_begins(struct gksm *process, CUstream stream)
{
	struct gksm_streams *streams = streams_of(process);
	CUcontext context;
	bool non_blocking;
	CUdevice device;

	if (!streams)
		return;
	atomic_fetch_add(&streams->captures, 1);
	if (find_stream(process, streams, stream, &context, &device, &non_blocking))
		remember_work(streams, context, device, stream);
}

void gksm_capture_ended(struct gksm *process)
{
	struct gksm_streams *streams = streams_of(process);

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
	if (find_stream(process, streams, stream, &context, &device, &non_blocking))
		remember_work(streams, context, device, stream);
}

void gksm_per_thread_used(struct gksm *process)
{
	struct gksm_streams *streams;

	if (per_thread_seen)
		return;
	streams = streams_of(process);
	if (!streams)
		return;
	per_thread_seen = true;
	atomic_fetch_add(&streams->per_thread_threads, 1);
}
