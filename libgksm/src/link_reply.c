/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gksmd sends: replies, matched to those who wait by their seq, late replies,
 * taken apart so that nothing they carry is lost, and orders.
 */
#include <errno.h>
#include <stddef.h>

#include "link_state.h"

/* What has to be told to gksmd once the lock is free. */
struct aftermath {
	unsigned gpu;
	uint64_t declined[GKSM_BATCH_MAX];
	size_t declined_count;
	uint64_t leases[GKSM_BATCH_MAX];
	size_t lease_count;
	uint64_t seal; /* a segment nobody will use; 0: none */
};

static void give_back(struct gksm_link *link, uint64_t *list, size_t *count, uint64_t id)
{
	/* No honest reply is longer than that. */
	if (*count == GKSM_BATCH_MAX)
		link->drop = true;
	else
		list[(*count)++] = id;
}

static void decline(struct gksm_link *link, struct aftermath *after, uint64_t page_id)
{
	give_back(link, after->declined, &after->declined_count, page_id);
}

static void tell_aftermath(struct gksm_link *link, const struct aftermath *after)
{
	if (after->declined_count)
		link_tell(link, GKSM_DETACHED, after->gpu, GKSM_DETACH_DECLINED, after->declined,
			  after->declined_count, 0);
	if (after->lease_count)
		link_tell(link, GKSM_LEASE_DROP, after->gpu, 0, after->leases, after->lease_count,
			  0);
	if (after->seal)
		link_tell_seal(link, after->gpu, after->seal);
}

static int deliver_lookup(struct gksm_link *link, struct gksm_request *request,
			  struct gksm_received *received, struct aftermath *after)
{
	unsigned hits = 0;

	for (size_t i = 0; i < received->header.entry_count; i++) {
		struct gksm_lookup_result result;
		struct gksm_lookup_reply *reply;

		gksm_received_entry(received, i, &result, sizeof(result));
		if (result.index >= request->count || result.outcome > GKSM_LOOKUP_NOTED)
			return -EPROTO;
		reply = &request->replies[result.index];
		if (reply->result.outcome != LINK_UNANSWERED)
			return -EPROTO;
		if (result.outcome == GKSM_LOOKUP_HIT) {
			hits++;
			reply->fd = gksm_received_take_fd(received);
			if (reply->fd < 0) {
				/* Our fd table is full: the page stays private. */
				decline(link, after, result.page_id);
				result.outcome = GKSM_LOOKUP_REFUSED;
				result.reason = GKSM_UNSHARED_REFUSED;
			}
		}
		reply->result = result;
		request->answered++;
	}
	return hits == received->header.fd_count ? 0 : -EPROTO;
}

static int deliver_published(struct gksm_request *request, struct gksm_received *received)
{
	if (received->header.entry_count > request->count - request->answered)
		return -EPROTO;
	for (size_t i = 0; i < received->header.entry_count; i++)
		gksm_received_entry(received, i, &request->results[request->answered++],
				    sizeof(*request->results));
	return 0;
}

static int deliver_segment(struct gksm_request *request, struct gksm_received *received,
			   struct aftermath *after, int *status)
{
	if (received->header.fd_count != 1)
		return -EPROTO;
	gksm_received_head(received, request->segment, sizeof(*request->segment));
	request->fd = gksm_received_take_fd(received);
	if (request->fd < 0) {
		*status = -EMFILE;
		if (request->type == GKSM_SEGMENT_GET)
			after->seal = request->segment->segment_id;
	}
	return 0;
}

/* Under the lock. */
static void gpu_is_open(struct link_gpu *gpu, const struct gksm_gpu_opened *opened)
{
	gpu->open = true;
	gpu->wire = opened->gpu;
}

/* Under the lock. -EPROTO, or 0 and the request may be over. */
static int deliver(struct gksm_link *link, struct gksm_request *request,
		   struct gksm_received *received, struct aftermath *after)
{
	bool more = received->header.flags & GKSM_FLAG_MORE;
	int status = received->header.status, result = 0;

	if (received->header.type != request->reply_type)
		return -EPROTO;
	if (status < 0) {
		link_request_done(link, request, status);
		return 0;
	}
	switch (request->type) {
	case GKSM_LOOKUP:
	case GKSM_OFFER:
	case GKSM_WAIT:
		result = deliver_lookup(link, request, received, after);
		break;
	case GKSM_PUBLISH:
		result = deliver_published(request, received);
		break;
	case GKSM_SEGMENT_GET:
	case GKSM_SEGMENT_OPEN:
		result = more ? -EPROTO : deliver_segment(request, received, after, &status);
		break;
	case GKSM_GPU_OPEN:
		gksm_received_head(received, request->opened, sizeof(*request->opened));
		gpu_is_open(&link->gpus[request->gpu], request->opened);
		break;
	}
	if (result || more)
		return result;
	/* What WAIT leaves out has expired; anything else must be answered whole. */
	if (request->type != GKSM_WAIT && request->answered != request->count)
		return -EPROTO;
	link_request_done(link, request, status);
	return 0;
}

/* Under the lock. A reply that nobody waits for any more: whatever it grants goes
 * back. The fds are closed by the caller, outside the lock. */
