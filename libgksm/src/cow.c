/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The COW thread answers held faults.
 *
 * While a fault is held the whole GPU stands still for everybody, so between reading a
 * fault and answering it this thread does nothing that could wait: no lock but the
 * page's compare-and-swap (and its engine's, which only context teardown contends for),
 * no request to gksmd, no copy that needs an SM, no creation where a spare is ready. A
 * page that somebody else is changing (BUSY) is looked at again after the others.
 *
 * Faults are read in batches and answered in one write. What can be done later is done
 * after the answer: unmapping scratch addresses, new spares, telling gksmd.
 *
 * The thread also unshares on demand (CONTROL, a stall budget overdrawn), a few pages
 * between looks at the guard.
 */
#include "cow.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine.h"
#include "fork.h"
#include "gksm/guard.h"
#include "gpu.h"
#include "link.h"
#include "marks.h"
#include "privatize.h"
#include "report.h"
#include "spares.h"
#include "streams.h"

#define BATCH 64
#define FAULT_AROUND 8
#define UNSHARE_STEP 16
#define DEFERRED_POLL_MS 1
#define IDLE_POLL_MS 1000

struct gksm_cow {
	struct gksm_gpu *gpu;
	int wake_fd;
	_Atomic bool unshare;
	bool unshare_left; /* a page was left for another pass: a copy engine reads it */
	struct gksm_spares spares;
	struct gksm_fault faults[BATCH]; /* read, not answered */
	size_t fault_count;
	struct gksm_fault_answer answers[BATCH];
	size_t answer_count;
};

enum outcome { ANSWER_DONE, ANSWER_REFUSE, LOOK_AGAIN };

static void note_latency(struct gksm_gpu *gpu, uint64_t held_ns)
{
	uint64_t now = gksm_now_ns();
	uint64_t took = now > held_ns ? now - held_ns : 0;
	uint64_t max = atomic_load(&gpu->counters.cow_ns_max);

	atomic_fetch_add(&gpu->counters.cow_events, 1);
	atomic_fetch_add(&gpu->counters.cow_ns_total, took);
	while (took > max && !atomic_compare_exchange_weak(&gpu->counters.cow_ns_max, &max, took))
		;
}

/* The caller has taken the page out of `from`. */
static int give_private(struct gksm_cow *cow, uint64_t page, enum gksm_page_state from,
			enum gksm_detach_reason reason)
{
	struct gksm_gpu *gpu = cow->gpu;
	struct gksm_engine *engine = gpu->pages[page].engine;
	struct gksm_privatize how = {
		.why = GKSM_UNSHARED_KERNEL,
		.reason = reason,
	};
	bool spare = false;
	int error = -EIO;

	if (!gksm_mutex_try_lock(&engine->cow_lock)) {
		gksm_page_put(gpu, page, from);
		return -EAGAIN; /* the context is being torn down */
	}
	if (gksm_engine_enter(engine)) {
		gksm_page_put(gpu, page, from);
	} else {
		how.mover = &engine->cow;
		/* Spares are for pages with bytes to copy: an empty one needs no scratch
		 * mapping, so creating it costs the same now. */
		if (from != GKSM_PAGE_UNBACKED && from != GKSM_PAGE_MERGING)
			spare = gksm_spares_take(&cow->spares, &how.backing);
		error = gksm_privatize(gpu, page, from, &how);
		if (error == -ENOMEM && !spare) {
			spare = gksm_spares_take(&cow->spares, &how.backing);
			/* Somebody else may have taken the page since it was put back. */
			if (spare)
				error = gksm_page_take(gpu, page, from)
						? gksm_privatize(gpu, page, from, &how)
						: -EAGAIN;
		}
		if (error == -EAGAIN)
			gksm_spares_return(&cow->spares, &how.backing);
		else if (error && spare)
			gksm_spares_spoil(&cow->spares, &how.backing);
		gksm_engine_leave(engine);
	}
	gksm_mutex_unlock(&engine->cow_lock);
	return error;
}

/* Kernels touch new memory front to back: a second first touch in a row brings the
 * following pages along. */
static void fault_around(struct gksm_cow *cow, uint64_t page)
{
	struct gksm_gpu *gpu = cow->gpu;
	uint32_t allocation = gpu->pages[page].allocation;
	const struct gksm_page *before = page ? &gpu->pages[page - 1] : NULL;
	uint64_t next;

	if (!before || before->allocation != allocation ||
	    atomic_load(&before->state) != GKSM_PAGE_PRIVATE ||
	    before->unshared != GKSM_UNSHARED_KERNEL)
		return;
	for (next = page + 1; next < gpu->arena_pages && next <= page + FAULT_AROUND; next++) {
		if (gpu->pages[next].allocation != allocation ||
		    !gksm_page_take(gpu, next, GKSM_PAGE_UNBACKED))
			return;
		if (give_private(cow, next, GKSM_PAGE_UNBACKED, GKSM_DETACH_COW))
			return;
	}
}

