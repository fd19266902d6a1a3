/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a reconnect: which pages are mapped. gksmd takes an announcement as the whole
 * truth about a page, so all addresses that map it must be told in one entry.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "link_state.h"

void link_announce_reset(struct gksm_link *link)
{
	free(link->mapped);
	link->mapped = NULL;
	link->mapped_count = 0;
	link->mapped_sent = 0;
	link->announce_gpu = 0;
	link->announce_count = 0;
}

static int by_page_id(const void *left, const void *right)
{
	uint64_t a = ((const struct gksm_page_entry *)left)->page_id;
	uint64_t b = ((const struct gksm_page_entry *)right)->page_id;

	return (a > b) - (a < b);
}

static void merge(struct gksm_link *link)
{
	struct gksm_page_entry *pages = link->mapped;
	size_t kept = 0;

	if (link->mapped_count == 0)
		return;
	qsort(pages, link->mapped_count, sizeof(*pages), by_page_id);
	for (size_t i = 1; i < link->mapped_count; i++) {
		if (pages[i].page_id == pages[kept].page_id)
			pages[kept].mappings += pages[i].mappings;
		else
			pages[++kept] = pages[i];
	}
	link->mapped_count = kept + 1;
}

/* All pages mapped on announce_gpu. */
static int gather(struct gksm_link *link)
{
	size_t room = 0, cursor = 0, count;

	link->mapped_count = 0;
	link->mapped_sent = 0;
	do {
		if (room - link->mapped_count < GKSM_BATCH_MAX) {
			void *larger;

			room = room ? 2 * room : 2 * GKSM_BATCH_MAX;
			larger = realloc(link->mapped, room * sizeof(*link->mapped));
			if (!larger)
				return -ENOMEM;
			link->mapped = larger;
		}
		count = link->events->announce(link->user, link->announce_gpu, &cursor,
					       link->mapped + link->mapped_count, GKSM_BATCH_MAX);
		link->mapped_count += count;
	} while (count);
	merge(link);
	return 0;
}

static int announce_part(struct gksm_link *link, uint32_t wire)
{
	const struct gksm_gpu_ref head = {.gpu = wire};
	size_t left = link->mapped_count - link->mapped_sent;
	size_t count = left < GKSM_BATCH_MAX ? left : GKSM_BATCH_MAX;
	struct gksm_packet *packet =
		gksm_packet_new(GKSM_ANNOUNCE, &head, sizeof(head), sizeof(*link->mapped), count);

	if (!packet)
		return -ENOMEM;
	memcpy(gksm_packet_entry(packet, 0), link->mapped + link->mapped_sent,
	       count * sizeof(*link->mapped));
	link->mapped_sent += count;
	gksm_mutex_lock(&link->lock);
	packet->header.seq = link_next_seq(link);
	gksm_mutex_unlock(&link->lock);
	if (link->announce_count++ == 0)
		link->announce_first = packet->header.seq;
	link_queue_append(&link->own, packet);
	return 1;
}

int link_announce(struct gksm_link *link)
{
	for (; link->announce_gpu < LINK_GPUS; link->announce_gpu++) {
		uint32_t wire;
		bool open;

		gksm_mutex_lock(&link->lock);
		open = link->gpus[link->announce_gpu].open;
		wire = link->gpus[link->announce_gpu].wire;
		gksm_mutex_unlock(&link->lock);
		if (!open)
			continue;
		if (!link->mapped && gather(link))
			return -ENOMEM;
		if (link->mapped_sent < link->mapped_count)
			return announce_part(link, wire);
		free(link->mapped);
		link->mapped = NULL;
	}
	return 0;
}
