/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass over the private pages.
 *
 * A page is read at its own address, under a count that keeps its memory where it is:
 * whoever frees or replaces a private page waits for that one copy (gksm_looks_wait). A
 * kernel may write meanwhile; the hash is then one that the next look will not find.
 */
#include <stdlib.h>

#include "gpu.h"
#include "hash.h"
#include "scan.h"
#include "scan_state.h"

struct look {
	uint64_t page;
	uint8_t written; /* enum gksm_written: since the look before */
};

struct batch {
	const struct gksm_engine *engine;
	struct look look[GKSM_SCAN_BATCH];
	size_t count;
};

static bool same(struct gksm_hash128 a, struct gksm_hash128 b)
{
	return a.low == b.low && a.high == b.high;
}

static void add_candidate(struct gksm_scan *scan, uint64_t page, struct gksm_hash128 hash)
{
	if (scan->candidate_count == scan->candidate_room) {
		size_t room = scan->candidate_room * 2 + 256;
		struct gksm_scan_candidate *grown =
			realloc(scan->candidates, room * sizeof(*grown));

		if (!grown)
			return; /* the next pass comes by again */
		scan->candidates = grown;
		scan->candidate_room = room;
	}
	scan->candidates[scan->candidate_count++] = (struct gksm_scan_candidate){
		.page = page,
		.hash = hash,
		.kind = gksm_page_kind(scan->gpu, page),
	};
}

static bool may_merge(const struct gksm_scan *scan, uint64_t page,
		      const struct gksm_scan_page *seen)
{
	uint32_t needed = scan->terms.stable_hashes;

	if (seen->copied && needed > 2)
		needed = 2;
	return seen->equal >= needed && (!seen->zero || scan->terms.zero_pages) &&
	       scan->gpu->terms.kinds >> gksm_page_kind(scan->gpu, page) & 1;
}

static void judge(struct gksm_scan *scan, const struct look *look, struct gksm_hash128 hash,
		  bool zero)
{
	struct gksm_scan_page *seen = &scan->pages[look->page];
	bool changed = seen->equal && !same(seen->hash, hash);

	if (changed)
		atomic_fetch_add(&scan->gpu->counters.volatile_pages, 1);
	if (changed || look->written) {
		seen->equal = 0;
		seen->copied = look->written == GKSM_WRITTEN_COPIED;
	}
	if (seen->equal < UINT8_MAX)
		seen->equal++;
	seen->hash = hash;
	seen->zero = zero;
	if (may_merge(scan, look->page, seen))
		add_candidate(scan, look->page, hash);
}

/* Reads what is still private of the batch into the engine's pinned pages. Returns how
 * many were read; the batch holds only those then. */
static size_t read_batch(struct gksm_scan *scan, struct gksm_engine *engine, struct batch *batch)
{
	struct gksm_gpu *gpu = scan->gpu;
	size_t counted = 0;
	size_t read = 0;
	size_t i;

	for (i = 0; i < batch->count; i++) {
		struct gksm_page *page = &gpu->pages[batch->look[i].page];

		/* Before the read: a write that comes later is noted for the next look. */
		batch->look[i].written = atomic_exchange(&page->written, GKSM_NOT_WRITTEN);
		atomic_fetch_add(&page->looks, 1);
		if (gksm_page_state(gpu, batch->look[i].page) != GKSM_PAGE_PRIVATE ||
		    atomic_load(&page->engine) != engine) {
			atomic_fetch_sub(&page->looks, 1);
			continue;
		}
		batch->look[counted] = batch->look[i];
		if (!gksm_mover_enqueue_read(&engine->scan, engine->looked[counted],
					     gksm_page_address(gpu, batch->look[i].page)))
			read = counted + 1;
		counted++;
	}
	if (gksm_mover_finish_reads(&engine->scan))
		read = 0;
	for (i = 0; i < counted; i++)
		atomic_fetch_sub(&gpu->pages[batch->look[i].page].looks, 1);
	return read;
}

static void flush(struct gksm_scan *scan, struct batch *batch)
{
	const void *none[GKSM_SCAN_BATCH] = {NULL};
	struct gksm_hash128 hashes[GKSM_SCAN_BATCH];
	uint64_t started = gksm_now_ns();
	struct gksm_engine *engine;
	size_t i;

	if (!batch->count)
		return;
	engine = gksm_scan_enter(scan, batch->look[0].page);
	if (engine) {
		batch->count = read_batch(scan, engine, batch);
		gksm_pool_snapshot(scan->gpu->process->pool, none, engine->looked, hashes,
				   batch->count);
		for (i = 0; i < batch->count; i++)
			judge(scan, &batch->look[i], hashes[i], gksm_all_zero(engine->looked[i]));
		gksm_scan_leave(engine);
		atomic_fetch_add(&scan->gpu->counters.scanned_pages, batch->count);
	}
	batch->count = 0;
	gksm_scan_yield(scan, started);
}

/* A merge that could not be taken back when it was dropped. */
static void take_back(struct gksm_scan *scan, uint64_t page)
{
	struct gksm_engine *engine = gksm_scan_enter(scan, page);

	if (!engine)
		return;
	gksm_merge_abandon(scan, page);
	gksm_scan_leave(engine);
}

void gksm_scan_pass(struct gksm_scan *scan)
{
	struct gksm_gpu *gpu = scan->gpu;
	struct batch batch = {.count = 0};
	uint64_t end = atomic_load(&gpu->used_end);
	uint64_t page;

	atomic_fetch_add(&scan->pass, 1);
	scan->candidate_count = 0;
	atomic_store(&gpu->counters.volatile_pages, 0);
	for (page = 0; page < end; page++) {
		const struct gksm_page *entry = &gpu->pages[page];
		enum gksm_page_state state = gksm_page_state(gpu, page);

		if (state == GKSM_PAGE_MERGING)
			take_back(scan, page);
		if (state != GKSM_PAGE_PRIVATE || atomic_load(&entry->pins)) {
			scan->pages[page].equal = 0;
			continue;
		}
		if (batch.count == GKSM_SCAN_BATCH ||
		    (batch.count && batch.engine != atomic_load(&entry->engine)))
			flush(scan, &batch);
		batch.engine = atomic_load(&entry->engine);
		batch.look[batch.count++].page = page;
	}
	flush(scan, &batch);
}