static enum outcome answer(struct gksm_cow *cow, const struct gksm_fault *fault)
{
	struct gksm_gpu *gpu = cow->gpu;
	uint64_t page = fault->page;
	enum gksm_page_state state;
	struct gksm_page_rule rule;
	int error;

	if (page >= gpu->arena_pages)
		return ANSWER_REFUSE;
	state = gksm_page_state(gpu, page);
	rule = gksm_page_rule(state, GKSM_ON_FAULT);
	if (rule.verdict == GKSM_WAIT_IT)
		return LOOK_AGAIN;
	if (state == GKSM_PAGE_LOST || rule.verdict == GKSM_NEVER)
		return ANSWER_REFUSE;
	/* Repaired since, or a read that only met the hole: trying again is enough. */
	if (rule.verdict == GKSM_STAY ||
	    ((state == GKSM_PAGE_SHARED || state == GKSM_PAGE_MERGING) &&
	     fault->access == GKSM_FAULT_READ))
		return ANSWER_DONE;
	if (!gksm_page_take(gpu, page, state))
		return LOOK_AGAIN;
	error = give_private(cow, page, state, GKSM_DETACH_COW);
	if (error == -EAGAIN)
		return LOOK_AGAIN;
	if (error) {
		gksm_report(gpu->process, GKSM_ERROR,
			    "a write to a shared page cannot be copied (%s): its context dies",
			    error == -ENOMEM ? "no GPU memory" : "a copy failed");
		return ANSWER_REFUSE;
	}
	if (state == GKSM_PAGE_MERGING)
		return ANSWER_DONE;
	gpu->pages[page].kind = state == GKSM_PAGE_UNBACKED || state == GKSM_PAGE_SHARED
					? GKSM_KIND_OTHER
					: GKSM_KIND_WEIGHTS;
	if (state == GKSM_PAGE_SHARED) {
		note_latency(gpu, fault->held_ns);
	} else {
		atomic_fetch_add(&gpu->counters.first_touches, 1);
		fault_around(cow, page);
	}
	return ANSWER_DONE;
}

static void send_answers(struct gksm_cow *cow)
{
	const char *at = (const char *)cow->answers;
	size_t left = cow->answer_count * sizeof(cow->answers[0]);

	while (left) {
		ssize_t sent = write(cow->gpu->guard_fd, at, left);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN) {
			struct pollfd out = {.fd = cow->gpu->guard_fd, .events = POLLOUT};

			poll(&out, 1, DEFERRED_POLL_MS);
			continue;
		}
		if (sent <= 0)
			break; /* the guard is gone, and with it every hold */
		at += sent;
		left -= (size_t)sent;
	}
	cow->answer_count = 0;
}

static void work_through(struct gksm_cow *cow)
{
	size_t kept = 0;
	size_t i;

	for (i = 0; i < cow->fault_count; i++) {
		struct gksm_fault *fault = &cow->faults[i];
		enum outcome outcome = answer(cow, fault);

		if (outcome == LOOK_AGAIN) {
			cow->faults[kept++] = *fault;
			continue;
		}
		cow->answers[cow->answer_count++] = (struct gksm_fault_answer){
			.page = fault->page,
			.verdict = outcome == ANSWER_DONE ? GKSM_FAULT_DONE : GKSM_FAULT_REFUSE,
		};
	}
	cow->fault_count = kept;
}

static void over_budget(struct gksm_cow *cow)
{
	gksm_report(cow->gpu->process, GKSM_WARNING,
		    "the GPU stood still too long for this process's writes: it stops sharing");
	atomic_store(&cow->gpu->allowed, false);
	atomic_store(&cow->unshare, true);
}

static void read_faults(struct gksm_cow *cow)
{
	struct gksm_fault *end = cow->faults + cow->fault_count;
	size_t room = (BATCH - cow->fault_count) * sizeof(*end);
	ssize_t got;
	size_t count;
	size_t i;

	if (!room)
		return;
	got = read(cow->gpu->guard_fd, end, room);
	if (got <= 0)
		return;
	count = (size_t)got / sizeof(*end);
	for (i = 0; i < count; i++) {
		if (end[i].access == GKSM_FAULT_OVER_BUDGET)
			over_budget(cow);
		else
			cow->faults[cow->fault_count++] = end[i];
	}
}

