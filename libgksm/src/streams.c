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
 */
#include "streams.h"

#include <errno.h>
#include <stdatomic.h>

#include "process.h"
#include "stream_work.h"
#include "sync.h"
#include "wrap.h"

/* How long a question may take that needs an event in the legacy stream. */
#define GLANCE_NS 50000u

static uint64_t deadline_after(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : gksm_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

static bool stream_pending(struct gksm_streams *streams, CUcontext context, CUdevice device,
			   CUstream stream)
{
	enum gksm_answer answer = GKSM_PENDING;
	struct gksm_visit visit;
	struct gksm_work *work;

	if (gksm_visit_enter(streams, context, &visit) != CUDA_SUCCESS)
		return true;
	if (!gksm_needs_event(streams, stream)) {
		answer = gksm_ask_stream(stream);
	} else {
		work = gksm_work_record(streams, context, device, stream, &answer);
		if (work && !gksm_work_poll(streams, work, gksm_now_ns() + GLANCE_NS))
			answer = GKSM_IDLE;
	}
	gksm_visit_leave(&visit);
	return answer != GKSM_IDLE;
}

/* The context to ask a stream in; one whose own is gone is asked in any. */
static CUcontext home_of(const struct gksm_known_stream *known, CUcontext asked)
{
	return known->context ? known->context : asked;
}

bool gksm_work_pending(struct gksm *process, CUcontext context, CUstream except)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	struct gksm_known_stream *known;
	bool pending;
	CUdevice device;

	if (!streams || gksm_device_of(process, streams, &context, &device))
		return true;
	pending = gksm_orphans_pending(streams, device) ||
		  (gksm_per_thread_seen && except != CU_STREAM_PER_THREAD &&
		   stream_pending(streams, context, device, CU_STREAM_PER_THREAD));
	for (known = gksm_stream_step(streams, device, NULL); known;
	     known = gksm_stream_step(streams, device, known))
		pending = pending ||
			  (!(known->stream == except && known->context == context) &&
			   stream_pending(streams, home_of(known, context), device, known->stream));
	return pending;
}

bool gksm_work_pending_on(struct gksm *process, CUcontext context, CUcontext other)
{
	return gksm_work_pending(process, context, NULL) ||
	       (other && gksm_work_pending(process, other, NULL));
}

/* Waits for what the stream has to do now. A stream in a capture has nothing to do
 * but what was remembered as an orphan when the capture began. */
static int wait_stream(struct gksm_streams *streams, CUcontext context, CUdevice device,
		       CUstream stream, uint64_t deadline)
{
	enum gksm_answer answer;
	struct gksm_work *work = NULL;
	struct gksm_visit visit;
	int result = 0;

	if (gksm_visit_enter(streams, context, &visit) != CUDA_SUCCESS)
		return -ENODEV;
	answer = gksm_needs_event(streams, stream) ? GKSM_PENDING : gksm_ask_stream(stream);
	/* An event, not the stream: others may go on filling the stream for ever. */
	if (answer == GKSM_PENDING)
		work = gksm_work_record(streams, context, device, stream, &answer);
	if (work)
		result = gksm_work_poll(streams, work, deadline);
	else if (answer == GKSM_DEAD)
		result = -ENODEV;
	else if (answer == GKSM_PENDING)
		result = -ETIMEDOUT;
	gksm_visit_leave(&visit);
	return result;
}

int gksm_wait_idle(struct gksm *process, CUcontext context, int timeout_ms)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	uint64_t deadline = deadline_after(timeout_ms);
	uint64_t pause = GKSM_POLL_FIRST_NS;
	struct gksm_known_stream *known;
	CUdevice device;
	int result = 0;

	if (!streams)
		return -ETIMEDOUT;
	if (gksm_device_of(process, streams, &context, &device))
		return -ENODEV;
	if (gksm_per_thread_seen)
		result = wait_stream(streams, context, device, CU_STREAM_PER_THREAD, deadline);
	for (known = gksm_stream_step(streams, device, NULL); known;
	     known = gksm_stream_step(streams, device, known)) {
		int one = 0;

		if (result)
			continue;
		one = wait_stream(streams, home_of(known, context), device, known->stream,
				  deadline);
		/* another context's death is not this one's */
		result = one == -ENODEV && home_of(known, context) != context ? 0 : one;
	}
	while (!result && gksm_orphans_pending(streams, device)) {
		if (gksm_now_ns() >= deadline)
			result = -ETIMEDOUT;
		gksm_sleep_ns(pause);
		pause = pause * 2 > GKSM_POLL_MOST_NS ? GKSM_POLL_MOST_NS : pause * 2;
	}
	return result;
}

