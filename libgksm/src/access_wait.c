/* SPDX-License-Identifier: Apache-2.0 */
#include "access_wait.h"

#include "engine.h"
#include "gpu.h"
#include "page_range.h"
#include "privatize.h"
#include "report.h"
#include "streams.h"

static int detach(struct gksm_gpu *gpu, uint64_t page)
{
	struct gksm_privatize how = {
		.why = GKSM_UNSHARED_API,
		.reason = GKSM_DETACH_API_WRITE,
	};

	return gksm_make_private(gpu, page, GKSM_PAGE_SHARED, &how);
}

/* For a closed gate: waits for no page, since whoever changes one may be waiting for the
 * gate. What is not shared now is met by the caller's own walk. */
static int detach_range(const struct gksm_page_range *range)
{
	uint64_t page;
	int error = 0;

	for (page = range->first; !error && page < range->end; page++)
		if (gksm_page_take(range->gpu, page, GKSM_PAGE_SHARED))
			error = detach(range->gpu, page);
	return error;
}

static bool needs_drain(struct gksm *process, const struct gksm_span *span,
			struct gksm_page_range *range)
{
	return (span->flags & GKSM_SPAN_WRITE) && gksm_range_of(process, span, range) &&
	       atomic_load(&range->gpu->guard) != GKSM_GUARD_FAULT && gksm_range_read_only(range);
}

/* Waits for what may touch the range, whose device need not be the current one. true:
 * nothing does. */
static bool drained(struct gksm *process, const struct gksm_page_range *range, unsigned drain_ms)
{
	uint64_t page = range->first;
	const struct gksm_engine *engine;

	while (page + 1 < range->end && gksm_page_state(range->gpu, page) != GKSM_PAGE_SHARED)
		page++;
	engine = atomic_load(&range->gpu->pages[page].engine);
	return !engine || !gksm_wait_untouched(process, engine->context, (int)drain_ms);
}

/*
 * Without a fault guard a shared page may only be remapped while nothing runs. An API
 * write keeps trying, with the gate open in between so that nobody else stands still.
 */
void gksm_wait_to_write(struct gksm *process, const struct gksm_span *spans, size_t count)
{
	bool reported = false;

	for (;;) {
		struct gksm_page_range range;
		unsigned drain_ms = 0;
		bool closed;
		bool idle;
		int error = 0;
		size_t i;

		for (i = 0; i < count; i++)
			if (needs_drain(process, &spans[i], &range))
				drain_ms = range.gpu->terms.drain_ms;
		if (!drain_ms)
			return;
		closed = !gksm_gate_close(&process->gate, drain_ms * 1000000ll);
		idle = closed;
		for (i = 0; idle && i < count; i++)
			if (needs_drain(process, &spans[i], &range))
				idle = drained(process, &range, drain_ms);
		if (closed && !idle)
			gksm_gate_open(&process->gate);
		if (!idle) {
			if (!reported)
				gksm_report(process, GKSM_WARNING,
					    "a write to shared pages waits for running kernels");
			reported = true;
			gksm_sleep_ns(1000000);
			continue;
		}
		for (i = 0; !error && i < count; i++)
			if (needs_drain(process, &spans[i], &range))
				error = detach_range(&range);
		gksm_gate_open(&process->gate);
		if (error)
			return; /* met again, and answered, by the caller's own walk */
	}
}

/*
 * A copy engine that reads shared pages behind work that may yet write to them would
 * deadlock with that write's fault. What is pending is mostly over in a moment, and a
 * detached page costs memory for good: so look away for a moment first.
 */
void gksm_wait_to_read(struct gksm *process, const struct gksm_span *spans, size_t count,
		       CUcontext context)
{
	size_t i;

	for (i = 0; i < count; i++) {
		struct gksm_page_range range;
		CUcontext other;

		if ((spans[i].flags & (GKSM_SPAN_WRITE | GKSM_SPAN_LAUNCH)) ||
		    !gksm_range_of(process, &spans[i], &range) ||
		    atomic_load(&range.gpu->guard) != GKSM_GUARD_FAULT ||
		    !gksm_range_read_only(&range))
			continue;
		other = gksm_range_other_side(&range, context);
		if (gksm_work_pending_on(process, context, other)) {
			gksm_wait_idle(process, context, (int)range.gpu->terms.drain_ms);
			if (other)
				gksm_wait_idle(process, other, (int)range.gpu->terms.drain_ms);
		}
		return;
	}
}
