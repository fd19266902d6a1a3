/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Around every copy, set and graph call: pages it writes get memory of their own,
 * pages it reads exist, and no mapping changes between that and the enqueue.
 */
#include "access.h"

#include <errno.h>
#include <string.h>

#include "access_wait.h"
#include "gpu.h"
#include "kept.h"
#include "marks.h"
#include "privatize.h"
#include "reclaim.h"
#include "streams.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)
#define SPANS_COMPARED 16 /* calls with more keep the old bytes of what they write */

struct walk {
	struct gksm *process;
	CUcontext context;
	enum gksm_page_event event;
	bool discard;		      /* full pages need not keep their old bytes */
	CUcontext other;	      /* the one whose memory the range is; NULL: `context` */
	const struct gksm_gpu *asked; /* about whose pages `pending` is */
	bool pending;		      /* other work may touch pages this call reads */
	enum gksm_kind kind;	      /* what it writes */
	bool copied;		      /* from other pages of ours */
	bool *full; /* there is no memory to give such pages: they are read as they are */
	struct gksm_mark **mark; /* NULL: pages are made ready, not counted */
	struct gksm_kept **kept;
};

static bool whole_page(const struct gksm_span *span, CUdeviceptr page)
{
	return (span->flags & GKSM_SPAN_EVERY_BYTE) && span->address <= page &&
	       span->address + span->bytes >= page + PAGE;
}

/*
 * Nobody needs the old bytes of the pages that the span covers, if the driver takes the
 * call: it writes there only, in one allocation, and does not read them too. Of several
 * writes some may be done when another is refused, and then nobody knows which.
 */
static bool old_bytes_useless(const struct gksm_page_range *range, const struct gksm_span *span,
			      const struct gksm_span *spans, size_t count)
{
	const struct gksm_page *pages = range->gpu->pages;
	size_t i;

	if (count > SPANS_COMPARED || !pages[range->first].allocation ||
	    pages[range->first].allocation != pages[range->end - 1].allocation)
		return false;
	for (i = 0; i < count; i++) {
		if (spans[i].flags & GKSM_SPAN_WRITE) {
			if (&spans[i] != span)
				return false;
		} else if (spans[i].address < span->address + span->bytes &&
			   span->address < spans[i].address + spans[i].bytes) {
			return false;
		}
	}
	return true;
}

static int make_private(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
			struct walk *walk, bool discard)
{
	struct gksm_privatize how = {
		.why = walk->event == GKSM_ON_LAUNCH ? GKSM_UNSHARED_KERNEL : GKSM_UNSHARED_API,
		.reason = GKSM_DETACH_API_WRITE,
		.discard = discard,
		.keep = walk->kept,
	};
	int error = gksm_make_private(gpu, page, from, &how);

	if (!error && (from == GKSM_PAGE_UNBACKED || from == GKSM_PAGE_FILLING))
		atomic_store(&gpu->pages[page].kind, (uint8_t)walk->kind);
	return error;
}

static bool counting(const struct walk *walk)
{
	return walk->mark != NULL;
}

/*
 * Before this call waits for a page, or remaps one: whoever changes pages that it has
 * counted itself in on waits for it. true: the walk has to start anew.
 */
static bool marks_dropped(struct walk *walk)
{
	if (!walk->mark || !*walk->mark)
		return false;
	gksm_mark_drop(*walk->mark);
	*walk->mark = NULL;
	return true;
}

/* Counts this call in on a page that it leaves as it is. -EAGAIN: the page changed before
 * the count was there. */
static int count_in(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state state,
		    struct walk *walk)
{
	int error = gksm_mark_add(walk->mark, gpu, page);

	if (error || gksm_page_state(gpu, page) == state)
		return error;
	marks_dropped(walk);
	return -EAGAIN;
}

/*
 * A page that is mapped read-only, and that this call reads behind other work: that may
 * yet write to it. -EINPROGRESS: look at it again; -EAGAIN: the walk starts anew, only
 * once the page is private: before that it would meet the same marks on the pages before
 * it, and the same page, for ever.
 */
static int detach_for_read(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state state,
			   struct walk *walk)
{
	int again = marks_dropped(walk) ? -EAGAIN : -EINPROGRESS;
	int error;

