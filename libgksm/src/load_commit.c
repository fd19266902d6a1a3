/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends a loaded page can have: attached to a page that exists, published as a new
 * one, or private.
 *
 * A page in LOADING may be stolen by the COW thread at any moment (it then has the
 * snapshot, privately); every commit therefore takes the page out of LOADING first
 * and gives its grant or lease back when it finds it gone.
 */
#include "load.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "hash.h"
#include "map.h"
#include "marks.h"
#include "segments.h"
#include "streams.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)
#define DEFAULT_DRAIN_MS 20

/* What a page gets mapped instead of what it has. */
struct replacement {
	CUmemGenericAllocationHandle handle;
	bool shared; /* read-only */
	bool keep;   /* the handle stays ours: it can be exported again */
	uint64_t page_id;
	enum gksm_unshared why; /* not shared */
};

static void fail(struct gksm_load *load, CUresult result)
{
	if (!load->result)
		load->result = result;
}

/* What the program is told when a page cannot be filled: a dead context's own error,
 * or that there is no memory. */
static CUresult why_not(const struct gksm_load *load)
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

/* A mapped page may be replaced while no copy or set is on its way to it. Kernels may
 * run: their faults are held. */
static bool quiet(struct gksm_load *load)
{
	uint32_t drain_ms =
		load->gpu->terms.drain_ms ? load->gpu->terms.drain_ms : DEFAULT_DRAIN_MS;

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
	gksm_unmap(gpu, gksm_page_address(gpu, index));
	gksm_handle_release(gpu, page->handle);
	page->handle = 0;
	atomic_fetch_sub(&gpu->counters.unshared[page->unshared], 1);
}

/*
 * Maps the replacement at the page's address and puts the page where it belongs.
 * 0, or -1: the page was stolen, may not be replaced now, or cannot be mapped. On
 * success the handle is taken over.
 */
static int commit(struct gksm_load *load, const struct gksm_load_page *entry,
		  const struct replacement *with)
{
	struct gksm_gpu *gpu = load->gpu;
	uint64_t index = entry->page;
	struct gksm_page *page = &gpu->pages[index];
	enum gksm_page_state from = gksm_page_state(gpu, index);
	const CUmemAccessDesc *access = with->shared ? &gpu->read_only : &gpu->read_write;

	if (from == GKSM_PAGE_RELOAD &&
	    (!quiet(load) || (load->sealing && !still_same(load, entry))))
		return -1;
	if ((from != GKSM_PAGE_LOADING && from != GKSM_PAGE_RELOAD) ||
	    !gksm_page_take(gpu, index, from))
		return -1;
	if (from == GKSM_PAGE_RELOAD)
		drop_old_backing(gpu, page, index);
	if (gksm_map(gpu, gksm_page_address(gpu, index), with->handle, access)) {
		if (from == GKSM_PAGE_RELOAD)
			fail(load, why_not(load));
		gksm_page_put(gpu, index,
			      from == GKSM_PAGE_LOADING ? GKSM_PAGE_LOADING : GKSM_PAGE_LOST);
		return -1;
	}
	page->snapshot = NULL;
	page->handle = with->keep ? with->handle : 0;
	atomic_store(&page->hash_low, entry->hash.low);
	atomic_store(&page->hash_high, entry->hash.high);
	atomic_store(&page->page_id, with->page_id);
	if (!with->shared) {
		page->unshared = (uint8_t)with->why;
		atomic_fetch_add(&gpu->counters.unshared[with->why], 1);
	}
	if (!with->keep)
		gksm_handle_release(gpu, with->handle);
	gksm_page_put(gpu, index, with->shared ? GKSM_PAGE_SHARED : GKSM_PAGE_PRIVATE);
	return 0;
}

/* --- hits --- */

/* Compares by reading the published page itself, mapped at a scratch address. */
static bool equal_on_device(struct gksm_load *load, const struct gksm_load_page *entry,
			    CUmemGenericAllocationHandle handle)
{
	struct gksm_mover *mover = &load->engine->load;
	CUdeviceptr scratch = gksm_mover_scratch(mover, 0);
	bool equal;

	if (gksm_map(load->gpu, scratch, handle, &load->gpu->read_only))
		return false;
	equal = !gksm_mover_read_page(mover, scratch) &&
		memcmp(mover->bounce, entry->staging, PAGE) == 0;
	gksm_unmap(load->gpu, scratch);
	return equal;
}

static void compare_host_copies(struct gksm_load *load, struct gksm_load_page **hits, size_t count,
				bool *known, bool *equal)
{
	struct gksm_segments *cache = gksm_segments_new();
	const void *left[GKSM_LOAD_BATCH];
	const void *right[GKSM_LOAD_BATCH];
	bool same[GKSM_LOAD_BATCH];
	size_t which[GKSM_LOAD_BATCH];
	size_t found = 0;
	size_t i;

	for (i = 0; i < count; i++) {
		const struct gksm_lookup_result *result = &hits[i]->reply.result;
		const void *copy = gksm_segment_page(cache, load->gpu, result->segment_id,
						     result->segment_offset);

		known[i] = copy != NULL;
		equal[i] = false;
		if (!copy)
			continue;
		left[found] = hits[i]->staging;
		right[found] = copy;
		which[found++] = i;
	}
	gksm_pool_compare(load->process->pool, left, right, same, found);
	for (i = 0; i < found; i++)
		equal[which[i]] = same[i];
	gksm_segments_free(cache);
}

