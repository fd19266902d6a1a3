/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: one packet goes out, its caller sleeps until the link thread has the
 * whole answer, the connection is gone, or time is up.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link_state.h"

#define SENDING_POLL_NS 20000

void link_request_done(struct gksm_link *link, struct gksm_request *request, int status)
{
	struct gksm_request **at = &link->requests;

	while (*at != request)
		at = &(*at)->next;
	*at = request->next;
	request->packet = NULL;
	request->status = status;
	/* The caller may be gone after this: below, only its address is used. */
	atomic_store_explicit(&request->done, 1, memory_order_release);
	gksm_futex_wake(&request->done, 1);
}

/* Under the lock. Nobody waits for the request any more; its reply may still come. */
static void forget(struct gksm_link *link, const struct gksm_request *request)
{
	if (request->type == GKSM_GPU_OPEN) {
		link->gpus[request->gpu].open_seq = request->seq;
		return;
	}
	for (size_t i = 0; i < LINK_LOST; i++) {
		if (link->lost[i].seq)
			continue;
		link->lost[i] = (struct link_lost){
			.seq = request->seq, .type = request->type, .gpu = request->gpu};
		return;
	}
	link->drop = true;
}

/* Under the lock, which it lets go meanwhile: time is up. The answer may come after
 * all. */
static void give_up(struct gksm_link *link, struct gksm_request *request, uint64_t started_ns)
{
	struct gksm_packet *unsent = NULL;

	/* The packet's fds are the caller's: they must stay open while it is sent. A
	 * send never blocks, so this is short. */
	while (request->packet && request->packet == link->sending) {
		gksm_mutex_unlock(&link->lock);
		gksm_sleep_ns(SENDING_POLL_NS);
		gksm_mutex_lock(&link->lock);
	}
	if (atomic_load_explicit(&request->done, memory_order_relaxed))
		return;
	if (request->packet) {
		unsent = request->packet;
		link_queue_remove(&link->queue, unsent);
	} else {
		forget(link, request);
	}
	link_request_done(link, request, -ETIMEDOUT);
	if (atomic_load(&link->heard_ns) < started_ns && !link->stalled_ns)
		link->stalled_ns = gksm_now_ns();
	gksm_mutex_unlock(&link->lock);
	free(unsent);
	link_wake(link);
	gksm_mutex_lock(&link->lock);
}

/*
 * Sends the packet, which is the link's from here on, and waits. The head's first
 * word becomes the gpu's number on the wire, but for GPU_OPEN, which asks for one.
 * Returns the reply's status, -ENOTCONN or -ETIMEDOUT.
 */
static int ask(struct gksm_link *link, struct gksm_request *request, struct gksm_packet *packet,
	       uint64_t timeout_ns)
{
	uint64_t started = gksm_now_ns(), deadline = started + timeout_ns;
	bool opening = request->type == GKSM_GPU_OPEN;
	int status = 0;

	if (!packet)
		return -ENOMEM;
	gksm_mutex_lock(&link->lock);
	if (link->state != LINK_UP || link->drop || (!opening && !link->gpus[request->gpu].open))
		status = -ENOTCONN;
	else if (link->stalled_ns)
		status = -ETIMEDOUT;
	if (status) {
		gksm_mutex_unlock(&link->lock);
		free(packet);
		return status;
	}
	if (opening)
		link->gpus[request->gpu].asked = true;
	else
		memcpy(packet->body, &link->gpus[request->gpu].wire, sizeof(uint32_t));
	request->seq = link_next_seq(link);
	request->connection = link->connection;
	request->packet = packet;
	request->next = link->requests;
	link->requests = request;
	packet->request = request;
	packet->header.seq = request->seq;
	link_queue_append(&link->queue, packet);
	gksm_mutex_unlock(&link->lock);
	link_wake(link);

	while (!atomic_load_explicit(&request->done, memory_order_acquire)) {
		uint64_t now = gksm_now_ns();

		if (now < deadline) {
			gksm_futex_wait(&request->done, 0, (int64_t)(deadline - now));
			continue;
		}
		gksm_mutex_lock(&link->lock);
		if (!atomic_load_explicit(&request->done, memory_order_relaxed))
			give_up(link, request, started);
		gksm_mutex_unlock(&link->lock);
	}
	return request->status;
}

struct gksm_packet *link_gpu_open_packet(const struct gksm_gpu_open *open)
{
	return gksm_packet_new(GKSM_GPU_OPEN, open, sizeof(*open), 0, 0);
}

int gksm_link_gpu_open(struct gksm_link *link, unsigned gpu, const struct gksm_gpu_open *open,
		       struct gksm_gpu_opened *opened)
{
	struct gksm_request request = {
		.type = GKSM_GPU_OPEN, .reply_type = GKSM_GPU_OPENED, .gpu = gpu, .opened = opened};

