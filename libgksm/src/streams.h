/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams a process has, so that we can ask whether work is pending. A stream
 * is known from its creation (or first use) to its destruction; the legacy and
 * per-thread streams of each context are always known.
 *
 * None of these calls waits inside the driver and none touches a capturing stream.
 */
#ifndef GKSM_STREAMS_H
#define GKSM_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct gksm;

void gksm_stream_known(struct gksm *process, CUcontext context, CUstream stream);
void gksm_stream_gone(struct gksm *process, CUstream stream);
void gksm_context_streams_gone(struct gksm *process, CUcontext context);

/* true: some stream of the context other than `except` has unfinished work, or
 * cannot be asked (capture elsewhere). except may be NULL: ask all. */
bool gksm_work_pending(struct gksm *process, CUcontext context, CUstream except);

/* The same of both sides of a copy between two GPUs, which may be enqueued on either and
 * wait there for what the other has to do. other may be NULL. */
bool gksm_work_pending_on(struct gksm *process, CUcontext context, CUcontext other);

/* Polls until every known stream of the context is idle. 0, -ETIMEDOUT, or
 * -ENODEV when the context is dead. timeout_ms < 0: no bound. */
int gksm_wait_idle(struct gksm *process, CUcontext context, int timeout_ms);

/* The same of all devices: 0 or -ETIMEDOUT. A dead context has nothing running. */
int gksm_wait_all_idle(struct gksm *process, int timeout_ms);

/*
 * The same of whatever may touch memory of the context's device: its own work, and once a
 * copy between devices was seen (gksm.crossed) that of all, since such a copy may stand in
 * a stream of either. With the launch gate closed, so that none is being enqueued.
 */
bool gksm_touch_pending(struct gksm *process, CUcontext context);
int gksm_wait_untouched(struct gksm *process, CUcontext context, int timeout_ms);

/* Polls until the work enqueued in `stream` so far, as the stream orders it, is
 * done (an event recorded in it has fired). 0, -ETIMEDOUT, -EBUSY (capturing),
 * -ENODEV (context dead). */
int gksm_wait_order(struct gksm *process, CUstream stream, int timeout_ms);

/* true: the stream is part of a capture, so nothing but the capture's own calls may
 * touch it. */
bool gksm_stream_capturing(struct gksm *process, CUstream stream);

/*
 * While a thread captures in GLOBAL mode, calls that might be unsafe are forbidden to
 * every thread that is not in RELAXED mode, and the capture is spoiled. What the core
 * does is in no capture's way: it runs between these two. The driver's own call, made
 * for the program, does not.
 */
struct gksm_relaxed {
	bool entered;
	CUstreamCaptureMode mode;
};

void gksm_relaxed_enter(struct gksm *process, struct gksm_relaxed *relaxed);
void gksm_relaxed_leave(struct gksm_relaxed *relaxed);

/*
 * For the wrappers. What a stream still has to do cannot be asked of it once it is
 * destroyed or part of a capture; these look before that happens.
 */
void gksm_context_known(struct gksm *process, CUcontext context, CUdevice device);
/* A green context is about to be destroyed: its streams live on, and so does what they
 * have to do. */
void gksm_green_context_gone(struct gksm *process, CUcontext context);
void gksm_capture_begins(struct gksm *process, CUstream stream);
void gksm_capture_ended(struct gksm *process);
void gksm_stream_waits_event(struct gksm *process, CUstream stream);
/* The calling thread is about to use its per-thread stream. Other threads cannot ask
 * that stream; they ask the legacy stream, which waits for it. */
void gksm_per_thread_used(struct gksm *process);

#endif
