/* SPDX-License-Identifier: Apache-2.0 */
#include "privatize.h"

#include <errno.h>

#include "assembly.h"
#include "engine.h"
#include "gpu.h"
#include "kept.h"
#include "link.h"
#include "map.h"
#include "marks.h"

static int write_pieces(struct gksm_mover *mover, CUdeviceptr address,
			const struct gksm_assembly *assembly)
{
	unsigned i;

	for (i = 0; i < assembly->pieces; i++) {
		const struct gksm_piece *piece = &assembly->piece[i];
		int error = gksm_mover_write(mover, address + piece->start,
					     (const char *)assembly->bytes + piece->start,
					     piece->end - piece->start);

		if (error)
			return error;
	}
	return 0;
}

/* Brings the page's bytes to `scratch`, where its new memory is mapped. */
static int fill(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		const struct gksm_privatize *how, CUdeviceptr scratch)
{
	const struct gksm_page *entry = &gpu->pages[page];

	switch (from) {
	case GKSM_PAGE_FILLING:
		return write_pieces(how->mover, scratch, entry->assembly);
	case GKSM_PAGE_LOADING:
		return gksm_mover_write(how->mover, scratch, entry->snapshot, GKSM_PAGE_SIZE);
	case GKSM_PAGE_SHARED:
		/* Memory is new, or a spare that nobody wrote to: it is zeros already. */
		if (atomic_load(&entry->zero))
			return 0;
		return gksm_mover_copy_page(how->mover, scratch, gksm_page_address(gpu, page));
	default:
		return 0;
	}
}

/* What waits in a staging page costs next to nothing to keep. */
static bool needs_bytes(enum gksm_page_state from, const struct gksm_privatize *how,
			const struct gksm_kept *kept)
{
	if (from == GKSM_PAGE_SHARED && how->discard)
		return how->keep && !kept;
	return from != GKSM_PAGE_UNBACKED;
}

/* Swaps the mapping. The old one of a SHARED page is gone for good once it is
 * unmapped: *fallback says what the page is after a failure. */
static int swap(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		CUmemGenericAllocationHandle handle, enum gksm_page_state *fallback)
{
	CUdeviceptr address = gksm_page_address(gpu, page);

	if (from == GKSM_PAGE_SHARED) {
		int error = gksm_marks_wait(gpu, page);

		if (error)
			return error;
		gksm_unmap(gpu, address);
		*fallback = GKSM_PAGE_LOST;
	}
	return gksm_map(gpu, address, handle, &gpu->read_write);
}

static void let_go(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		   enum gksm_detach_reason reason, struct gksm_kept *kept)
{
	struct gksm_page *entry = &gpu->pages[page];
	uint64_t page_id;

	if (from == GKSM_PAGE_SHARED) {
		gksm_page_leaves_shared(
			gpu, page, reason == GKSM_DETACH_COW || reason == GKSM_DETACH_API_WRITE);
		if (entry->handle)
			gksm_handle_release(gpu, entry->handle);
		page_id = atomic_exchange(&entry->page_id, 0);
		if (kept)
			kept->page_id = page_id;
		else if (page_id)
			gksm_link_detached(gpu->process->link, (unsigned)gpu->device, reason,
					   &page_id, 1);
	}
	gksm_assembly_free(entry->assembly);
	entry->assembly = NULL;
	entry->snapshot = NULL;
}

/* MERGING -> PRIVATE: the memory is its own, only the right to write was taken away. */
static int give_back(struct gksm_gpu *gpu, uint64_t page)
{
	int error = gksm_marks_wait(gpu, page);

	if (!error)
		error = gksm_protect(gpu, gksm_page_address(gpu, page), &gpu->read_write);
	gksm_page_put(gpu, page, error ? GKSM_PAGE_MERGING : GKSM_PAGE_PRIVATE);
	return error;
}

int gksm_privatize(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		   const struct gksm_privatize *how)
{
	struct gksm_page *entry = &gpu->pages[page];
	CUmemGenericAllocationHandle handle = how->backing.handle;
	CUdeviceptr scratch = how->backing.scratch;
	enum gksm_page_state fallback = from;
	struct gksm_kept *kept = NULL;
	bool own_scratch = false;
	int error = 0;

	if (from == GKSM_PAGE_MERGING)
		return give_back(gpu, page);
	if (!handle) {
		error = gksm_handle_create(gpu, &handle);
		if (error) {
			gksm_page_put(gpu, page, from);
			return error;
		}
	}
	if (from == GKSM_PAGE_SHARED && how->discard && how->keep)
		kept = gksm_kept_new(gpu, page);
	if (needs_bytes(from, how, kept) && !scratch) {
		scratch = gksm_mover_scratch(how->mover, 0);
		error = gksm_map(gpu, scratch, handle, &gpu->read_write);
		own_scratch = !error;
	}
	if (!error && needs_bytes(from, how, kept))
		error = fill(gpu, page, from, how, scratch);
	if (!error)
		error = swap(gpu, page, from, handle, &fallback);
	if (own_scratch)
		gksm_unmap(gpu, scratch);
	if (error) {
		if (!how->backing.handle)
			gksm_handle_release(gpu, handle);
		if (kept)
			gksm_kept_cancel(kept);
		if (fallback == GKSM_PAGE_LOST)
			let_go(gpu, page, from, GKSM_DETACH_LOST, NULL);
		gksm_page_put(gpu, page, fallback);
		return error;
	}
	let_go(gpu, page, from, how->reason, kept);
	if (kept) {
		kept->now = handle;
		kept->next = *how->keep;
		*how->keep = kept;
	}
	entry->handle = handle;
	entry->unshared = (uint8_t)how->why;
	atomic_fetch_add_explicit(&gpu->counters.unshared[how->why], 1, memory_order_relaxed);
	gksm_page_put(gpu, page, GKSM_PAGE_PRIVATE);
	return 0;
}

int gksm_make_private(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		      struct gksm_privatize *how)
{
	struct gksm_engine *engine = gpu->pages[page].engine;
	int error;

	gksm_mutex_lock(&engine->write_lock);
	if (gksm_engine_enter(engine)) {
		gksm_page_put(gpu, page, from);
		error = -EIO;
	} else {
		how->mover = &engine->write;
		error = gksm_privatize(gpu, page, from, how);
		gksm_engine_leave(engine);
	}
	gksm_mutex_unlock(&engine->write_lock);
	if (!error && from == GKSM_PAGE_SHARED)
		atomic_fetch_add(&gpu->counters.api_detaches, 1);
	return error;
}
