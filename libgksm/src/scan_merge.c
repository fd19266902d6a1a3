/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a merge: scan.h says in which order, and why. */
#include <string.h>

#include "gpu.h"
#include "hash.h"
#include "map.h"
#include "marks.h"
#include "privatize.h"
#include "scan.h"
#include "scan_state.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

bool gksm_merge_protect(struct gksm_scan *scan, uint64_t page)
{
	struct gksm_gpu *gpu = scan->gpu;
	struct gksm_page *entry = &gpu->pages[page];

	if (!gksm_page_take(gpu, page, GKSM_PAGE_PRIVATE))
		return false;
	if (atomic_load(&entry->pins) || atomic_load(&entry->copy_busy) ||
	    gpu->process->driver.cuMemSetAccess(gksm_page_address(gpu, page), PAGE, &gpu->read_only,
						1)) {
		gksm_page_put(gpu, page, GKSM_PAGE_PRIVATE);
		return false;
	}
	gksm_page_put(gpu, page, GKSM_PAGE_MERGING);
	return true;
}

void gksm_merge_abandon(struct gksm_scan *scan, uint64_t page)
{
	struct gksm_privatize how = {.mover = NULL};

	/* Read on and on: a write takes it back, or the next pass does. */
	if (gksm_marks_wait(scan->gpu, page) || !gksm_page_take(scan->gpu, page, GKSM_PAGE_MERGING))
		return;
	gksm_privatize(scan->gpu, page, GKSM_PAGE_MERGING, &how);
}

static bool read_through(struct gksm_gpu *gpu, struct gksm_mover *mover, unsigned slot,
			 CUmemGenericAllocationHandle handle, void *into)
{
	CUdeviceptr scratch = gksm_mover_scratch(mover, slot);
	bool read;

	if (gksm_map(gpu, scratch, handle, &gpu->read_only))
		return false;
	read = !gksm_mover_enqueue_read(mover, into, scratch) && !gksm_mover_finish_reads(mover);
	gksm_unmap(gpu, scratch);
	return read;
}

/* The protected page's bytes. At its own address a writer might open it to writes, and
 * so make a hole, in the middle of the copy. */
static bool read_own(struct gksm_scan *scan, struct gksm_engine *engine, uint64_t page, void *into)
{
	struct gksm_page *entry = &scan->gpu->pages[page];
	bool read;

	atomic_fetch_add(&entry->looks, 1);
	read = gksm_page_state(scan->gpu, page) == GKSM_PAGE_MERGING &&
	       read_through(scan->gpu, &engine->scan, 0, entry->handle, into);
	atomic_fetch_sub(&entry->looks, 1);
	return read;
}

/* The page, which the caller has taken out of MERGING, is the published one from now on. */
static void become_shared(struct gksm_scan *scan, const struct gksm_scan_candidate *candidate,
			  uint64_t page_id, bool zero)
{
	struct gksm_gpu *gpu = scan->gpu;
	struct gksm_page *entry = &gpu->pages[candidate->page];

	atomic_fetch_sub(&gpu->counters.unshared[entry->unshared], 1);
	atomic_store(&entry->hash_low, candidate->hash.low);
	atomic_store(&entry->hash_high, candidate->hash.high);
	atomic_store(&entry->page_id, page_id);
	entry->merged_pass = atomic_load(&scan->pass);
	gksm_page_enters_shared(gpu, candidate->page, zero);
	gksm_page_put(gpu, candidate->page, GKSM_PAGE_SHARED);
	atomic_fetch_add(&gpu->counters.merged_pages, 1);
}