/* Between remaps nothing may run without a fault guard. */
static bool may_remap(struct gksm_cow *cow, CUcontext context)
{
	struct gksm *process = cow->gpu->process;
	uint32_t drain_ms = cow->gpu->terms.drain_ms;

	if (atomic_load(&cow->gpu->guard) == GKSM_GUARD_FAULT)
		return true;
	if (gksm_gate_close(&process->gate, drain_ms * 1000000ll))
		return false;
	if (gksm_wait_idle(process, context, (int)drain_ms) != -ETIMEDOUT)
		return true;
	gksm_gate_open(&process->gate);
	return false;
}

static void unshare_page(struct gksm_cow *cow, uint64_t page)
{
	struct gksm_engine *engine = cow->gpu->pages[page].engine;

	if (!engine || !may_remap(cow, engine->context))
		return;
	if (gksm_page_take(cow->gpu, page, GKSM_PAGE_SHARED)) {
		/* To wait for the copy here would keep faults waiting. */
		if (atomic_load(&cow->gpu->pages[page].copy_busy)) {
			gksm_page_put(cow->gpu, page, GKSM_PAGE_SHARED);
			cow->unshare_left = true;
		} else {
			give_private(cow, page, GKSM_PAGE_SHARED, GKSM_DETACH_UNSHARE);
		}
	}
	if (atomic_load(&cow->gpu->guard) != GKSM_GUARD_FAULT)
		gksm_gate_open(&cow->gpu->process->gate);
}

/* A few pages, so that faults never wait for the rest. */
static void unshare_some(struct gksm_cow *cow, uint64_t *cursor)
{
	struct gksm_gpu *gpu = cow->gpu;
	unsigned done = 0;

	gksm_marks_reap(gpu);
	if (*cursor == 0)
		cow->unshare_left = false;
	while (*cursor < gpu->arena_pages && done < UNSHARE_STEP) {
		if (gksm_page_state(gpu, *cursor) == GKSM_PAGE_SHARED) {
			unshare_page(cow, *cursor);
			done++;
		}
		++*cursor;
	}
	if (*cursor == gpu->arena_pages) {
		*cursor = 0;
		if (!cow->unshare_left)
			atomic_store(&cow->unshare, false);
	}
}

static void *run(void *argument)
{
	struct gksm_cow *cow = argument;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct pollfd fds[2];
	uint64_t cursor = 0;

	cow->gpu->process->driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (;;) {
		bool unsharing = atomic_load(&cow->unshare);
		int timeout = cow->fault_count || cow->unshare_left ? DEFERRED_POLL_MS
			      : unsharing			    ? 0
								    : IDLE_POLL_MS;

		fds[0] = (struct pollfd){.fd = cow->wake_fd, .events = POLLIN};
		fds[1] = (struct pollfd){.fd = cow->gpu->guard_fd, .events = POLLIN};
		poll(fds, 2, timeout);
		if (fds[0].revents & POLLIN) {
			uint64_t ignored;

			if (read(cow->wake_fd, &ignored, sizeof(ignored)) < 0)
				ignored = 0;
		}
		if (cow->gpu->guard_fd >= 0)
			read_faults(cow);
		if (fds[1].revents & (POLLHUP | POLLERR | POLLNVAL)) {
			/* No guard, no holds: poll would only spin. */
			gksm_fd_close(cow->gpu->guard_fd);
			cow->gpu->guard_fd = -1;
			atomic_store(&cow->gpu->allowed, false);
		}
		if (cow->fault_count) {
			work_through(cow);
			send_answers(cow);
		}
		if (unsharing)
			unshare_some(cow, &cursor);
		gksm_spares_refill(&cow->spares);
		gksm_gpu_report_usage(cow->gpu);
	}
	return NULL;
}

int gksm_cow_start(struct gksm_gpu *gpu)
{
	struct gksm_cow *cow = calloc(1, sizeof(*cow));
	int error;

	if (!cow)
		return -ENOMEM;
	cow->gpu = gpu;
	cow->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	error = cow->wake_fd < 0 ? -EMFILE : gksm_spares_init(&cow->spares, gpu);
	if (!error) {
		gksm_fd_opened(cow->wake_fd);
		gpu->cow = cow;
		error = gksm_thread_start(run, cow, "gksm-cow");
	}
	if (error) {
		gpu->cow = NULL;
		if (cow->wake_fd >= 0)
			gksm_fd_close(cow->wake_fd);
		free(cow);
	}
	return error;
}

void gksm_cow_wake(struct gksm_gpu *gpu)
{
	uint64_t one = 1;

	if (gpu->cow && write(gpu->cow->wake_fd, &one, sizeof(one)) < 0)
		return; /* it looks once a second anyway */
}

void gksm_cow_unshare(struct gksm_gpu *gpu)
{
	if (!gpu->cow)
		return;
	atomic_store(&gpu->cow->unshare, true);
	gksm_cow_wake(gpu);
}
