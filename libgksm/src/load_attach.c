/* SPDX-License-Identifier: Apache-2.0 */
/* Hits: compared byte by byte, then mapped instead of moved. */
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "hash.h"
#include "load_commit.h"
#include "map.h"
#include "segments.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

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
		struct gksm_replacement with = {
			.handle = handles[i], .shared = true, .page_id = attached[i]};

		if (!gksm_load_commit(load, same[i], &with)) {
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
