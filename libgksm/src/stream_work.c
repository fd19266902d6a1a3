/* SPDX-License-Identifier: Apache-2.0 */
#include "stream_work.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "process.h"
#include "sync.h"
#include "wrap.h"

#define POLLS_BEFORE_SLEEP 8

CUresult gksm_visit_enter(struct gksm_streams *streams, CUcontext context, struct gksm_visit *visit)
{
	CUcontext current = NULL;
	CUresult result = GKSM_REAL(cuCtxGetCurrent)(&current);

	*visit = (struct gksm_visit){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
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

void gksm_visit_leave(struct gksm_visit *visit)
{
	CUcontext popped;

	if (visit->relaxed)
		GKSM_REAL(cuThreadExchangeStreamCaptureMode)(&visit->mode);
	if (visit->pushed)
		GKSM_REAL(cuCtxPopCurrent_v2)(&popped);
}

enum gksm_answer gksm_answer_of(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
		return GKSM_IDLE;
	case CUDA_ERROR_NOT_READY:
		return GKSM_PENDING;
	case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
	case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
	case CUDA_ERROR_CAPTURED_EVENT:
		return GKSM_CAPTURING;
	default:
		return GKSM_DEAD;
	}
}

bool gksm_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = GKSM_REAL(cuStreamIsCapturing)(stream, &status);

	if (result != CUDA_SUCCESS)
		return gksm_answer_of(result) == GKSM_CAPTURING;
	return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

enum gksm_answer gksm_ask_stream(CUstream stream)
{
	return gksm_capturing(stream) ? GKSM_CAPTURING
				      : gksm_answer_of(GKSM_REAL(cuStreamQuery)(stream));
}

bool gksm_needs_event(struct gksm_streams *streams, CUstream stream)
{
	return stream == CU_STREAM_LEGACY && gksm_other_threads_streams(streams) &&
	       !gksm_capturing(stream);
}

static struct gksm_work *take_spare(struct gksm_streams *streams, CUcontext context)
{
	struct gksm_work **link, *work;

	gksm_mutex_lock(&streams->lock);
	for (link = &streams->spare_works; *link && (*link)->context != context;)
		link = &(*link)->next;
	work = *link;
	if (work)
		*link = work->next;
	gksm_mutex_unlock(&streams->lock);
	return work;
}

static void put_spare(struct gksm_streams *streams, struct gksm_work *work)
{
	gksm_mutex_lock(&streams->lock);
	work->next = streams->spare_works;
	streams->spare_works = work;
	gksm_mutex_unlock(&streams->lock);
}

struct gksm_work *gksm_work_record(struct gksm_streams *streams, CUcontext context, CUdevice device,
				   CUstream stream, enum gksm_answer *answer)
{
	struct gksm_work *work = take_spare(streams, context);
	CUresult result;

	if (work) {
		result = GKSM_REAL(cuEventRecord)(work->event, stream);
		if (result == CUDA_SUCCESS)
			return work;
		*answer = gksm_answer_of(result);
		if (*answer == GKSM_CAPTURING) {
			put_spare(streams, work);
			return NULL;
		}
		/* left over from a context that had this address before */
		free(work);
	}
	work = malloc(sizeof(*work));
	*answer = GKSM_PENDING;
	if (!work)
		return NULL;
	*work = (struct gksm_work){.context = context, .device = device};
	result = GKSM_REAL(cuEventCreate)(&work->event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS) {
		free(work);
		*answer = result == CUDA_ERROR_OUT_OF_MEMORY ? GKSM_PENDING : GKSM_DEAD;
		return NULL;
	}
	result = GKSM_REAL(cuEventRecord)(work->event, stream);
	if (result == CUDA_SUCCESS)
		return work;
	GKSM_REAL(cuEventDestroy_v2)(work->event);
	free(work);
	*answer = gksm_answer_of(result);
	return NULL;
}

static enum gksm_answer ask_work(const struct gksm_work *work)
{
	return gksm_answer_of(GKSM_REAL(cuEventQuery)(work->event));
}

bool gksm_orphans_pending(struct gksm_streams *streams, CUdevice device)
{
	struct gksm_work **link, *work;
	bool pending = false;

	gksm_mutex_lock(&streams->orphans_lock);
	for (link = &streams->orphans; (work = *link);) {
		if (work->device != device) {
			link = &work->next;
		} else if (ask_work(work) == GKSM_PENDING) {
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

int gksm_work_poll(struct gksm_streams *streams, struct gksm_work *work, uint64_t deadline)
{
	uint64_t pause = GKSM_POLL_FIRST_NS;
	enum gksm_answer answer;
	int result;

	for (unsigned polls = 0;; polls++) {
		answer = ask_work(work);
		if (answer != GKSM_PENDING || gksm_now_ns() >= deadline)
			break;
		if (polls < POLLS_BEFORE_SLEEP)
			continue;
		gksm_sleep_ns(pause);
		pause = pause * 2 > GKSM_POLL_MOST_NS ? GKSM_POLL_MOST_NS : pause * 2;
	}
	result = answer == GKSM_DEAD ? -ENODEV : answer == GKSM_PENDING ? -ETIMEDOUT : 0;
	if (answer == GKSM_DEAD) {
		GKSM_REAL(cuEventDestroy_v2)(work->event);
		free(work);
	} else {
		put_spare(streams, work);
	}
	return result;
}

void gksm_work_remember(struct gksm_streams *streams, CUcontext context, CUdevice device,
			CUstream stream)
{
	enum gksm_answer answer;
	struct gksm_visit visit;
	struct gksm_work *work;

	if (gksm_visit_enter(streams, context, &visit) != CUDA_SUCCESS)
		return;
	if (gksm_needs_event(streams, stream) || gksm_ask_stream(stream) == GKSM_PENDING) {
		work = gksm_work_record(streams, context, device, stream, &answer);
		if (work) {
			gksm_mutex_lock(&streams->orphans_lock);
			work->next = streams->orphans;
			streams->orphans = work;
			gksm_mutex_unlock(&streams->orphans_lock);
		}
	}
	gksm_visit_leave(&visit);
}

static void drop_works(struct gksm_work **list, CUcontext context, struct gksm_work **dropped)
{
	struct gksm_work *work;

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

void gksm_works_gone(struct gksm_streams *streams, CUcontext context)
{
	struct gksm_work *dropped = NULL, *work;

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
