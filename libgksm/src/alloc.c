/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuMemAlloc and cuMemFree on the arena.
 *
 * With gksmd there, pages start unbacked: gksmd promises their bytes and nothing is
 * taken. Without it they are backed at once. A GPU that never had a guard (no gksmd
 * since the start, or sharing off) is none of our business: the driver allocates.
 */
#include "alloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "assembly.h"
#include "engine.h"
#include "gpu.h"
#include "ipc.h"
#include "link.h"
#include "map.h"
#include "marks.h"
#include "peers.h"
#include "reclaim.h"
#include "streams.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)
#define DETACH_BATCH 256

/* How long freed memory may take to come back, and how patiently that is waited for. */
#define FREED_SETTLES_NS 1000000000ull
#define FREED_PAUSE_NS 20000000ull
#define FREED_TRIES 20

/* --- slots: what an allocation is --- */

static int slot_take(struct gksm_gpu *gpu, uint32_t *slot)
{
	uint32_t room;
	uint32_t i;
	struct gksm_allocation *grown;

	for (i = 0; i < gpu->allocation_slots; i++) {
		if (!gpu->allocations[i].pages && !gpu->allocations[i].dying) {
			*slot = i;
			return 0;
		}
	}
	room = gpu->allocation_slots * 2 + 64;
	grown = realloc(gpu->allocations, room * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	memset(grown + gpu->allocation_slots, 0, (room - gpu->allocation_slots) * sizeof(*grown));
	*slot = gpu->allocation_slots;
	gpu->allocations = grown;
	gpu->allocation_slots = room;
	return 0;
}

static int range_take(struct gksm_gpu *gpu, struct gksm_engine *engine, size_t bytes,
		      uint32_t *slot)
{
	struct gksm_allocation *allocation;
	uint64_t pages = (bytes + PAGE - 1) / PAGE;
	uint64_t first;
	uint64_t page;
	int error;

	gksm_mutex_lock(&gpu->range_lock);
	error = slot_take(gpu, slot);
	if (!error)
		error = gksm_extents_take(&gpu->extents, pages, &first);
	if (!error) {
		allocation = &gpu->allocations[*slot];
		*allocation = (struct gksm_allocation){
			.first_page = first,
			.pages = pages,
			.bytes = bytes,
			.context = engine->context,
			.buffer_id = atomic_fetch_add(&gpu->process->next_buffer_id, 1) + 1,
			.dying = true, /* until its pages are there */
		};
		if (first + pages > atomic_load(&gpu->used_end))
			atomic_store(&gpu->used_end, first + pages);
		for (page = first; page < first + pages; page++) {
			gpu->pages[page].allocation = *slot + 1;
			gpu->pages[page].engine = engine;
			gpu->pages[page].sealed = 0;
			gpu->pages[page].kind = GKSM_KIND_OTHER;
			gpu->pages[page].hint = 0;
			atomic_store(&gpu->pages[page].pins, 0);
		}
	}
	gksm_mutex_unlock(&gpu->range_lock);
	return error;
}

static void range_give(struct gksm_gpu *gpu, uint32_t slot)
{
	struct gksm_allocation *allocation;
	uint64_t page;

	gksm_mutex_lock(&gpu->range_lock);
	allocation = &gpu->allocations[slot];
	for (page = 0; page < allocation->pages; page++)
		gpu->pages[allocation->first_page + page].allocation = 0;
	gksm_extents_give(&gpu->extents, allocation->first_page, allocation->pages);
	memset(allocation, 0, sizeof(*allocation));
	gksm_mutex_unlock(&gpu->range_lock);
}

/* --- pages --- */

struct released {
	uint64_t ids[DETACH_BATCH];
	size_t count;
};

static void released_flush(struct gksm_gpu *gpu, struct released *released)
{
	if (released->count)
		gksm_link_detached(gpu->process->link, (unsigned)gpu->device, GKSM_DETACH_FREE,
				   released->ids, released->count);
	released->count = 0;
}

/* The caller owns the page (BUSY, taken from `from`). */
static void page_empty(struct gksm_gpu *gpu, uint64_t index, enum gksm_page_state from,
		       struct released *released)
{
	struct gksm_page *page = &gpu->pages[index];

	bool private = from == GKSM_PAGE_PRIVATE || from == GKSM_PAGE_MERGING;

	gksm_looks_wait(gpu, index);
	if (from == GKSM_PAGE_SHARED) {
		gksm_marks_wait(gpu, index);
		gksm_page_leaves_shared(gpu, index, false);
		atomic_store(&gpu->left_ns, gksm_now_ns());
	}
	if (from == GKSM_PAGE_SHARED || private)
		gksm_unmap(gpu, gksm_page_address(gpu, index));
	if (private)
		atomic_fetch_sub(&gpu->counters.unshared[page->unshared], 1);
	if (page->handle)
		gksm_handle_release(gpu, page->handle);
	page->handle = 0;
	if (from == GKSM_PAGE_SHARED && page->page_id) {
		released->ids[released->count++] = page->page_id;
		if (released->count == DETACH_BATCH)
			released_flush(gpu, released);
	}
	page->page_id = 0;
	page->snapshot = NULL;
	gksm_assembly_free(page->assembly);
	page->assembly = NULL;
}

static void page_release(struct gksm_gpu *gpu, uint64_t index, struct released *released)
{
	for (;;) {
		enum gksm_page_state state = gksm_page_state(gpu, index);
		struct gksm_page_rule rule = gksm_page_rule(state, GKSM_ON_RELEASE);

		if (rule.verdict == GKSM_WAIT_IT) {
			gksm_page_wait(gpu, index, state);
			continue;
		}
		if (rule.verdict != GKSM_GO)
			return;
		if (!gksm_page_take(gpu, index, state))
			continue;
		page_empty(gpu, index, state, released);
		gksm_page_put(gpu, index, rule.next);
		return;
	}
}

static void pages_release(struct gksm_gpu *gpu, uint64_t first, uint64_t count)
{
	struct released released = {.count = 0};
	uint64_t i;

	for (i = 0; i < count; i++)
		page_release(gpu, first + i, &released);
	released_flush(gpu, &released);
	atomic_store(&gpu->freed_ns, gksm_now_ns());
	gksm_view_active(gpu);
}

static int page_back(struct gksm_gpu *gpu, uint64_t index)
{
	struct gksm_page *page = &gpu->pages[index];
	int error;

	if (!gksm_page_take(gpu, index, GKSM_PAGE_FREE))
		return -EINVAL;
	error = gksm_handle_create(gpu, &page->handle);
	if (!error) {
		error = gksm_map(gpu, gksm_page_address(gpu, index), page->handle,
				 &gpu->read_write);
		if (error) {
			gksm_handle_release(gpu, page->handle);
			page->handle = 0;
		}
	}
	if (!error) {
		page->unshared = GKSM_UNSHARED_DAEMON;
		atomic_fetch_add(&gpu->counters.unshared[GKSM_UNSHARED_DAEMON], 1);
	}
	gksm_page_put(gpu, index, error ? GKSM_PAGE_FREE : GKSM_PAGE_PRIVATE);
	return error;
}

/* `left` pages from this one on are to be backed. */
static int page_back_somehow(struct gksm_gpu *gpu, uint64_t index, uint64_t left)
{
	int error = page_back(gpu, index);

	while (error == -ENOMEM && gksm_reclaim(gpu, left * PAGE))
		error = page_back(gpu, index);
	return error;
}

static int pages_make(struct gksm_gpu *gpu, const struct gksm_allocation *allocation, bool lazy)
{
	uint64_t i;
	int error = 0;

	for (i = 0; !error && i < allocation->pages; i++) {
		uint64_t index = allocation->first_page + i;

		if (!lazy)
			error = page_back_somehow(gpu, index, allocation->pages - i);
		else if (gksm_page_take(gpu, index, GKSM_PAGE_FREE))
			gksm_page_put(gpu, index, GKSM_PAGE_UNBACKED);
	}
	if (error)
		pages_release(gpu, allocation->first_page, i - 1);
	return error;
}

/* --- the calls --- */

static int ask_promise(struct gksm_gpu *gpu, uint64_t pages)
{
	size_t free_bytes = 0;
	size_t total_bytes;

	if (!gksm_gpu_sharing(gpu))
		return -ENOTCONN;
	if (gpu->process->driver.cuMemGetInfo_v2(&free_bytes, &total_bytes))
		return -EIO;
	return gksm_gpu_commit(gpu, pages, free_bytes, NULL);
}

/*
 * Whether gksmd promises the bytes. 0: yes; -ENOMEM: no; else it cannot be asked.
 *
 * What this process freed a moment ago may not have come back yet: promises end with
 * the next USAGE, and a shared page is free when the vault has let go of it. A program
 * that frees and allocates anew must not fail for that, so it is asked again.
 */
static int promise(struct gksm_gpu *gpu, uint64_t pages)
{
	int result = ask_promise(gpu, pages);
	int tries;

	for (tries = 0; result == -ENOMEM && tries < FREED_TRIES; tries++) {
		if (gksm_now_ns() - atomic_load(&gpu->freed_ns) > FREED_SETTLES_NS)
			break;
		gksm_sleep_ns(FREED_PAUSE_NS);
		result = ask_promise(gpu, pages);
	}
	/* Pages that make way for somebody else's promise may hold more than that one needs. */
	if (result == -ENOMEM && gksm_reclaim(gpu, 0))
		result = ask_promise(gpu, pages);
	return result;
}

static struct gksm_engine *current_engine(struct gksm *process)
{
	struct gksm_gpu *gpu;
	CUcontext context = NULL;
	CUdevice device;

	if (process->driver.cuCtxGetCurrent(&context) || !context ||
	    process->driver.cuCtxGetDevice(&device))
		return NULL;
	gpu = gksm_gpu_get(process, device);
	if (!gpu || atomic_load(&gpu->guard) == GKSM_GUARD_OFF)
		return NULL;
	return gksm_engine_get(gpu, context);
}

bool gksm_alloc(struct gksm *process, CUdeviceptr *address, size_t bytes, CUresult *result)
{
	struct gksm_allocation allocation;
	struct gksm_engine *engine;
	struct gksm_gpu *gpu;
	uint32_t slot;
	int promised;
	int error;

	if (bytes < PAGE || bytes > SIZE_MAX - PAGE || !address)
		return false;
	engine = current_engine(process);
	if (!engine)
		return false;
	gpu = engine->gpu;
	gksm_view_active(gpu);
	promised = promise(gpu, (bytes + PAGE - 1) / PAGE);
	if (promised == -ENOMEM) {
		*result = CUDA_ERROR_OUT_OF_MEMORY;
		return true;
	}
	if (range_take(gpu, engine, bytes, &slot))
		return false;
	gksm_mutex_lock(&gpu->range_lock);
	allocation = gpu->allocations[slot];
	gksm_mutex_unlock(&gpu->range_lock);
	error = pages_make(gpu, &allocation, promised == 0);
	if (error) {
		range_give(gpu, slot);
		gksm_gpu_report_usage(gpu);
		*result = CUDA_ERROR_OUT_OF_MEMORY;
		return true;
	}
	gksm_mutex_lock(&gpu->range_lock);
	gpu->allocations[slot].dying = false;
	gksm_mutex_unlock(&gpu->range_lock);
	*address = gksm_page_address(gpu, allocation.first_page);
	*result = CUDA_SUCCESS;
	/* Only now: who gives a peer access meanwhile sees either it, or is seen here. */
	if (gksm_peers_any(gpu) && gksm_peers_cover(gpu, slot)) {
		gksm_free(process, *address, result);
		*result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	gksm_gpu_report_usage(gpu);
	return true;
}

/* Marks the allocation so that nobody else frees or finds it. */
static bool claim(struct gksm_gpu *gpu, uint64_t page, CUdeviceptr address, uint32_t *slot,
		  struct gksm_allocation *allocation)
{
	bool found = false;

	gksm_mutex_lock(&gpu->range_lock);
	if (gpu->pages[page].allocation) {
		*slot = gpu->pages[page].allocation - 1;
		found = !gpu->allocations[*slot].dying &&
			gksm_page_address(gpu, gpu->allocations[*slot].first_page) == address;
	}
	if (found) {
		gpu->allocations[*slot].dying = true;
		*allocation = gpu->allocations[*slot];
	}
	gksm_mutex_unlock(&gpu->range_lock);
	return found;
}

bool gksm_free(struct gksm *process, CUdeviceptr address, CUresult *result)
{
	struct gksm_allocation allocation;
	struct gksm_gpu *gpu;
	uint64_t page;
	uint32_t slot;

	gpu = gksm_gpu_of(process, address, &page);
	if (!gpu)
		return false;
	if (!claim(gpu, page, address, &slot, &allocation)) {
		*result = CUDA_ERROR_INVALID_VALUE;
		return true;
	}
	/* As cuMemFree does, but outside the driver: inside, it would hold locks that a
	 * held fault's answer needs (h200-facts, "Who blocks the COW thread"). A dead
	 * context has nothing running; its sticky error is the answer then. */
	*result = CUDA_SUCCESS;
	if (gksm_wait_idle(process, allocation.context, -1) == -ENODEV)
		*result = process->driver.cuCtxSynchronize();
	gksm_ipc_freed(process, allocation.buffer_id);
	pages_release(gpu, allocation.first_page, allocation.pages);
	range_give(gpu, slot);
	gksm_gpu_report_usage(gpu);
	return true;
}

bool gksm_allocation_find(struct gksm *process, CUdeviceptr address,
			  struct gksm_allocation_info *info)
{
	struct gksm_gpu *gpu;
	uint64_t page;
	bool found = false;

	gpu = gksm_gpu_of(process, address, &page);
	if (!gpu)
		return false;
	gksm_mutex_lock(&gpu->range_lock);
	if (gpu->pages[page].allocation) {
		const struct gksm_allocation *allocation =
			&gpu->allocations[gpu->pages[page].allocation - 1];

		info->base = gksm_page_address(gpu, allocation->first_page);
		info->bytes = allocation->bytes;
		info->context = allocation->context;
		info->device = gpu->device;
		info->buffer_id = allocation->buffer_id;
		info->rdma = gpu->prop.allocFlags.gpuDirectRDMACapable;
		found = !allocation->dying && address - info->base < info->bytes;
	}
	gksm_mutex_unlock(&gpu->range_lock);
	return found;
}

bool gksm_is_ours(struct gksm *process, CUdeviceptr address)
{
	return gksm_gpu_of(process, address, NULL) != NULL;
}

/* The next allocation of the context, claimed. */
static bool claim_any(struct gksm_gpu *gpu, CUcontext context, uint32_t *slot,
		      struct gksm_allocation *allocation)
{
	bool found = false;
	uint32_t i;

	gksm_mutex_lock(&gpu->range_lock);
	for (i = 0; !found && i < gpu->allocation_slots; i++) {
		if (!gpu->allocations[i].pages || gpu->allocations[i].dying ||
		    gpu->allocations[i].context != context)
			continue;
		gpu->allocations[i].dying = true;
		*allocation = gpu->allocations[i];
		*slot = i;
		found = true;
	}
	gksm_mutex_unlock(&gpu->range_lock);
	return found;
}

void gksm_context_gone(struct gksm *process, CUcontext context)
{
	bool waited = false;
	int i;

	gksm_foreign_context_gone(process, context);
	for (i = 0; i < GKSM_GPUS_MAX; i++) {
		struct gksm_gpu *gpu = atomic_load(&process->gpus[i]);
		struct gksm_allocation allocation;
		struct gksm_engine *engine;
		uint32_t slot;

		if (!gpu)
			continue;
		if (!waited)
			gksm_wait_idle(process, context, -1);
		waited = true;
		/* Its copies may have read other GPUs' pages too. */
		gksm_marks_reap(gpu);
		engine = atomic_load(&gpu->engines);
		while (engine && (engine->context != context || atomic_load(&engine->gone)))
			engine = atomic_load(&engine->next);
		if (!engine)
			continue;
		while (claim_any(gpu, context, &slot, &allocation)) {
			gksm_ipc_freed(process, allocation.buffer_id);
			pages_release(gpu, allocation.first_page, allocation.pages);
			range_give(gpu, slot);
		}
		gksm_engine_retire(engine);
		gksm_gpu_report_usage(gpu);
	}
}
