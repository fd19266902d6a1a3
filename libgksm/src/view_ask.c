/* SPDX-License-Identifier: Apache-2.0 */
/* Where the figures of view.c come from. */
#include <stddef.h>

#include "foreign.h"
#include "gpu.h"
#include "view.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

/* Shared pages that this process left a moment ago are free when gksmd and the vault have
 * let go of them. Until then they look like memory that others took. */
#define LEFT_SETTLES_NS 1000000000ull
#define LEFT_PATIENCE_NS 200000000ull
#define LEFT_PAUSE_NS 5000000ull

void gksm_view_active(struct gksm_gpu *gpu)
{
	atomic_store_explicit(&gpu->view.active_ns, gksm_now_ns(), memory_order_relaxed);
}

static void measure(struct gksm_gpu *gpu, struct gksm_view_figures *figures)
{
	struct gksm_committed committed = {0};
	struct gksm_usage usage;

	gksm_foreign_pools_ask(gpu->process);
	if (gpu->process->link)
		gksm_gpu_commit(gpu, 0, figures->free_bytes, &committed);
	gksm_gpu_usage(gpu, &usage);
	figures->held_bytes = committed.held_bytes;
	figures->warm_bytes = committed.warm_bytes;
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