	if (!gksm_page_take(gpu, page, state))
		return again;
	error = make_private(gpu, page, state, walk, false);
	/* Better the risk that the pending work writes to the page than a read that fails. */
	*walk->full = error == -ENOMEM;
	return !error || *walk->full || error == -ETIMEDOUT ? again : error;
}

/* Asked once a GPU, and only when a page that is mapped read-only makes the answer
 * matter. */
static bool pending(struct walk *walk, const struct gksm_gpu *gpu)
{
	if (walk->asked != gpu)
		walk->pending = gksm_work_pending_on(walk->process, walk->context, walk->other);
	walk->asked = gpu;
	return walk->pending;
}

/* The page stays what it is. */
static int use(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state state, struct walk *walk)
{
	if (walk->event == GKSM_ON_COPY_READ && atomic_load(&gpu->guard) == GKSM_GUARD_FAULT &&
	    gksm_page_read_only(state) && pending(walk, gpu) && !*walk->full)
		return detach_for_read(gpu, page, state, walk);
	return counting(walk) ? count_in(gpu, page, state, walk) : 0;
}

/* What a write leaves behind, for the scanner. */
static void note_write(struct gksm_gpu *gpu, uint64_t index, const struct walk *walk, bool whole)
{
	struct gksm_page *page = &gpu->pages[index];

	if (walk->event != GKSM_ON_API_WRITE)
		return;
	if (whole)
		atomic_store(&page->kind, (uint8_t)walk->kind);
	whole = whole && walk->copied;
	atomic_store(&page->written, (uint8_t)(whole ? GKSM_WRITTEN_COPIED : GKSM_WRITTEN));
	if (whole)
		atomic_store(&gpu->copied, true);
}

static int ready_page(struct gksm_gpu *gpu, uint64_t page, struct walk *walk, bool whole)
{
	if (!counting(walk))
		note_write(gpu, page, walk, whole);
	for (;;) {
		enum gksm_page_state state = gksm_page_state(gpu, page);
		struct gksm_page_rule rule = gksm_page_rule(state, walk->event);
		int error;

		switch (rule.verdict) {
		case GKSM_GO:
			if (marks_dropped(walk))
				return -EAGAIN;
			/* Waited for before the page is taken: a fault on it can be answered
			 * meanwhile. */
			if (gksm_page_read_only(state) && gksm_marks_wait(gpu, page))
				continue;
			if (!gksm_page_take(gpu, page, state))
				continue;
			error = make_private(gpu, page, state, walk, whole && walk->discard);
			/* A copy engine reads on and on: only a held fault has a deadline. */
			if (error && error != -ETIMEDOUT)
				return error;
			/* What is private now is counted in like any other. */
			if (!error && !counting(walk))
				return 0;
			continue;
		case GKSM_WAIT_IT:
			if (marks_dropped(walk))
				return -EAGAIN;
			gksm_page_wait(gpu, page, state);
			continue;
		default:
			if (state == GKSM_PAGE_LOST || state == GKSM_PAGE_FREE)
				return 0;
			error = use(gpu, page, state, walk);
			if (error != -EINPROGRESS)
				return error;
		}
	}
}

static int ready_range(const struct gksm_page_range *range, const struct gksm_span *span,
		       struct walk *walk)
{
	uint64_t page;
	int error = 0;

	for (page = range->first; !error && page < range->end; page++)
		error = ready_page(range->gpu, page, walk,
				   whole_page(span, gksm_page_address(range->gpu, page)));
	return error;
}

static CUcontext current_context(struct gksm *process)
{
	CUcontext context = NULL;

	process->driver.cuCtxGetCurrent(&context);
	return context;
}

static enum gksm_page_event event_of(const struct gksm_span *span)
{
	if (span->flags & GKSM_SPAN_WRITE)
		return GKSM_ON_API_WRITE;
	return (span->flags & GKSM_SPAN_LAUNCH) ? GKSM_ON_LAUNCH : GKSM_ON_COPY_READ;
}

/* What the call writes: a copy what its source is, from outside it is loaded; a set
 * neither. */
static void judge_source(struct gksm *process, const struct gksm_span *spans, size_t count,
			 struct walk *walk)
{
	struct gksm_page_range range;
	size_t i;

