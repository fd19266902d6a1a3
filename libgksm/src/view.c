/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

static uint64_t less(uint64_t from, uint64_t bytes)
{
	return bytes < from ? from - bytes : 0;
}

uint64_t gksm_view_others(const struct gksm_view_figures *figures)
{
	uint64_t open = less(figures->free_bytes + figures->warm_bytes, figures->held_bytes);
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
