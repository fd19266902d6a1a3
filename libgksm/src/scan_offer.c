/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stable pages, offered. gksmd answers each with what to do:
 *
 *   LEASE    publish it: somebody else has, or we have, another one like it
 *   HIT      it is published: attach
 *   PENDING  somebody is publishing it, maybe this very offer: ask again
 *   NOTED    nobody else has it; gksmd will say when that changes
 *   REFUSED  not shared: over a quota, or told to stay private
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "marks.h"
#include "named.h"
#include "report.h"
#include "scan.h"
#include "scan_state.h"

#define BATCH 32 /* offers in one request: each may come back with a descriptor */
#define ROUNDS 3

enum standing { OPEN, KEPT, OVER }; /* to be asked; to be offered again later; neither */

struct offer {
	const struct gksm_scan_candidate *candidate;
	enum standing *standing;
	struct gksm_lookup_reply reply;
};

static int by_kind_hash_page(const void *left, const void *right)
{
	const struct gksm_scan_candidate *a = left, *b = right;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	if (a->hash.low != b->hash.low)
		return a->hash.low < b->hash.low ? -1 : 1;
	if (a->hash.high != b->hash.high)
		return a->hash.high < b->hash.high ? -1 : 1;
	return a->page < b->page ? -1 : a->page > b->page;
}

static bool twins(const struct gksm_scan_candidate *a, const struct gksm_scan_candidate *b)
{
	return a->kind == b->kind && a->hash.low == b->hash.low && a->hash.high == b->hash.high;
}

/* The engine of the page, entered, with the page protected; NULL: neither. */
static struct gksm_engine *protect(struct gksm_scan *scan, uint64_t page)
{
	struct gksm_engine *engine = gksm_scan_enter(scan, page);

	if (engine && gksm_merge_protect(scan, page))
		return engine;
	if (engine)
		gksm_scan_leave(engine);
	return NULL;
}

struct publication {
	struct offer *offer[BATCH];
	struct gksm_publish_entry entry[BATCH];
	int fd[BATCH];
	size_t count;
	uint64_t dropped[BATCH];
	size_t dropped_count;
};

static void dropped(struct gksm_scan *scan)
{
	atomic_fetch_add(&scan->gpu->counters.dropped_merges, 1);
}

static void stage(struct gksm_scan *scan, struct offer *offer, struct publication *publication)
{
	uint64_t started = gksm_now_ns();
	uint64_t page = offer->candidate->page;
	struct gksm_engine *engine = protect(scan, page);
	size_t at = publication->count;

	if (engine && gksm_merge_publish(scan, offer->candidate, &publication->fd[at])) {
		publication->offer[at] = offer;
		publication->entry[at] = (struct gksm_publish_entry){
			.token = offer->reply.result.token, .hash = offer->candidate->hash};
		publication->count++;
	} else {
		if (engine)
			gksm_merge_abandon(scan, page);
		publication->dropped[publication->dropped_count++] = offer->reply.result.token;
		dropped(scan);
	}
	if (engine)
		gksm_scan_leave(engine);
	gksm_scan_yield(scan, started);
}

static size_t publish(struct gksm_scan *scan, struct offer *offers, size_t count)
{
	struct gksm_gpu *gpu = scan->gpu;
	struct gksm_link *link = gpu->process->link;
	struct gksm_publish_result said[BATCH];
	struct publication publication = {.count = 0};
	size_t published = 0;
	int error = 0;
	size_t i;

	for (i = 0; i < count; i++) {
		if (offers[i].reply.result.outcome != GKSM_LOOKUP_LEASE)
			continue;
		*offers[i].standing = OVER;
		stage(scan, &offers[i], &publication);
	}
	if (publication.dropped_count)
		gksm_link_lease_drop(link, (unsigned)gpu->device, publication.dropped,
				     publication.dropped_count);
	if (publication.count)
		error = gksm_link_publish(link, (unsigned)gpu->device, offers[0].candidate->kind,
					  publication.entry, publication.fd, publication.count,
					  said);
	for (i = 0; i < publication.count; i++) {
		close(publication.fd[i]);
		/* No answer: somebody may have it all the same. It stays read-only. */
		if (error)
			continue;
		gksm_page_named(gpu, publication.offer[i]->candidate->page, &said[i], true);
		published += !said[i].status;
	}
	return published;
}

