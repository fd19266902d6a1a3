/* SPDX-License-Identifier: Apache-2.0 */
#include "named.h"

#include <errno.h>

#include "gpu.h"
#include "link.h"
#include "marks.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

void gksm_page_named(struct gksm_gpu *gpu, uint64_t index, const struct gksm_publish_result *said,
		     bool may_open)
{
	struct gksm_page *page = &gpu->pages[index];

	while (!gksm_page_take(gpu, index, GKSM_PAGE_SHARED)) {
		enum gksm_page_state state = gksm_page_state(gpu, index);

		/* Somebody is at it, and may yet leave it as it is. */
		if (state == GKSM_PAGE_BUSY || state == GKSM_PAGE_SHARED) {
			gksm_page_wait(gpu, index, GKSM_PAGE_BUSY);
			continue;
		}
		/* Written to already: the page left before it had a name. */
		if (!said->status)
			gksm_link_detached(gpu->process->link, (unsigned)gpu->device,
					   GKSM_DETACH_COW, &said->page_id, 1);
		return;
	}
	/* No answer for this one: somebody may have it all the same. */
	if (said->status == -ENOTCONN || said->status == -ETIMEDOUT) {
		gksm_page_put(gpu, index, GKSM_PAGE_SHARED);
		return;
	}
	if (!said->status) {
		page->page_id = said->page_id;
		gksm_page_put(gpu, index, GKSM_PAGE_SHARED);
		return;
	}
	/* Refused, so nobody else has it: it may as well be written to. */
	if (!may_open || gksm_marks_wait(gpu, index) ||
	    gpu->process->driver.cuMemSetAccess(gksm_page_address(gpu, index), PAGE,
						&gpu->read_write, 1)) {
		gksm_page_put(gpu, index, GKSM_PAGE_SHARED);
		return;
	}
	gksm_page_leaves_shared(gpu, index, false);
	page->unshared = GKSM_UNSHARED_REFUSED;
	atomic_fetch_add(&gpu->counters.unshared[GKSM_UNSHARED_REFUSED], 1);
	gksm_page_put(gpu, index, GKSM_PAGE_PRIVATE);
}
