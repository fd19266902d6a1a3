/* SPDX-License-Identifier: Apache-2.0 */
#include "marks.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu.h"

#define POLL_NS 20000

static void count_out(struct gksm_mark *mark)
{
	size_t i;

	for (i = 0; i < mark->count; i++)
		atomic_fetch_sub(&mark->gpu->pages[mark->pages[i]].copy_busy, 1);
	if (mark->event)
		mark->gpu->process->driver.cuEventDestroy_v2(mark->event);
	free(mark->pages);
	free(mark);
}

int gksm_mark_add(struct gksm_mark **mark, struct gksm_gpu *gpu, uint64_t page)
{
	struct gksm_mark *found = *mark;

	while (found && found->gpu != gpu)
		found = found->next;
	if (!found) {
		found = calloc(1, sizeof(*found));
		if (!found)
			return -ENOMEM;
		found->gpu = gpu;
		found->next = *mark;
		*mark = found;
	}
	if (found->count == found->room) {
		size_t room = found->room * 2 + 64;
		uint64_t *pages = realloc(found->pages, room * sizeof(*pages));

		if (!pages)
			return -ENOMEM;
		found->pages = pages;
		found->room = room;
	}
	found->pages[found->count++] = page;
	atomic_fetch_add(&gpu->pages[page].copy_busy, 1);
	return 0;
}

void gksm_marks_reap(struct gksm_gpu *gpu)
{
	struct gksm_mark *done = NULL;
	struct gksm_mark **link;
	size_t kept = 0;

	gksm_mutex_lock(&gpu->marks_lock);
	link = &gpu->marks;
	while (*link) {
		struct gksm_mark *mark = *link;

		/* Anything but NOT_READY, a dead context included, means that no copy
		 * engine will read any more. */
		if (gpu->process->driver.cuEventQuery(mark->event) == CUDA_ERROR_NOT_READY) {
			link = &mark->next;
			kept++;
			continue;
		}
		*link = mark->next;
		mark->next = done;
		done = mark;
	}
	gpu->marks_kept = kept;
	gpu->marks_added = 0;
	gksm_mutex_unlock(&gpu->marks_lock);
	while (done) {
		struct gksm_mark *mark = done;

		done = mark->next;
		count_out(mark);
	}
}

void gksm_mark_enqueued(struct gksm_mark *mark, CUstream stream)
{
	while (mark) {
		struct gksm_mark *next = mark->next;
		struct gksm_gpu *gpu = mark->gpu;
		const struct gksm_driver *driver = &gpu->process->driver;
		bool due;

		/* A synchronous copy is over by now. An event of ours behind it would only
		 * make the stream look busy to whoever reads next. */
		if (driver->cuStreamQuery(stream) == CUDA_SUCCESS) {
			count_out(mark);
			mark = next;
			continue;
		}
		if (driver->cuEventCreate(&mark->event, CU_EVENT_DISABLE_TIMING))
			mark->event = NULL;
		if (!mark->event || driver->cuEventRecord(mark->event, stream)) {
			count_out(mark);
		} else {
			gksm_mutex_lock(&gpu->marks_lock);
			mark->next = gpu->marks;
			gpu->marks = mark;
			/* A deep queue of copies is not asked about anew by each of them. */
			due = ++gpu->marks_added > gpu->marks_kept / 2;
			gksm_mutex_unlock(&gpu->marks_lock);
			if (due)
				gksm_marks_reap(gpu);
		}
		mark = next;
	}
}

void gksm_mark_drop(struct gksm_mark *mark)
{
	while (mark) {
		struct gksm_mark *next = mark->next;

		count_out(mark);
		mark = next;
	}
}

int gksm_marks_wait(struct gksm_gpu *gpu, uint64_t page)
{
	uint64_t deadline;

	if (atomic_load(&gpu->pages[page].copy_busy) == 0)
		return 0;
	deadline = gksm_now_ns() + gpu->terms.hold_deadline_ms * 1000000ull / 2;
	for (;;) {
		gksm_marks_reap(gpu);
		if (atomic_load(&gpu->pages[page].copy_busy) == 0)
			return 0;
		if (gksm_now_ns() > deadline)
			return -ETIMEDOUT;
		gksm_sleep_ns(POLL_NS);
	}
}

void gksm_looks_wait(struct gksm_gpu *gpu, uint64_t page)
{
	while (atomic_load(&gpu->pages[page].looks))
		gksm_sleep_ns(POLL_NS);
}