bool gksm_merge_publish(struct gksm_scan *scan, const struct gksm_scan_candidate *candidate,
			int *fd)
{
	struct gksm_gpu *gpu = scan->gpu;
	uint64_t page = candidate->page;
	struct gksm_engine *engine = atomic_load(&gpu->pages[page].engine);
	void *bytes = engine->looked[0];
	struct gksm_hash128 hash;

	if (!read_own(scan, engine, page, bytes))
		return false;
	hash = gksm_hash_page(bytes);
	if (hash.low != candidate->hash.low || hash.high != candidate->hash.high ||
	    !gksm_page_take(gpu, page, GKSM_PAGE_MERGING))
		return false;
	if (atomic_load(&gpu->pages[page].pins) ||
	    gksm_handle_export(gpu, gpu->pages[page].handle, fd)) {
		gksm_page_put(gpu, page, GKSM_PAGE_MERGING);
		return false;
	}
	become_shared(scan, candidate, 0, gksm_all_zero(bytes));
	return true;
}

/* Step 4, with the page taken. false: it has its own memory as before, or, where even
 * that cannot be mapped again, none. */
static bool replace(struct gksm_gpu *gpu, uint64_t page, CUmemGenericAllocationHandle handle)
{
	struct gksm_page *entry = &gpu->pages[page];
	CUdeviceptr address = gksm_page_address(gpu, page);

	gksm_looks_wait(gpu, page);
	gksm_unmap(gpu, address);
	if (!gksm_map(gpu, address, handle, &gpu->read_only)) {
		gksm_handle_release(gpu, entry->handle);
		entry->handle = 0;
		return true;
	}
	gksm_page_put(gpu, page,
		      gksm_map(gpu, address, entry->handle, &gpu->read_write) ? GKSM_PAGE_LOST
									      : GKSM_PAGE_PRIVATE);
	return false;
}

static bool take_for_replacing(struct gksm_gpu *gpu, uint64_t page)
{
	const struct gksm_page *entry = &gpu->pages[page];

	if (!gksm_page_take(gpu, page, GKSM_PAGE_MERGING))
		return false;
	if (!atomic_load(&entry->copy_busy) && !atomic_load(&entry->pins))
		return true;
	gksm_page_put(gpu, page, GKSM_PAGE_MERGING);
	return false;
}

/* The two are equal. */
static bool attach(struct gksm_scan *scan, const struct gksm_scan_candidate *candidate,
		   CUmemGenericAllocationHandle handle, uint64_t page_id, bool zero)
{
	struct gksm_gpu *gpu = scan->gpu;
	struct gksm_link *link = gpu->process->link;
	unsigned number = (unsigned)gpu->device;

	/* Before it can be written to: gksmd must not hear that a page left before it hears
	 * that it came. */
	gksm_link_attached(link, number, &page_id, 1);
	if (take_for_replacing(gpu, candidate->page) && replace(gpu, candidate->page, handle)) {
		become_shared(scan, candidate, page_id, zero);
		gksm_handle_release(gpu, handle);
		return true;
	}
	gksm_link_detached(link, number, GKSM_DETACH_COW, &page_id, 1);
	return false;
}

enum gksm_merge_result gksm_merge_attach(struct gksm_scan *scan,
					 const struct gksm_scan_candidate *candidate, int fd,
					 uint64_t page_id)
{
	struct gksm_gpu *gpu = scan->gpu;
	struct gksm_engine *engine = atomic_load(&gpu->pages[candidate->page].engine);
	void *own = engine->looked[0], *published = engine->looked[1];
	CUmemGenericAllocationHandle handle = 0;
	bool read, equal;

	read = !gksm_handle_import(gpu, fd, &handle) &&
	       read_own(scan, engine, candidate->page, own) &&
	       read_through(gpu, &engine->scan, 1, handle, published);
	equal = read && memcmp(own, published, PAGE) == 0;
	if (equal && attach(scan, candidate, handle, page_id, gksm_all_zero(own)))
		return GKSM_MERGE_DONE;
	if (!equal)
		gksm_link_detached(gpu->process->link, (unsigned)gpu->device, GKSM_DETACH_DECLINED,
				   &page_id, 1);
	if (handle)
		gksm_handle_release(gpu, handle);
	return read && !equal ? GKSM_MERGE_DIFFERS : GKSM_MERGE_DROPPED;
}
