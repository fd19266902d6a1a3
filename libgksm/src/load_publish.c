/* SPDX-License-Identifier: Apache-2.0 */
/* Misses: this process is the loader. New pages are filled, mapped read-only, and told of. */
#include <unistd.h>

#include "gpu.h"
#include "hash.h"
#include "load_commit.h"
#include "map.h"
#include "named.h"
#include "segments.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

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
	struct gksm_replacement with = {.handle = handle, .shared = true, .keep = true};
	int fd;

	if (gksm_handle_export(load->gpu, handle, &fd))
		return false;
	if (gksm_load_commit(load, page, &with)) {
		close(fd);
		return false;
	}
	publication->page[publication->count] = page;
	publication->fd[publication->count] = fd;
	publication->count++;
	return true;
}

/* Opening a page to writes makes a hole. Without a fault guard nothing may run, and the
 * gate is not closed while the page is taken: those inside may wait for it. */
static bool may_open(struct gksm_load *load)
{
	return atomic_load(&load->gpu->guard) == GKSM_GUARD_FAULT || gksm_load_quiet(load);
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
			gksm_page_named(load->gpu, publication->page[i]->page, &said[i],
					said[i].status && may_open(load));
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

	gksm_load_fill(load, chosen, count, handles);
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