static void take_apart(struct gksm_link *link, const struct link_lost *lost,
		       const struct gksm_received *received, struct aftermath *after)
{
	if (received->header.status < 0)
		return;
	for (size_t i = 0; i < received->header.entry_count; i++) {
		struct gksm_lookup_result result;
		struct gksm_publish_result published;

		switch (received->header.type) {
		case GKSM_LOOKED_UP:
			gksm_received_entry(received, i, &result, sizeof(result));
			if (result.outcome == GKSM_LOOKUP_HIT)
				decline(link, after, result.page_id);
			else if (result.outcome == GKSM_LOOKUP_LEASE)
				give_back(link, after->leases, &after->lease_count, result.token);
			break;
		case GKSM_PUBLISHED:
			/* Its publisher was told that it failed, and keeps no count of it. */
			gksm_received_entry(received, i, &published, sizeof(published));
			if (published.status == 0)
				decline(link, after, published.page_id);
			break;
		}
	}
	if (received->header.type == GKSM_SEGMENT && lost->type == GKSM_SEGMENT_GET) {
		struct gksm_segment segment;

		gksm_received_head(received, &segment, sizeof(segment));
		after->seal = segment.segment_id;
	}
}

static struct link_lost *find_lost(struct gksm_link *link, uint32_t seq)
{
	for (size_t i = 0; i < LINK_LOST; i++)
		if (link->lost[i].seq == seq)
			return &link->lost[i];
	return NULL;
}

static int match(struct gksm_link *link, struct gksm_received *received)
{
	struct aftermath after = {.declined_count = 0, .lease_count = 0, .seal = 0};
	struct gksm_request *request;
	struct link_lost *lost = NULL;
	int result = 0;

	gksm_mutex_lock(&link->lock);
	for (request = link->requests; request; request = request->next)
		if (request->seq == received->header.seq)
			break;
	/* One whose packet is still queued cannot be answered. */
	if (request && request->packet) {
		result = -EPROTO;
	} else if (request) {
		after.gpu = request->gpu;
		result = deliver(link, request, received, &after);
	} else {
		lost = find_lost(link, received->header.seq);
		if (lost) {
			after.gpu = lost->gpu;
			take_apart(link, lost, received, &after);
			if (!(received->header.flags & GKSM_FLAG_MORE))
				lost->seq = 0;
		} else {
			result = -EPROTO;
		}
	}
	gksm_mutex_unlock(&link->lock);
	tell_aftermath(link, &after);
	return result;
}

static int welcome(struct gksm_link *link, struct gksm_received *received)
{
	struct gksm_welcome news;

	if (link->state != LINK_GREETING || received->header.seq != link->hello_seq ||
	    received->header.status < 0)
		return -EPROTO;
	gksm_received_head(received, &news, sizeof(news));
	if (news.protocol < link->hello.protocol_min || news.protocol > link->hello.protocol_max)
		return -EPROTO;
	news.domain[sizeof(news.domain) - 1] = '\0';
	news.reason[sizeof(news.reason) - 1] = '\0';
	gksm_mutex_lock(&link->lock);
	link->welcome = news;
	link->state = LINK_OPENING;
	gksm_mutex_unlock(&link->lock);
	return 0;
}

/* The answer to a GPU_OPEN that no caller waits for. false: it is another one's. */
static bool reopened(struct gksm_link *link, struct gksm_received *received)
{
	struct gksm_gpu_opened opened;
	unsigned gpu;
	bool granted = received->header.status == 0;

	if (granted)
		gksm_received_head(received, &opened, sizeof(opened));
	gksm_mutex_lock(&link->lock);
	for (gpu = 0; gpu < LINK_GPUS; gpu++)
		if (link->gpus[gpu].open_seq == received->header.seq)
			break;
	if (gpu < LINK_GPUS) {
		link->gpus[gpu].open_seq = 0;
		if (granted)
			gpu_is_open(&link->gpus[gpu], &opened);
	}
	gksm_mutex_unlock(&link->lock);
	if (gpu < LINK_GPUS && granted)
		link->events->gpu_opened(link->user, gpu, &opened);
	return gpu < LINK_GPUS;
}

static int control(struct gksm_link *link, struct gksm_received *received)
{
	struct gksm_control order;

	if (received->header.seq || received->header.status)
		return -EPROTO;
	gksm_received_head(received, &order, sizeof(order));
	order.reason[sizeof(order.reason) - 1] = '\0';
	link->events->control(link->user, &order);
	return 0;
}

static int scan_terms(struct gksm_link *link, struct gksm_received *received)
{
	struct gksm_scan_terms terms;
	unsigned gpu;

	if (received->header.seq || received->header.status)
		return -EPROTO;
	gksm_received_head(received, &terms, sizeof(terms));
	gksm_mutex_lock(&link->lock);
	for (gpu = 0; gpu < LINK_GPUS; gpu++)
		if (link->gpus[gpu].open && link->gpus[gpu].wire == terms.gpu)
			break;
	gksm_mutex_unlock(&link->lock);
	if (gpu == LINK_GPUS)
		return -EPROTO;
	if (link->events->scan_terms)
		link->events->scan_terms(link->user, gpu, &terms);
	return 0;
}

int link_dispatch(struct gksm_link *link, struct gksm_received *received)
{
	uint32_t seq = received->header.seq;
	int result;

	if (received->header.type == GKSM_CONTROL)
		result = control(link, received);
	else if (received->header.type == GKSM_SCAN_TERMS)
		result = scan_terms(link, received);
	else if (seq == 0)
		result = -EPROTO;
	else if (received->header.type == GKSM_WELCOME)
		result = welcome(link, received);
	else if (received->header.type == GKSM_ANNOUNCED)
		result = seq - link->announce_first < link->announce_count ? 0 : -EPROTO;
	else if (received->header.type == GKSM_GPU_OPENED && reopened(link, received))
		result = 0;
	else
		result = match(link, received);
	gksm_received_close_fds(received);
	return result;
}