	walk->kind = GKSM_KIND_OTHER;
	for (i = 0; i < count; i++) {
		if (spans[i].flags & (GKSM_SPAN_WRITE | GKSM_SPAN_LAUNCH))
			continue;
		walk->copied = gksm_range_of(process, &spans[i], &range);
		walk->kind =
			walk->copied ? gksm_page_kind(range.gpu, range.first) : GKSM_KIND_WEIGHTS;
		return;
	}
}

static int walk_spans(struct walk *walk, const struct gksm_span *spans, size_t count)
{
	size_t i;

	/* Writes first: a page that the call reads and writes is then private when the read
	 * comes to it. */
	for (i = 0; i < 2 * count; i++) {
		const struct gksm_span *span = &spans[i % count];
		struct gksm_page_range range;
		int error;

		if (!(span->flags & GKSM_SPAN_WRITE) != (i >= count) ||
		    !gksm_range_of(walk->process, span, &range))
			continue;
		/* Only a fault guard lets mappings change beside copies; elsewhere a remap
		 * drains all work first. What a kernel may touch is no copy. */
		if (counting(walk) && (atomic_load(&range.gpu->guard) != GKSM_GUARD_FAULT ||
				       (span->flags & GKSM_SPAN_LAUNCH)))
			continue;
		/* Inside the gate, and before it is enqueued: whoever closes the gate to
		 * remap pages sees it. */
		walk->other = gksm_range_other_side(&range, walk->context);
		if (walk->other)
			atomic_store(&walk->process->crossed, true);
		walk->discard = gksm_range_read_only(&range) && !pending(walk, range.gpu) &&
				old_bytes_useless(&range, span, spans, count);
		walk->event = event_of(span);
		error = ready_range(&range, span, walk);
		if (error)
			return error;
	}
	return 0;
}

/* Makes the pages what they must be, and then, when nothing is waited for any more,
 * counts the call in on them. */
static int ready_spans(struct gksm *process, const struct gksm_span *spans, size_t count,
		       CUcontext context, struct gksm_access *access)
{
	bool full = false;
	int error;

	do {
		struct walk walk = {
			.process = process,
			.context = context,
			.full = &full,
			.kept = &access->kept,
		};

		judge_source(process, spans, count, &walk);
		error = walk_spans(&walk, spans, count);
		if (error)
			break;
		walk.mark = &access->mark;
		error = walk_spans(&walk, spans, count);
	} while (error == -EAGAIN);
	return error;
}

/* An error holds nothing. */
static int begin(struct gksm *process, const struct gksm_span *spans, size_t count,
		 struct gksm_access *access)
{
	CUcontext context = current_context(process);
	int error;

	gksm_wait_to_write(process, spans, count);
	gksm_wait_to_read(process, spans, count, context);
	gksm_gate_enter(&process->gate);
	access->process = process;
	error = ready_spans(process, spans, count, context, access);
	if (!error)
		return 0;
	gksm_kept_restore(access->kept);
	gksm_mark_drop(access->mark);
	gksm_gate_leave(&process->gate);
	memset(access, 0, sizeof(*access));
	return error;
}

CUresult gksm_access_begin(struct gksm *process, const struct gksm_span *spans, size_t count,
			   struct gksm_access *access)
{
	int error;

	memset(access, 0, sizeof(*access));
	if (!gksm_spans_ours(process, spans, count))
		return CUDA_SUCCESS;
	error = begin(process, spans, count, access);
	while (error == -ENOMEM && gksm_reclaim_spans(process, spans, count))
		error = begin(process, spans, count, access);
	/* -EIO: the driver's own call meets the dead context and says so. */
	return error == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void gksm_access_end(struct gksm_access *access, CUstream stream)
{
	if (!access->process)
		return;
	gksm_kept_drop(access->kept);
	gksm_mark_enqueued(access->mark, stream);
	gksm_gate_leave(&access->process->gate);
}

void gksm_access_drop(struct gksm_access *access)
{
	if (!access->process)
		return;
	gksm_kept_restore(access->kept);
	gksm_mark_drop(access->mark);
	gksm_gate_leave(&access->process->gate);
}

void gksm_access_refused(struct gksm_access *access)
{
	gksm_kept_restore(access->kept);
	access->kept = NULL;
}
