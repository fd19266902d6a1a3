/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch of full pages, from snapshot to settled.
 *
 *   1. Each source page is read once, into its pinned staging page, and hashed there.
 *   2. Each page enters LOADING (or RELOAD): from now on a fault on it is answered
 *      with the snapshot, and whoever else writes to it waits.
 *   3. gksmd is asked about all of them at once.
 *   4. Hits are compared and attached; leases are filled and published: all of one's
 *      own before anything is waited for, so that two loaders that need each other's
 *      pages both get on.
 *   5. What somebody else is loading is waited for, bounded over the whole load; a
 *      lapsed lease may make this process the loader after all.
 *   6. Whatever is left becomes private, with the snapshot's bytes.
 */
#include "load.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "assembly.h"
#include "gpu.h"
#include "hash.h"
#include "marks.h"
#include "privatize.h"
#include "streams.h"

/* Short, so that a lease granted meanwhile is filled soon: others wait for it. */
#define WAIT_SLICE_MS 100

void *gksm_load_add(struct gksm_load *load, uint64_t page, const void *source)
{
	struct gksm_load_page *entry = &load->pages[load->count];

	memset(entry, 0, sizeof(*entry));
	entry->page = page;
	entry->source = source;
	entry->staging = load->engine->staging[load->count];
	entry->reply.fd = -1;
	load->count++;
	return entry->staging;
}

static void snapshot(struct gksm_load *load)
{
	const void *sources[GKSM_LOAD_BATCH];
	void *snapshots[GKSM_LOAD_BATCH];
	struct gksm_hash128 hashes[GKSM_LOAD_BATCH];
	size_t i;

	for (i = 0; i < load->count; i++) {
		sources[i] = load->pages[i].source;
		snapshots[i] = load->pages[i].staging;
	}
	gksm_pool_snapshot(load->process->pool, sources, snapshots, hashes, load->count);
	for (i = 0; i < load->count; i++)
		load->pages[i].hash = hashes[i];
}

/* Writes the snapshot into a page that is mapped read-write already. */
static void write_through(struct gksm_load *load, struct gksm_load_page *entry)
{
	if (gksm_mover_enqueue(&load->engine->load, gksm_page_address(load->gpu, entry->page),
			       entry->staging, GKSM_PAGE_SIZE) ||
	    gksm_mover_finish(&load->engine->load))
		load->result = load->result ? load->result : CUDA_ERROR_UNKNOWN;
	entry->settled = true;
}

/* Out of SHARED or MERGING, so that it can be replaced like any private page. false: it
 * could not be; the load's result says why. */
static bool leave_read_only(struct gksm_load *load, uint64_t page, enum gksm_page_state from)
{
	struct gksm_privatize how = {
		.mover = &load->engine->load,
		.why = GKSM_UNSHARED_API,
		.reason = GKSM_DETACH_API_WRITE,
		.discard = !gksm_work_pending(load->process, load->engine->context, NULL),
	};
	int error;

	if (gksm_marks_wait(load->gpu, page) || !gksm_page_take(load->gpu, page, from))
		return true;
	error = gksm_privatize(load->gpu, page, from, &how);
	if (error == -ETIMEDOUT)
		return true; /* a copy engine reads on and on: the caller looks again */
	if (!error && from == GKSM_PAGE_SHARED)
		atomic_fetch_add(&load->gpu->counters.api_detaches, 1);
	if (error && !load->result)
		load->result = CUDA_ERROR_OUT_OF_MEMORY;
	return !error;
}

/* Step 2 for one page. */
static void enter(struct gksm_load *load, struct gksm_load_page *entry)
{
	struct gksm_gpu *gpu = load->gpu;
	struct gksm_page *page = &gpu->pages[entry->page];

	for (;;) {
		enum gksm_page_state state = gksm_page_state(gpu, entry->page);

		/* Assembled, and stolen since: it has the snapshot, and maybe what a kernel
		 * wrote to it after that. */
		if (!entry->source && !load->sealing && state != GKSM_PAGE_LOADING &&
		    state != GKSM_PAGE_BUSY) {
			entry->settled = true;
			return;
		}
		switch (state) {
		case GKSM_PAGE_LOADING: /* assembled: add_piece put it there */
			return;
		case GKSM_PAGE_UNBACKED:
		case GKSM_PAGE_FILLING:
			if (!gksm_page_take(gpu, entry->page, state))
				continue;
			gksm_assembly_free(page->assembly);
			page->assembly = NULL;
			page->snapshot = entry->staging;
			gksm_page_put(gpu, entry->page, GKSM_PAGE_LOADING);
			return;
		case GKSM_PAGE_PRIVATE:
			if (!gksm_page_step(gpu, entry->page, state, GKSM_PAGE_RELOAD))
				continue;
			if ((load->sealing || atomic_load(&gpu->guard) == GKSM_GUARD_FAULT) &&
			    !atomic_load(&page->pins))
				return;
			if (load->sealing)
				entry->settled = true;
			else
				write_through(load, entry);
			gksm_page_step(gpu, entry->page, GKSM_PAGE_RELOAD, GKSM_PAGE_PRIVATE);
			return;
		case GKSM_PAGE_MERGING:
		case GKSM_PAGE_SHARED:
			if (leave_read_only(load, entry->page, state))
				continue;
			entry->settled = true;
			return;
		case GKSM_PAGE_BUSY:
			gksm_page_wait(gpu, entry->page, state);
			continue;
		default: /* freed or lost under the copy: the driver would fail too */
			load->result = load->result ? load->result : CUDA_ERROR_INVALID_VALUE;
			entry->settled = true;
			return;
		}
	}
}

