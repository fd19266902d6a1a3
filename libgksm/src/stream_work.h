/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the three files about streams share:
 *
 *   streams.c      the questions: is work pending, wait for it
 *   stream_work.c  asking the driver: queries, events, and contexts made current for it
 *   stream_list.c  which streams there are, and what is remembered of those that go
 *
 * No lock is held across a driver call. An entry in use is counted and whoever wants
 * to unlink it waits for that: a query blocks while another thread sits in a full
 * launch queue, and nobody who only creates a stream may block with it. The one
 * exception are orphans, whose lock only those take who ask for all work or add to it.
 */
#ifndef GKSM_STREAM_WORK_H
#define GKSM_STREAM_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "sync.h"

struct gksm;

#define GKSM_POLL_FIRST_NS 10000u
#define GKSM_POLL_MOST_NS 500000u

struct gksm_known_context {
	struct gksm_known_context *next;
	CUcontext context;
	CUdevice device;
};

struct gksm_known_stream {
	struct gksm_known_stream *next;
	CUcontext context;
	CUdevice device;
	CUstream stream;
	bool non_blocking;
	bool gone; /* its owner waits for users to become 0 */
	unsigned users;
};

struct gksm_work {
	struct gksm_work *next;
	CUcontext context;
	CUdevice device;
	CUevent event;
};

struct gksm_streams {
	struct gksm_mutex lock;
	struct gksm_known_context *contexts;
	struct gksm_known_stream *streams; /* the legacy stream of each context included */
	struct gksm_work *spare_works;	   /* events that nobody waits for */
	struct gksm_mutex orphans_lock;	   /* taken before lock, held while they are asked */
	struct gksm_work *orphans;	   /* of streams that cannot be asked any more */
	_Atomic uint32_t captures;
	_Atomic uint32_t per_thread_threads;
};

enum gksm_answer {
	GKSM_IDLE,
	GKSM_PENDING,
	GKSM_CAPTURING, /* cannot be asked */
	GKSM_DEAD	/* nor ever again */
};

/* A visit makes a context current for a few calls and keeps them out of captures. */
struct gksm_visit {
	bool pushed;
	bool relaxed;
	CUstreamCaptureMode mode;
};

/* This thread has used its per-thread stream. initial-exec: the library is there from
 * process start, and __tls_get_addr would be a NEEDED beyond libc. */
extern __thread bool gksm_per_thread_seen __attribute__((tls_model("initial-exec")));

/* Made at first use; NULL: no memory. */
struct gksm_streams *gksm_streams_of(struct gksm *process);

CUresult gksm_visit_enter(struct gksm_streams *streams, CUcontext context,
			  struct gksm_visit *visit);
void gksm_visit_leave(struct gksm_visit *visit);

/* true: other threads have used their per-thread streams. */
bool gksm_other_threads_streams(struct gksm_streams *streams);

/* Answers for all work that the stream is ordered after and that cannot be asked
 * elsewhere: the legacy stream stands for other threads' per-thread streams, which
 * takes an event in it. The context must be current. */
bool gksm_needs_event(struct gksm_streams *streams, CUstream stream);

/* The stream's context must be current in the first two. */
bool gksm_capturing(CUstream stream);
enum gksm_answer gksm_ask_stream(CUstream stream);
enum gksm_answer gksm_answer_of(CUresult result);

/* An event of the current context, recorded in the stream. NULL: it could not be, and
 * *answer says why (GKSM_PENDING: no memory). */
struct gksm_work *gksm_work_record(struct gksm_streams *streams, CUcontext context, CUdevice device,
				   CUstream stream, enum gksm_answer *answer);
/* Polls until it is done, then keeps the event for later. 0, -ETIMEDOUT, -ENODEV. */
int gksm_work_poll(struct gksm_streams *streams, struct gksm_work *work, uint64_t deadline);
/* What the stream has to do now becomes an orphan. */
void gksm_work_remember(struct gksm_streams *streams, CUcontext context, CUdevice device,
			CUstream stream);
/* true: an orphan of the device is not done. */
bool gksm_orphans_pending(struct gksm_streams *streams, CUdevice device);
/* Forgets the events of a context. */
void gksm_works_gone(struct gksm_streams *streams, CUcontext context);

/* The device of a context; *context NULL becomes the current one. 0 or -ENODEV. Learns
 * about contexts made before us. */
int gksm_device_of(struct gksm *process, struct gksm_streams *streams, CUcontext *context,
		   CUdevice *device);
/* What is known of a stream. false: there is no current context to ask about it. */
bool gksm_stream_find(struct gksm *process, struct gksm_streams *streams, CUstream stream,
		      CUcontext *context, CUdevice *device, bool *non_blocking);
/* Steps through the streams of a device: the one returned is in use until the next
 * step. from NULL: the first. NULL at the end. */
struct gksm_known_stream *gksm_stream_step(struct gksm_streams *streams, CUdevice device,
					   struct gksm_known_stream *from);

#endif
