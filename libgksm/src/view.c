/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <stddef.h>

#include "foreign.h"
#include "gpu.h"
#include "link.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

/* Shared pages that this process left a moment ago are free when gksmd and the vault have
 * let go of them. Until then they look like memory that others took. */
#define LEFT_SETTLES_NS 1000000000ull
#define LEFT_PATIENCE_NS 200000000ull
#define LEFT_PAUSE_NS 5000000ull

static uint64_t less(uint64_t from, uint64_t bytes)
{
	return bytes < from ? from - bytes : 0;
}

uint64_t gksm_view_others(const struct gksm_view_figures *figures)
{
	uint64_t open = less(figures->free_bytes, figures->held_bytes);
	uint64_t taken = less(figures->total_bytes, open);

	return less(taken, figures->backed_bytes + figures->foreign_bytes);
}

uint64_t gksm_view_free(struct gksm_view *view, const struct gksm_view_figures *figures)
{
	uint64_t others = gksm_view_others(figures);
	uint64_t active = atomic_load(&view->active_ns);

	if (!view->known) {
		/* Who asks for the first time is about to start. */
		view->known = true;
		view->since_ns = figures->now_ns;
		view->others_bytes = others;
	} else if (others >= view->others_bytes ||
		   figures->now_ns - view->since_ns > GKSM_VIEW_LONGEST_NS ||
		   (less(figures->now_ns, active) > GKSM_VIEW_QUIET_NS &&
		    figures->now_ns - view->since_ns > GKSM_VIEW_QUIET_NS)) {
		view->since_ns = figures->now_ns;
		view->others_bytes = others;
	}
	return less(figures->total_bytes,
		    figures->virtual_bytes + figures->foreign_bytes + view->others_bytes);
}

void gksm_view_active(struct gksm_gpu *gpu)
{
	atomic_store_explicit(&gpu->view.active_ns, gksm_now_ns(), memory_order_relaxed);
}

static void measure(struct gksm_gpu *gpu, struct gksm_view_figures *figures)
{
	struct gksm_committed committed = {0};
	struct gksm_usage usage;

	if (gpu->process->link)
		gksm_link_commit(gpu->process->link, (unsigned)gpu->device, 0, figures->free_bytes,
				 &committed);
	gksm_foreign_pools_ask(gpu->process);
	gksm_gpu_usage(gpu, &usage);
	figures->held_bytes = committed.held_bytes;
	figures->virtual_bytes = usage.virtual_pages * PAGE;
	figures->backed_bytes = (usage.private_pages + usage.shared_pages) * PAGE;
	figures->foreign_bytes = gksm_foreign_bytes(gpu, true);
	figures->now_ns = gksm_now_ns();
}

static bool may_settle(struct gksm_gpu *gpu, const struct gksm_view_figures *figures)
{
	return gpu->view.known && gksm_view_others(figures) > gpu->view.others_bytes &&
	       figures->now_ns - atomic_load(&gpu->left_ns) < LEFT_SETTLES_NS;
}

uint64_t gksm_view_ask(struct gksm_gpu *gpu, uint64_t free_bytes, uint64_t total_bytes)
{
	struct gksm_view_figures figures = {.free_bytes = free_bytes, .total_bytes = total_bytes};
	uint64_t until = gksm_now_ns() + LEFT_PATIENCE_NS;
	uint64_t answer;

	measure(gpu, &figures);
	gksm_mutex_lock(&gpu->view.lock);
	while (may_settle(gpu, &figures) && figures.now_ns < until) {
		size_t free_now;
		size_t total;

		gksm_mutex_unlock(&gpu->view.lock);
		gksm_sleep_ns(LEFT_PAUSE_NS);
		if (!gpu->process->driver.cuMemGetInfo_v2(&free_now, &total))
			figures.free_bytes = free_now;
		measure(gpu, &figures);
		gksm_mutex_lock(&gpu->view.lock);
	}
	answer = gksm_view_free(&gpu->view, &figures);
	gksm_mutex_unlock(&gpu->view.lock);
	return answer;
}