/* Some context of the next device from *device on; NULL: there is none. */
static CUcontext step_device(struct gksm_streams *streams, CUdevice *device)
{
	struct gksm_known_context *known, *chosen = NULL;
	CUcontext context = NULL;

	gksm_mutex_lock(&streams->lock);
	for (known = streams->contexts; known; known = known->next)
		if (known->device >= *device && (!chosen || known->device < chosen->device))
			chosen = known;
	if (chosen) {
		context = chosen->context;
		*device = chosen->device + 1;
	}
	gksm_mutex_unlock(&streams->lock);
	return context;
}

int gksm_wait_all_idle(struct gksm *process, int timeout_ms)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	uint64_t deadline = deadline_after(timeout_ms);
	CUcontext context;
	CUdevice device = 0;

	if (!streams)
		return -ETIMEDOUT;
	while ((context = step_device(streams, &device))) {
		uint64_t now = gksm_now_ns();
		int left = timeout_ms < 0   ? -1
			   : now < deadline ? (int)((deadline - now + 999999u) / 1000000u)
					    : 0;

		/* A dead context has nothing running. */
		if (gksm_wait_idle(process, context, left) == -ETIMEDOUT)
			return -ETIMEDOUT;
	}
	return 0;
}

bool gksm_touch_pending(struct gksm *process, CUcontext context)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	CUdevice device = 0;

	if (gksm_work_pending(process, context, NULL))
		return true;
	while (streams && atomic_load(&process->crossed) &&
	       (context = step_device(streams, &device)))
		if (gksm_work_pending(process, context, NULL))
			return true;
	return false;
}

int gksm_wait_untouched(struct gksm *process, CUcontext context, int timeout_ms)
{
	if (atomic_load(&process->crossed))
		return gksm_wait_all_idle(process, timeout_ms);
	return gksm_wait_idle(process, context, timeout_ms) == -ETIMEDOUT ? -ETIMEDOUT : 0;
}

int gksm_wait_order(struct gksm *process, CUstream stream, int timeout_ms)
{
	struct gksm_streams *streams = gksm_streams_of(process);
	uint64_t deadline = deadline_after(timeout_ms);
	enum gksm_answer answer = GKSM_PENDING;
	bool non_blocking;
	CUcontext context;
	struct gksm_work *work = NULL;
	struct gksm_visit visit;
	CUdevice device;
	int result;

	if (!streams)
		return -ETIMEDOUT;
	if (!stream)
		stream = CU_STREAM_LEGACY;
	if (!gksm_stream_find(process, streams, stream, &context, &device, &non_blocking) ||
	    gksm_visit_enter(streams, context, &visit) != CUDA_SUCCESS)
		return -ENODEV;
	if (gksm_capturing(stream))
		answer = GKSM_CAPTURING;
	else if (non_blocking)
		answer = gksm_answer_of(GKSM_REAL(cuStreamQuery)(stream));
	/* A blocking stream may be idle while the legacy stream, which its next copy
	 * has to wait for, is not. An event in it waits as that copy would. */
	if (answer == GKSM_PENDING)
		work = gksm_work_record(streams, context, device, stream, &answer);
	if (work)
		result = gksm_work_poll(streams, work, deadline);
	else
		result = answer == GKSM_IDLE	    ? 0
			 : answer == GKSM_CAPTURING ? -EBUSY
			 : answer == GKSM_DEAD	    ? -ENODEV
						    : -ETIMEDOUT;
	gksm_visit_leave(&visit);
	return result;
}