/* Imports a hit and compares it. true: the handle is the caller's. */
static bool found_equal(struct gksm_load *load, struct gksm_load_page *entry, bool known,
			bool equal, CUmemGenericAllocationHandle *handle, bool *collided)
{
	bool imported = !gksm_handle_import(load->gpu, entry->reply.fd, handle);

	close(entry->reply.fd);
	entry->reply.fd = -1;
	if (imported && !known)
		equal = equal_on_device(load, entry, *handle);
	*collided = imported && !equal;
	if (*collided)
		gksm_handle_release(load->gpu, *handle);
	return imported && equal;
}

void gksm_load_attach(struct gksm_load *load, struct gksm_load_page **chosen, size_t count)
{
	struct gksm_link *link = load->process->link;
	unsigned gpu = (unsigned)load->gpu->device;
	CUmemGenericAllocationHandle handles[GKSM_LOAD_BATCH];
	struct gksm_load_page *same[GKSM_LOAD_BATCH];
	struct gksm_load_page *failed[GKSM_LOAD_BATCH];
	struct gksm_load_page *collided[GKSM_LOAD_BATCH];
	uint64_t attached[GKSM_LOAD_BATCH];
	uint64_t left[GKSM_LOAD_BATCH];
	uint64_t declined[GKSM_LOAD_BATCH];
	bool known[GKSM_LOAD_BATCH];
	bool equal[GKSM_LOAD_BATCH];
	size_t same_count = 0;
	size_t left_count = 0;
	size_t declined_count = 0;
	size_t failed_count = 0;
	size_t collided_count = 0;
	size_t i;

	compare_host_copies(load, chosen, count, known, equal);
	for (i = 0; i < count; i++) {
		struct gksm_load_page *entry = chosen[i];
		bool differs;

		if (found_equal(load, entry, known[i], equal[i], &handles[same_count], &differs)) {
			attached[same_count] = entry->reply.result.page_id;
			same[same_count++] = entry;
			continue;
		}
		declined[declined_count++] = entry->reply.result.page_id;
		if (differs)
			collided[collided_count++] = entry;
		else
			failed[failed_count++] = entry;
	}
	/* Before any of them can be written to: gksmd must not hear that a page left before
	 * it hears that it came. */
	if (same_count)
		gksm_link_attached(link, gpu, attached, same_count);
	for (i = 0; i < same_count; i++) {
		struct replacement with = {
			.handle = handles[i], .shared = true, .page_id = attached[i]};

		if (!commit(load, same[i], &with)) {
			same[i]->settled = true;
			continue;
		}
		gksm_handle_release(load->gpu, handles[i]);
		left[left_count++] = attached[i];
		failed[failed_count++] = same[i];
	}
	if (left_count)
		gksm_link_detached(link, gpu, GKSM_DETACH_COW, left, left_count);
	if (declined_count)
		gksm_link_detached(link, gpu, GKSM_DETACH_DECLINED, declined, declined_count);
	atomic_fetch_add(&load->gpu->counters.attached_pages, same_count - left_count);
	gksm_load_gate_open(load);
	if (failed_count)
		gksm_load_abandon(load, failed, failed_count, GKSM_UNSHARED_DAEMON);
	if (collided_count) {
		gksm_link_report(link, GKSM_WARNING, "pages with one hash differ: they stay apart");
		gksm_load_abandon(load, collided, collided_count, GKSM_UNSHARED_COLLISION);
	}
}

/* --- new pages --- */

/* New memory with the snapshots' bytes, mapped nowhere. handles[i] is 0 where it could
 * not be had or filled. */