	if (!link)
		return -ENOTCONN;
	if (gpu >= LINK_GPUS)
		return -EINVAL;
	gksm_mutex_lock(&link->lock);
	link->gpus[gpu].known = true;
	link->gpus[gpu].request = *open;
	gksm_mutex_unlock(&link->lock);
	return ask(link, &request, link_gpu_open_packet(open), LINK_REQUEST_NS);
}

int gksm_link_commit(struct gksm_link *link, unsigned gpu, uint64_t pages, uint64_t free_bytes)
{
	struct gksm_commit head = {.pages = pages, .free_bytes = free_bytes};
	struct gksm_request request = {
		.type = GKSM_COMMIT, .reply_type = GKSM_COMMITTED, .gpu = gpu};

	if (!link || gpu >= LINK_GPUS)
		return -ENOTCONN;
	return ask(link, &request, gksm_packet_new(GKSM_COMMIT, &head, sizeof(head), 0, 0),
		   LINK_REQUEST_NS);
}

/*
 * The request failed, but a part of its answer may have come: its fds are closed and
 * what it granted goes back. On another connection nothing of it counts any more.
 */
static void discard(struct gksm_link *link, const struct gksm_request *request)
{
	for (size_t i = 0; i < request->count; i++) {
		struct gksm_lookup_reply *reply = &request->replies[i];

		if (reply->result.outcome == GKSM_LOOKUP_HIT) {
			close(reply->fd);
			link_tell(link, GKSM_DETACHED, request->gpu, GKSM_DETACH_DECLINED,
				  &reply->result.page_id, 1, request->connection);
		} else if (reply->result.outcome == GKSM_LOOKUP_LEASE) {
			link_tell(link, GKSM_LEASE_DROP, request->gpu, 0, &reply->result.token, 1,
				  request->connection);
		}
		reply->result.outcome = GKSM_LOOKUP_REFUSED;
		reply->result.reason = GKSM_UNSHARED_DAEMON;
		reply->fd = -1;
	}
}

static void unanswered(struct gksm_lookup_reply *replies, size_t count)
{
	for (size_t i = 0; i < count; i++)
		replies[i] = (struct gksm_lookup_reply){
			.result = {.index = (uint32_t)i, .outcome = LINK_UNANSWERED}, .fd = -1};
}

/*
 * LOOKUP and WAIT: one reply for each of request->count entries, into request->replies.
 * What came is taken apart again if the request fails; with `partly`, what came by the
 * timeout is an answer (-ETIMEDOUT), and the rest is left LINK_UNANSWERED.
 */
static int look_up(struct gksm_link *link, struct gksm_request *request, const void *head,
		   size_t head_bytes, const void *entries, size_t entry_bytes, uint64_t timeout_ns,
		   bool partly)
{
	struct gksm_packet *packet;
	int status;

	if (!link || request->gpu >= LINK_GPUS)
		return -ENOTCONN;
	if (request->count > GKSM_BATCH_MAX)
		return -EINVAL;
	if (request->count == 0)
		return 0;
	packet = gksm_packet_new(request->type, head, head_bytes, entry_bytes, request->count);
	if (packet)
		memcpy(gksm_packet_entry(packet, 0), entries, request->count * entry_bytes);
	unanswered(request->replies, request->count);
	status = ask(link, request, packet, timeout_ns);
	if (status && !(partly && status == -ETIMEDOUT))
		discard(link, request);
	return status;
}

int gksm_link_lookup(struct gksm_link *link, unsigned gpu, enum gksm_kind kind,
		     const struct gksm_hash128 *hashes, size_t count,
		     struct gksm_lookup_reply *replies)
{
	struct gksm_lookup head = {.kind = kind};
	struct gksm_request request = {.type = GKSM_LOOKUP,
				       .reply_type = GKSM_LOOKED_UP,
				       .gpu = gpu,
				       .count = count,
				       .replies = replies};

	return look_up(link, &request, &head, sizeof(head), hashes,
		       sizeof(struct gksm_lookup_entry), LINK_REQUEST_NS, false);
}

int gksm_link_offer(struct gksm_link *link, unsigned gpu, enum gksm_kind kind,
		    const struct gksm_offer_entry *entries, size_t count,
		    struct gksm_lookup_reply *replies)
{
	struct gksm_offer head = {.kind = kind};
	struct gksm_request request = {.type = GKSM_OFFER,
				       .reply_type = GKSM_LOOKED_UP,
				       .gpu = gpu,
				       .count = count,
				       .replies = replies};

	return look_up(link, &request, &head, sizeof(head), entries, sizeof(*entries),
		       LINK_REQUEST_NS, false);
}