static size_t choose(struct gksm_load *load, enum gksm_lookup_outcome outcome,
		     struct gksm_load_page **chosen)
{
	size_t count = 0;
	size_t i;

	for (i = 0; i < load->count; i++)
		if (!load->pages[i].settled && load->pages[i].reply.result.outcome == outcome)
			chosen[count++] = &load->pages[i];
	return count;
}

static void settle_answers(struct gksm_load *load)
{
	struct gksm_load_page *chosen[GKSM_LOAD_BATCH];
	size_t count;

	count = choose(load, GKSM_LOOKUP_LEASE, chosen);
	if (count)
		gksm_load_publish(load, chosen, count);
	count = choose(load, GKSM_LOOKUP_HIT, chosen);
	if (count)
		gksm_load_attach(load, chosen, count);
	count = choose(load, GKSM_LOOKUP_REFUSED, chosen);
	if (count)
		gksm_load_abandon(load, chosen, count, GKSM_UNSHARED_REFUSED);
	gksm_load_gate_open(load);
}

static bool look_up(struct gksm_load *load, struct gksm_load_page **chosen, size_t count)
{
	struct gksm_lookup_reply replies[GKSM_LOAD_BATCH];
	struct gksm_hash128 hashes[GKSM_LOAD_BATCH] = {{0, 0}};
	size_t i;

	for (i = 0; i < count; i++)
		hashes[i] = chosen[i]->hash;
	if (gksm_link_lookup(load->process->link, (unsigned)load->gpu->device, load->kind, hashes,
			     count, replies))
		return false;
	for (i = 0; i < count; i++)
		chosen[i]->reply = replies[i];
	return true;
}

/* Waits once for the pages others are loading. false: gksmd is gone. */
static bool wait_once(struct gksm_load *load, struct gksm_load_page **pending, size_t count,
		      unsigned timeout_ms)
{
	struct gksm_lookup_reply replies[GKSM_LOAD_BATCH];
	uint64_t tickets[GKSM_LOAD_BATCH] = {0};
	size_t i;

	for (i = 0; i < count; i++)
		tickets[i] = pending[i]->reply.result.token;
	if (gksm_link_wait_tickets(load->process->link, (unsigned)load->gpu->device, tickets, count,
				   timeout_ms, replies))
		return false;
	for (i = 0; i < count; i++)
		pending[i]->reply = replies[i];
	return true;
}

static void settle_pending(struct gksm_load *load)
{
	struct gksm_load_page *chosen[GKSM_LOAD_BATCH];
	size_t count;

	for (;;) {
		uint64_t now = gksm_now_ns();

		count = choose(load, GKSM_LOOKUP_PENDING, chosen);
		if (!count || now >= load->wait_until_ns)
			break;
		if (!wait_once(load, chosen, count, WAIT_SLICE_MS))
			break;
		settle_answers(load);
		/* A slice that passed is asked about again: the page may have been
		 * published in between, and a ticket is good for one wait. */
		count = choose(load, GKSM_LOOKUP_EXPIRED, chosen);
		if (count && !look_up(load, chosen, count))
			break;
		settle_answers(load);
	}
}

void gksm_load_flush(struct gksm_load *load)
{
	struct gksm_load_page *left[GKSM_LOAD_BATCH];
	size_t count = 0;
	size_t i;

	if (!load->count)
		return;
	snapshot(load);
	for (i = 0; i < load->count; i++)
		enter(load, &load->pages[i]);
	for (i = 0; i < load->count; i++)
		if (!load->pages[i].settled)
			left[count++] = &load->pages[i];
	if (count && look_up(load, left, count)) {
		settle_answers(load);
		settle_pending(load);
	}
	count = 0;
	for (i = 0; i < load->count; i++)
		if (!load->pages[i].settled)
			left[count++] = &load->pages[i];
	if (count)
		gksm_load_abandon(load, left, count, GKSM_UNSHARED_DAEMON);
	gksm_load_gate_open(load);
	load->count = 0;
}