static bool attach(struct gksm_scan *scan, struct offer *offer)
{
	uint64_t started = gksm_now_ns();
	uint64_t page = offer->candidate->page;
	enum gksm_merge_result result = GKSM_MERGE_DROPPED;
	struct gksm_engine *engine = protect(scan, page);

	*offer->standing = OVER;
	if (engine) {
		result = gksm_merge_attach(scan, offer->candidate, offer->reply.fd,
					   offer->reply.result.page_id);
		if (result != GKSM_MERGE_DONE)
			gksm_merge_abandon(scan, page);
		gksm_scan_leave(engine);
	} else {
		gksm_link_detached(scan->gpu->process->link, (unsigned)scan->gpu->device,
				   GKSM_DETACH_DECLINED, &offer->reply.result.page_id, 1);
	}
	close(offer->reply.fd);
	if (result == GKSM_MERGE_DIFFERS)
		gksm_report(scan->gpu->process, GKSM_WARNING,
			    "pages with one hash differ: they stay apart");
	if (result != GKSM_MERGE_DONE)
		dropped(scan);
	gksm_scan_yield(scan, started);
	return result == GKSM_MERGE_DONE;
}

/* Offers up to BATCH candidates of one kind and does what is answered. */
static size_t settle(struct gksm_scan *scan, struct offer *offers, size_t count,
		     const struct gksm_offer_entry *entries)
{
	struct gksm_lookup_reply replies[BATCH];
	size_t merged;
	size_t i;

	if (gksm_link_offer(scan->gpu->process->link, (unsigned)scan->gpu->device,
			    offers[0].candidate->kind, entries, count, replies)) {
		for (i = 0; i < count; i++)
			*offers[i].standing = OVER;
		return 0;
	}
	for (i = 0; i < count; i++)
		offers[i].reply = replies[i];
	/* First: others wait for leases, our own further offers among them. */
	merged = publish(scan, offers, count);
	for (i = 0; i < count; i++) {
		switch (offers[i].reply.result.outcome) {
		case GKSM_LOOKUP_HIT:
			merged += attach(scan, &offers[i]);
			break;
		case GKSM_LOOKUP_NOTED:
			*offers[i].standing = KEPT;
			break;
		case GKSM_LOOKUP_LEASE:
		case GKSM_LOOKUP_PENDING:
			break;
		default:
			*offers[i].standing = OVER;
			break;
		}
	}
	return merged;
}

static size_t offer_round(struct gksm_scan *scan, enum standing *standing)
{
	struct gksm_scan_candidate *all = scan->candidates;
	struct offer offers[BATCH];
	struct gksm_offer_entry entries[BATCH];
	size_t merged = 0;
	size_t count = 0;
	size_t i;

	for (i = 0; i < scan->candidate_count; i++) {
		bool twin = (i && twins(&all[i - 1], &all[i])) ||
			    (i + 1 < scan->candidate_count && twins(&all[i], &all[i + 1]));

		if (standing[i] != OPEN)
			continue;
		if (count == BATCH || (count && offers[0].candidate->kind != all[i].kind)) {
			merged += settle(scan, offers, count, entries);
			count = 0;
		}
		offers[count] = (struct offer){.candidate = &all[i], .standing = &standing[i]};
		entries[count] = (struct gksm_offer_entry){.hash = all[i].hash,
							   .flags = twin ? GKSM_OFFER_TWIN : 0};
		count++;
	}
	if (count)
		merged += settle(scan, offers, count, entries);
	return merged;
}

static bool any_open(const struct gksm_scan *scan, const enum standing *standing)
{
	size_t i;

	for (i = 0; i < scan->candidate_count; i++)
		if (standing[i] == OPEN)
			return true;
	return false;
}

size_t gksm_scan_offer(struct gksm_scan *scan)
{
	enum standing *standing;
	size_t merged = 0;
	size_t kept = 0;
	int round;
	size_t i;

	if (!scan->candidate_count)
		return 0;
	/* Copies that are over need not keep a page from being merged. */
	gksm_marks_reap(scan->gpu);
	standing = calloc(scan->candidate_count, sizeof(*standing));
	if (!standing)
		return 0;
	qsort(scan->candidates, scan->candidate_count, sizeof(*scan->candidates),
	      by_kind_hash_page);
	for (round = 0; round < ROUNDS && any_open(scan, standing); round++)
		merged += offer_round(scan, standing);
	for (i = 0; i < scan->candidate_count; i++)
		if (standing[i] != OVER)
			scan->candidates[kept++] = scan->candidates[i];
	scan->candidate_count = kept;
	atomic_store(&scan->gpu->counters.stable_pages, kept);
	free(standing);
	return merged;
}
