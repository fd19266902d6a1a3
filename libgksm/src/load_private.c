/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that get memory of their own, with the snapshot's bytes. */
#include "gpu.h"
#include "load_commit.h"
#include "map.h"
#include "shortage.h"

#define SHORTAGE_MS 1000 /* for warm pages to make room */
#define PAGE ((size_t)GKSM_PAGE_SIZE)

void gksm_load_fill(struct gksm_load *load, struct gksm_load_page **chosen, size_t count,
		    CUmemGenericAllocationHandle *handles)
{
	struct gksm_mover *mover = &load->engine->load;
	struct gksm_gpu *gpu = load->gpu;
	bool mapped[GKSM_LOAD_BATCH] = {false};
	bool copied = true;
	size_t i;

	for (i = 0; i < count; i++) {
		CUdeviceptr scratch = gksm_mover_scratch(mover, (unsigned)i);

		handles[i] = 0;
		if (gksm_handle_create(gpu, &handles[i]) &&
		    gksm_shortage_create(gpu, SHORTAGE_MS, &handles[i])) {
			handles[i] = 0;
			continue;
		}
		mapped[i] = !gksm_map(gpu, scratch, handles[i], &gpu->read_write);
		if (!mapped[i] || gksm_mover_enqueue(mover, scratch, chosen[i]->staging, PAGE))
			copied = false;
	}
	if (gksm_mover_finish(mover))
		copied = false;
	for (i = 0; i < count; i++) {
		if (mapped[i])
			gksm_unmap(gpu, gksm_mover_scratch(mover, (unsigned)i));
		if (!copied && handles[i]) {
			gksm_handle_release(gpu, handles[i]);
			handles[i] = 0;
		}
	}
}

/* A page whose bytes are in place, or were not to be changed, stays what it was. */
static void finish_reload(struct gksm_load *load, struct gksm_load_page *entry)
{
	if (!load->sealing &&
	    (gksm_mover_enqueue(&load->engine->load, gksm_page_address(load->gpu, entry->page),
				entry->staging, PAGE) ||
	     gksm_mover_finish(&load->engine->load)))
		gksm_load_fail(load, gksm_load_why_not(load));
	gksm_page_step(load->gpu, entry->page, GKSM_PAGE_RELOAD, GKSM_PAGE_PRIVATE);
	entry->settled = true;
}

/* Looks past a COW thread in the middle of taking the page: it still reads the staging
 * page, and it may yet put the page back. */
static enum gksm_page_state settled_state(struct gksm_load *load,
					  const struct gksm_load_page *entry)
{
	enum gksm_page_state state;

	while ((state = gksm_page_state(load->gpu, entry->page)) == GKSM_PAGE_BUSY)
		gksm_page_wait(load->gpu, entry->page, state);
	return state;
}

/* The page cannot be filled. It must not stay in LOADING: nobody would end that. */
static void give_up(struct gksm_load *load, struct gksm_load_page *entry)
{
	while (settled_state(load, entry) == GKSM_PAGE_LOADING) {
		if (!gksm_page_take(load->gpu, entry->page, GKSM_PAGE_LOADING))
			continue;
		load->gpu->pages[entry->page].snapshot = NULL;
		gksm_page_put(load->gpu, entry->page, GKSM_PAGE_UNBACKED);
		gksm_load_fail(load, gksm_load_why_not(load));
	}
	entry->settled = true;
}

void gksm_load_abandon(struct gksm_load *load, struct gksm_load_page **chosen, size_t count,
		       enum gksm_unshared why)
{
	CUmemGenericAllocationHandle handles[GKSM_LOAD_BATCH] = {0};
	struct gksm_load_page *empty[GKSM_LOAD_BATCH];
	size_t empty_count = 0;
	size_t i;

	for (i = 0; i < count; i++) {
		switch (settled_state(load, chosen[i])) {
		case GKSM_PAGE_LOADING:
			empty[empty_count++] = chosen[i];
			break;
		case GKSM_PAGE_RELOAD:
			finish_reload(load, chosen[i]);
			break;
		default: /* stolen: the COW thread wrote the snapshot */
			chosen[i]->settled = true;
			break;
		}
	}
	gksm_load_fill(load, empty, empty_count, handles);
	for (i = 0; i < empty_count; i++) {
		struct gksm_replacement with = {.handle = handles[i], .keep = true, .why = why};

		if (handles[i] && !gksm_load_commit(load, empty[i], &with)) {
			empty[i]->settled = true;
			continue;
		}
		if (handles[i])
			gksm_handle_release(load->gpu, handles[i]);
		give_up(load, empty[i]);
	}
	atomic_fetch_add(&load->gpu->counters.loaded_pages, count);
}
