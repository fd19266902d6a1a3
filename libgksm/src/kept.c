/* SPDX-License-Identifier: Apache-2.0 */
#include "kept.h"

#include <stdlib.h>

#include "engine.h"
#include "gpu.h"
#include "link.h"
#include "map.h"

struct gksm_kept *gksm_kept_new(struct gksm_gpu *gpu, uint64_t page)
{
	const struct gksm_driver *driver = &gpu->process->driver;
	struct gksm_page *entry = &gpu->pages[page];
	struct gksm_kept *kept = calloc(1, sizeof(*kept));

	if (!kept)
		return NULL;
	kept->gpu = gpu;
	kept->page = page;
	/* An attached page has no handle any more: its mapping holds the memory. */
	if (entry->handle) {
		kept->old = entry->handle;
		entry->handle = 0;
	} else if (!driver->cuMemRetainAllocationHandle ||
		   driver->cuMemRetainAllocationHandle(
			   &kept->old, (void *)(uintptr_t)gksm_page_address(gpu, page))) {
		free(kept);
		return NULL;
	}
	return kept;
}

void gksm_kept_cancel(struct gksm_kept *kept)
{
	kept->gpu->pages[kept->page].handle = kept->old;
	free(kept);
}

static void let_go(struct gksm_kept *kept)
{
	struct gksm_gpu *gpu = kept->gpu;

	gksm_handle_release(gpu, kept->old);
	if (kept->page_id)
		gksm_link_detached(gpu->process->link, (unsigned)gpu->device, GKSM_DETACH_API_WRITE,
				   &kept->page_id, 1);
	free(kept);
}

void gksm_kept_drop(struct gksm_kept *list)
{
	while (list) {
		struct gksm_kept *next = list->next;

		let_go(list);
		list = next;
	}
}

static void copy_back(struct gksm_engine *engine, const struct gksm_kept *kept)
{
	CUdeviceptr scratch = gksm_mover_scratch(&engine->write, 0);

	gksm_mutex_lock(&engine->write_lock);
	if (!gksm_engine_enter(engine)) {
		if (!gksm_map(kept->gpu, scratch, kept->old, &kept->gpu->read_only)) {
			/* Fails where the context is dead, and the bytes are too. */
			gksm_mover_copy_page(&engine->write,
					     gksm_page_address(kept->gpu, kept->page), scratch);
			gksm_unmap(kept->gpu, scratch);
		}
		gksm_engine_leave(engine);
	}
	gksm_mutex_unlock(&engine->write_lock);
}

void gksm_kept_restore(struct gksm_kept *list)
{
	while (list) {
		struct gksm_kept *next = list->next;
		struct gksm_gpu *gpu = list->gpu;
		struct gksm_page *entry = &gpu->pages[list->page];

		if (gksm_page_take(gpu, list->page, GKSM_PAGE_PRIVATE)) {
			if (entry->handle == list->now)
				copy_back(entry->engine, list);
			gksm_page_put(gpu, list->page, GKSM_PAGE_PRIVATE);
		}
		let_go(list);
		list = next;
	}
}