int gksm_link_wait_tickets(struct gksm_link *link, unsigned gpu, const uint64_t *tickets,
			   size_t count, unsigned timeout_ms, struct gksm_lookup_reply *replies)
{
	struct gksm_wait head = {.timeout_ms = timeout_ms};
	struct gksm_request request = {.type = GKSM_WAIT,
				       .reply_type = GKSM_LOOKED_UP,
				       .gpu = gpu,
				       .count = count,
				       .replies = replies};
	int status;

	status = look_up(link, &request, &head, sizeof(head), tickets,
			 sizeof(struct gksm_wait_entry), timeout_ms * LINK_MS + LINK_REQUEST_NS,
			 true);
	if (status && status != -ETIMEDOUT)
		return status;
	for (size_t i = 0; i < count; i++)
		if (replies[i].result.outcome == LINK_UNANSWERED)
			replies[i].result.outcome = GKSM_LOOKUP_EXPIRED;
	return 0;
}

static void all_failed(struct gksm_publish_result *results, size_t count, int status)
{
	for (size_t i = 0; i < count; i++)
		results[i] = (struct gksm_publish_result){.status = status};
}

static int publish(struct gksm_link *link, unsigned gpu, enum gksm_kind kind,
		   const struct gksm_publish_entry *entries, const int *fds, size_t count,
		   struct gksm_publish_result *results)
{
	struct gksm_publish head = {.kind = kind};
	struct gksm_request request = {.type = GKSM_PUBLISH,
				       .reply_type = GKSM_PUBLISHED,
				       .gpu = gpu,
				       .count = count,
				       .results = results};
	struct gksm_packet *packet;
	int status;

	packet = gksm_packet_new(GKSM_PUBLISH, &head, sizeof(head), sizeof(*entries), count);
	if (packet) {
		memcpy(gksm_packet_entry(packet, 0), entries, count * sizeof(*entries));
		packet->header.fd_count = (uint32_t)count;
		packet->fds = fds;
	}
	status = ask(link, &request, packet, LINK_REQUEST_NS);
	if (status == 0)
		return 0;
	/* A partial answer may name pages as published; the caller hears that none is,
	 * so gksmd must not count them. */
	for (size_t i = 0; i < request.answered; i++)
		if (results[i].status == 0)
			link_tell(link, GKSM_DETACHED, gpu, GKSM_DETACH_DECLINED,
				  &results[i].page_id, 1, request.connection);
	all_failed(results, count, status);
	return status;
}

int gksm_link_publish(struct gksm_link *link, unsigned gpu, enum gksm_kind kind,
		      const struct gksm_publish_entry *entries, const int *fds, size_t count,
		      struct gksm_publish_result *results)
{
	int first = 0, status = 0;

	if (!link || gpu >= LINK_GPUS)
		return -ENOTCONN;
	for (size_t at = 0; at < count; at += GKSM_FDS_MAX) {
		size_t part = count - at < GKSM_FDS_MAX ? count - at : GKSM_FDS_MAX;

		if (status == 0)
			status = publish(link, gpu, kind, entries + at, fds + at, part,
					 results + at);
		else
			all_failed(results + at, part, status);
		if (at == 0)
			first = status;
	}
	/* Earlier parts stand when a later one fails: each result has its own status. */
	return first;
}

static int segment(struct gksm_link *link, struct gksm_request *request, struct gksm_packet *packet,
		   int *fd)
{
	int status;

	request->reply_type = GKSM_SEGMENT;
	request->fd = -1;
	status = ask(link, request, packet, LINK_REQUEST_NS);
	*fd = request->fd;
	return status;
}

int gksm_link_segment_get(struct gksm_link *link, unsigned gpu, unsigned pages,
			  struct gksm_segment *into, int *fd)
{
	struct gksm_segment_get head = {.pages = pages};
	struct gksm_request request = {.type = GKSM_SEGMENT_GET, .gpu = gpu, .segment = into};

	*fd = -1;
	if (!link || gpu >= LINK_GPUS)
		return -ENOTCONN;
	return segment(link, &request, gksm_packet_new(GKSM_SEGMENT_GET, &head, sizeof(head), 0, 0),
		       fd);
}

int gksm_link_segment_open(struct gksm_link *link, unsigned gpu, uint64_t segment_id,
			   struct gksm_segment *into, int *fd)
{
	struct gksm_segment_ref head = {.segment_id = segment_id};
	struct gksm_request request = {.type = GKSM_SEGMENT_OPEN, .gpu = gpu, .segment = into};

	*fd = -1;
	if (!link || gpu >= LINK_GPUS)
		return -ENOTCONN;
	return segment(link, &request,
		       gksm_packet_new(GKSM_SEGMENT_OPEN, &head, sizeof(head), 0, 0), fd);
}
