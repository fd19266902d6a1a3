/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends a loaded page can have: attached to a page that exists, published as a new
 * one, or private.
 *
 * A page in LOADING may be stolen by the COW thread at any moment (it then has the
 * snapshot, privately); every commit therefore takes the page out of LOADING first
 * and gives its grant or lease back when it finds it gone.
 */
#include <string.h>

#include "gpu.h"
#include "hash.h"
#include "load_commit.h"
#include "map.h"
#include "marks.h"
#include "streams.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

void gksm_load_fail(struct gksm_load *load, CUresult result)
{
	if (!load->result)
		load->result = result;
}

CUresult gksm_load_why_not(const struct gksm_load *load)
{
	CUresult sticky = load->process->driver.cuStreamQuery(load->engine->load.in);

	return sticky && sticky != CUDA_ERROR_NOT_READY ? sticky : CUDA_ERROR_OUT_OF_MEMORY;
}

void gksm_load_gate_open(struct gksm_load *load)
{
	if (load->gate_closed)
		gksm_gate_open(&load->process->gate);
	load->gate_closed = false;
}

bool gksm_load_quiet(struct gksm_load *load)
{
	uint32_t drain_ms = load->gpu->terms.drain_ms;

	if (!load->gate_closed &&
	    gksm_gate_close(&load->process->gate, (int64_t)drain_ms * 1000000))
		return false;
	load->gate_closed = true;
	return !gksm_work_pending(load->process, load->engine->context, NULL);
}

/* A sealed page was read while work could still run; nothing does now. */
static bool still_same(struct gksm_load *load, const struct gksm_load_page *entry)
{
	struct gksm_mover *mover = &load->engine->load;

	return !gksm_mover_read_page(mover, gksm_page_address(load->gpu, entry->page)) &&
	       memcmp(mover->bounce, entry->staging, PAGE) == 0;
}

static void drop_old_backing(struct gksm_gpu *gpu, struct gksm_page *page, uint64_t index)
{
	gksm_looks_wait(gpu, index);
	gksm_unmap(gpu, gksm_page_address(gpu, index));
	gksm_handle_release(gpu, page->handle);
	page->handle = 0;
	atomic_fetch_sub(&gpu->counters.unshared[page->unshared], 1);
}

int gksm_load_commit(struct gksm_load *load, const struct gksm_load_page *entry,
		     const struct gksm_replacement *with)
{
	struct gksm_gpu *gpu = load->gpu;
	uint64_t index = entry->page;
	struct gksm_page *page = &gpu->pages[index];
	enum gksm_page_state from = gksm_page_state(gpu, index);
	const CUmemAccessDesc *access = with->shared ? &gpu->read_only : &gpu->read_write;

	if (from == GKSM_PAGE_RELOAD &&
	    (!gksm_load_quiet(load) || (load->sealing && !still_same(load, entry))))
		return -1;
	if ((from != GKSM_PAGE_LOADING && from != GKSM_PAGE_RELOAD) ||
	    !gksm_page_take(gpu, index, from))
		return -1;
	if (from == GKSM_PAGE_RELOAD)
		drop_old_backing(gpu, page, index);
	if (gksm_map(gpu, gksm_page_address(gpu, index), with->handle, access)) {
		if (from == GKSM_PAGE_RELOAD)
			gksm_load_fail(load, gksm_load_why_not(load));
		gksm_page_put(gpu, index,
			      from == GKSM_PAGE_LOADING ? GKSM_PAGE_LOADING : GKSM_PAGE_LOST);
		return -1;
	}
	page->snapshot = NULL;
	page->handle = with->keep ? with->handle : 0;
	atomic_store(&page->hash_low, entry->hash.low);
	atomic_store(&page->hash_high, entry->hash.high);
	atomic_store(&page->page_id, with->page_id);
	page->kind = (uint8_t)load->kind;
	if (with->shared)
		gksm_page_enters_shared(gpu, index, gksm_all_zero(entry->staging));
	if (!with->shared) {
		page->unshared = (uint8_t)with->why;
		atomic_fetch_add(&gpu->counters.unshared[with->why], 1);
	}
	if (!with->keep)
		gksm_handle_release(gpu, with->handle);
	gksm_page_put(gpu, index, with->shared ? GKSM_PAGE_SHARED : GKSM_PAGE_PRIVATE);
	return 0;
}