static void fill_new_pages(struct gksm_load *load, struct gksm_load_page **chosen, size_t count,
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
		if (gksm_handle_create(gpu, &handles[i])) {
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
		fail(load, why_not(load));
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
		fail(load, why_not(load));
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
	fill_new_pages(load, empty, empty_count, handles);
	for (i = 0; i < empty_count; i++) {
		struct replacement with = {.handle = handles[i], .keep = true, .why = why};

		if (handles[i] && !commit(load, empty[i], &with)) {
			empty[i]->settled = true;
			continue;
		}
		if (handles[i])
			gksm_handle_release(load->gpu, handles[i]);
		give_up(load, empty[i]);
	}
	atomic_fetch_add(&load->gpu->counters.loaded_pages, count);
}

/* gksmd's word on a page that is SHARED with no id yet. */
static void name_page(struct gksm_load *load, uint64_t index,
		      const struct gksm_publish_result *said)
{
	struct gksm_gpu *gpu = load->gpu;
	struct gksm_page *page = &gpu->pages[index];
	/* Opening a page to writes makes a hole. Without a fault guard nothing may run, and
	 * the gate is not closed while the page is taken: those inside may wait for it. */
	bool may_open =
		said->status && (atomic_load(&gpu->guard) == GKSM_GUARD_FAULT || quiet(load));

	while (!gksm_page_take(gpu, index, GKSM_PAGE_SHARED)) {
		enum gksm_page_state state = gksm_page_state(gpu, index);

		/* Somebody is at it, and may yet leave it as it is. */
		if (state == GKSM_PAGE_BUSY || state == GKSM_PAGE_SHARED) {
			gksm_page_wait(gpu, index, GKSM_PAGE_BUSY);
			continue;
		}
		/* Written to already: the page left before it had a name. */
		if (!said->status)
			gksm_link_detached(load->process->link, (unsigned)gpu->device,
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
	page->unshared = GKSM_UNSHARED_REFUSED;
	atomic_fetch_add(&gpu->counters.unshared[GKSM_UNSHARED_REFUSED], 1);
	gksm_page_put(gpu, index, GKSM_PAGE_PRIVATE);
}

struct publication {
	struct gksm_load_page *page[GKSM_LOAD_BATCH];
	struct gksm_publish_entry entry[GKSM_LOAD_BATCH];
	int fd[GKSM_LOAD_BATCH];
	size_t count;
};

/* Exports and commits one filled page; false: it is not to be published. */
static bool stage_publication(struct gksm_load *load, struct gksm_load_page *page,
			      CUmemGenericAllocationHandle handle, struct publication *publication)
{
	struct replacement with = {.handle = handle, .shared = true, .keep = true};
	int fd;

	if (gksm_handle_export(load->gpu, handle, &fd))
		return false;
	if (commit(load, page, &with)) {
		close(fd);
		return false;
	}
	publication->page[publication->count] = page;
	publication->fd[publication->count] = fd;
	publication->count++;
	return true;
}

static void send_publication(struct gksm_load *load, struct publication *publication,
			     struct gksm_segment_fill *segment)
{
	struct gksm_publish_result said[GKSM_LOAD_BATCH];
	struct gksm_publish_entry *entry = publication->entry;
	int error;
	void *copies[GKSM_LOAD_BATCH];
	const void *snapshots[GKSM_LOAD_BATCH];
	size_t i;

	for (i = 0; i < publication->count; i++) {
		copies[i] = segment->bytes + i * PAGE;
		snapshots[i] = publication->page[i]->staging;
		entry[i].token = publication->page[i]->reply.result.token;
		entry[i].hash = publication->page[i]->hash;
		entry[i].segment_id = segment->bytes ? segment->id : 0;
		entry[i].segment_offset = i * PAGE;
	}
	if (segment->bytes)
		gksm_pool_copy(load->process->pool, copies, snapshots, publication->count);
	error = gksm_link_publish(load->process->link, (unsigned)load->gpu->device, load->kind,
				  entry, publication->fd, publication->count, said);
	for (i = 0; i < publication->count; i++) {
		/* No answer: somebody may have it all the same. It stays read-only, and a
		 * write copies. */
		if (!error)
			name_page(load, publication->page[i]->page, &said[i]);
		close(publication->fd[i]);
	}
}

void gksm_load_publish(struct gksm_load *load, struct gksm_load_page **chosen, size_t count)
{
	CUmemGenericAllocationHandle handles[GKSM_LOAD_BATCH] = {0};
	struct publication publication = {.count = 0};
	struct gksm_load_page *private[GKSM_LOAD_BATCH];
	uint64_t dropped[GKSM_LOAD_BATCH];
	struct gksm_segment_fill segment;
	size_t private_count = 0;
	size_t dropped_count = 0;
	size_t i;

	fill_new_pages(load, chosen, count, handles);
	for (i = 0; i < count; i++) {
		if (handles[i] && stage_publication(load, chosen[i], handles[i], &publication)) {
			chosen[i]->settled = true;
			continue;
		}
		if (handles[i])
			gksm_handle_release(load->gpu, handles[i]);
		dropped[dropped_count++] = chosen[i]->reply.result.token;
		private[private_count++] = chosen[i];
	}
	/* What was replaced is replaced; nobody stands still while gksmd is asked. */
	gksm_load_gate_open(load);
	if (dropped_count)
		gksm_link_lease_drop(load->process->link, (unsigned)load->gpu->device, dropped,
				     dropped_count);
	if (publication.count) {
		gksm_segment_begin(load->gpu, publication.count, &segment);
		send_publication(load, &publication, &segment);
		gksm_segment_end(load->gpu, &segment);
		atomic_fetch_add(&load->gpu->counters.loaded_pages, publication.count);
	}
	gksm_load_gate_open(load);
	if (private_count)
		gksm_load_abandon(load, private, private_count, GKSM_UNSHARED_REFUSED);
}
