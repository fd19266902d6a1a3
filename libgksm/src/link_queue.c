/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits to be sent: the ordered queue, one-way messages, usage and reports.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "link_state.h"

#define TELL_ROOM 64 /* entries in a packet that later messages may fill up */

void link_queue_append(struct link_queue *queue, struct gksm_packet *packet)
{
	packet->next = NULL;
	if (queue->last)
		queue->last->next = packet;
	else
		queue->first = packet;
	queue->last = packet;
}

bool link_queue_remove(struct link_queue *queue, struct gksm_packet *packet)
{
	struct gksm_packet *before = NULL;

	for (struct gksm_packet *at = queue->first; at; before = at, at = at->next) {
		if (at != packet)
			continue;
		if (before)
			before->next = at->next;
		else
			queue->first = at->next;
		if (queue->last == at)
			queue->last = before;
		return true;
	}
	return false;
}

struct gksm_packet *link_queue_take_all(struct link_queue *queue)
{
	struct gksm_packet *all = queue->first;

	queue->first = NULL;
	queue->last = NULL;
	return all;
}

void link_packets_free(struct gksm_packet *packets)
{
	while (packets) {
		struct gksm_packet *next = packets->next;

		free(packets);
		packets = next;
	}
}

size_t link_packet_cost(const struct gksm_packet *packet)
{
	return sizeof(*packet) + packet->header.head_bytes +
	       packet->capacity * packet->header.entry_bytes;
}

uint32_t link_next_seq(struct gksm_link *link)
{
	if (++link->seq == 0)
		link->seq = 1;
	return link->seq;
}

void link_wake(struct gksm_link *link)
{
	const uint64_t one = 1;
	int saved = errno;

	if (atomic_exchange(&link->wake_pending, 1))
		return;
	/* Fails only when the counter is full, and then the thread is awake. */
	if (write(link->wake_fd, &one, sizeof(one)) < 0)
		errno = saved;
}

/* Under the lock: one-way messages count from the announcement on. */
static bool may_tell(const struct gksm_link *link, unsigned gpu, uint64_t connection)
{
	return link->state >= LINK_ANNOUNCING && !link->drop && link->gpus[gpu].open &&
	       (!connection || connection == link->connection);
}

/* Under the lock. The packet is the queue's from here on. */
static void append_one_way(struct gksm_link *link, struct gksm_packet *packet)
{
	/* Losing one would leave gksmd wrong for good; starting over does not. */
	if (link->queue_bytes > LINK_QUEUE_BYTES)
		link->drop = true;
	link->queue_bytes += link_packet_cost(packet);
	link_queue_append(&link->queue, packet);
}

static size_t fill(struct gksm_packet *packet, const uint64_t *ids, size_t count)
{
	size_t room = packet->capacity - packet->header.entry_count;
	size_t taken = count < room ? count : room;

	for (size_t i = 0; i < taken; i++) {
		void *entry = gksm_packet_entry(packet, packet->header.entry_count++);

		if (packet->header.type == GKSM_LEASE_DROP)
			*(struct gksm_lease_entry *)entry = (struct gksm_lease_entry){ids[i]};
		else
			*(struct gksm_page_entry *)entry =
				(struct gksm_page_entry){.page_id = ids[i], .mappings = 1};
	}
	return taken;
}

/* Under the lock: the last packet, if it is one these entries may join. */
static struct gksm_packet *joinable(struct gksm_link *link, enum gksm_message type,
				    const struct gksm_gpu_ref *head)
{
	struct gksm_packet *last = link->queue.last;

	if (!last || last->request || last == link->sending || last->header.type != type ||
	    last->header.entry_count == last->capacity || memcmp(last->body, head, sizeof(*head)))
		return NULL;
	return last;
}

void link_tell(struct gksm_link *link, enum gksm_message type, unsigned gpu, uint32_t reason,
	       const uint64_t *ids, size_t count, uint64_t connection)
{
	size_t entry_bytes = type == GKSM_LEASE_DROP ? sizeof(struct gksm_lease_entry)
						     : sizeof(struct gksm_page_entry);
	struct gksm_packet *spare = NULL;
	bool telling = true;

	if (!link || gpu >= LINK_GPUS)
		return;
	while (count && telling) {
		struct gksm_packet *into;
		size_t taken = 0;

		gksm_mutex_lock(&link->lock);
		telling = may_tell(link, gpu, connection);
		if (telling) {
			struct gksm_gpu_ref head = {.gpu = link->gpus[gpu].wire, .reason = reason};

			into = joinable(link, type, &head);
			if (!into && spare) {
				into = spare;
				spare = NULL;
				memcpy(into->body, &head, sizeof(head));
				into->header.entry_count = 0;
				append_one_way(link, into);
			}
			if (into)
				taken = fill(into, ids, count);
		}
		gksm_mutex_unlock(&link->lock);
		ids += taken;
		count -= taken;

		if (count && telling) {
			const struct gksm_gpu_ref blank = {0};
			size_t room = count > GKSM_BATCH_MAX ? GKSM_BATCH_MAX : count;

			spare = gksm_packet_new(type, &blank, sizeof(blank), entry_bytes,
						room < TELL_ROOM ? TELL_ROOM : room);
			if (spare)
				continue;
			gksm_mutex_lock(&link->lock);
			link->drop = true;
			gksm_mutex_unlock(&link->lock);
			telling = false;
		}
	}
	free(spare);
	link_wake(link);
}

void link_tell_head(struct gksm_link *link, enum gksm_message type, int gpu, const void *head,
		    size_t bytes)
{
	struct gksm_packet *packet;

	if (!link || gpu >= LINK_GPUS)
		return;
	packet = gksm_packet_new(type, head, bytes, 0, 0);
	gksm_mutex_lock(&link->lock);
	if (!packet) {
		link->drop = true;
	} else if (gpu < 0 ? link->state >= LINK_ANNOUNCING && !link->drop
			   : may_tell(link, (unsigned)gpu, 0)) {
		if (gpu >= 0)
			memcpy(packet->body, &link->gpus[gpu].wire, sizeof(uint32_t));
		append_one_way(link, packet);
		packet = NULL;
	}
	gksm_mutex_unlock(&link->lock);
	free(packet);
	link_wake(link);
}

void link_tell_seal(struct gksm_link *link, unsigned gpu, uint64_t segment_id)
{
	struct gksm_segment_ref head = {.segment_id = segment_id};

	link_tell_head(link, GKSM_SEGMENT_SEAL, (int)gpu, &head, sizeof(head));
}

void gksm_link_lease_drop(struct gksm_link *link, unsigned gpu, const uint64_t *tokens,
			  size_t count)
{
	link_tell(link, GKSM_LEASE_DROP, gpu, 0, tokens, count, 0);
}

void gksm_link_segment_seal(struct gksm_link *link, unsigned gpu, uint64_t segment_id)
{
	link_tell_seal(link, gpu, segment_id);
}

void gksm_link_attached(struct gksm_link *link, unsigned gpu, const uint64_t *page_ids,
			size_t count)
{
	link_tell(link, GKSM_ATTACHED, gpu, 0, page_ids, count, 0);
}

void gksm_link_detached(struct gksm_link *link, unsigned gpu, enum gksm_detach_reason reason,
			const uint64_t *page_ids, size_t count)
{
	link_tell(link, GKSM_DETACHED, gpu, reason, page_ids, count, 0);
}

void gksm_link_usage(struct gksm_link *link, unsigned gpu, const struct gksm_usage *usage)
{
	bool wake;

	if (!link || gpu >= LINK_GPUS)
		return;
	gksm_mutex_lock(&link->lock);
	link->gpus[gpu].usage = *usage;
	link->gpus[gpu].usage_known = true;
	wake = !link->gpus[gpu].usage_dirty;
	link->gpus[gpu].usage_dirty = true;
	gksm_mutex_unlock(&link->lock);
	if (wake)
		link_wake(link);
}

void gksm_link_report(struct gksm_link *link, enum gksm_severity severity, const char *text)
{
	struct link_report *report;
	struct timespec now;
	size_t bytes = strlen(text);

	if (!link)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gksm_mutex_lock(&link->lock);
	if (link->ring_written - link->ring_sent == LINK_RING) {
		link->ring_sent++;
		link->ring_dropped++;
	}
	report = &link->ring[link->ring_written++ % LINK_RING];
	report->severity = severity;
	report->bytes = (uint32_t)(bytes < LINK_REPORT_BYTES ? bytes : LINK_REPORT_BYTES);
	report->time_ns = (uint64_t)now.tv_sec * 1000 * LINK_MS + (uint64_t)now.tv_nsec;
	memcpy(report->text, text, report->bytes);
	gksm_mutex_unlock(&link->lock);
	link_wake(link);
}

static struct gksm_packet *usage_packet(struct gksm_link *link, struct link_gpu *gpu)
{
	struct gksm_usage usage;

	gksm_mutex_lock(&link->lock);
	usage = gpu->usage;
	usage.gpu = gpu->wire;
	gpu->usage_dirty = false;
	gksm_mutex_unlock(&link->lock);
	return gksm_packet_new(GKSM_USAGE, &usage, sizeof(usage), 0, 0);
}

/* The oldest report that was not sent. */
static struct gksm_packet *report_packet(struct gksm_link *link)
{
	struct gksm_report head = {0};
	struct link_report report;
	struct gksm_packet *packet;

	gksm_mutex_lock(&link->lock);
	report = link->ring[link->ring_sent++ % LINK_RING];
	head.dropped = link->ring_dropped;
	link->ring_dropped = 0;
	gksm_mutex_unlock(&link->lock);

	head.severity = report.severity;
	head.time_ns = report.time_ns;
	packet = gksm_packet_new(GKSM_REPORT, &head, sizeof(head), 1, report.bytes);
	if (packet && report.bytes)
		memcpy(gksm_packet_entry(packet, 0), report.text, report.bytes);
	return packet;
}

static uint64_t earlier(uint64_t left, uint64_t right)
{
	return left < right ? left : right;
}

static uint64_t usage_due(struct gksm_link *link, uint64_t now_ns)
{
	struct link_gpu *due[LINK_GPUS];
	size_t count = 0;
	uint64_t next = UINT64_MAX;

	gksm_mutex_lock(&link->lock);
	for (struct link_gpu *gpu = link->gpus; gpu < link->gpus + LINK_GPUS; gpu++) {
		uint64_t when = gpu->usage_sent_ns + LINK_USAGE_NS;

		if (!gpu->usage_dirty || !gpu->open)
			continue;
		if (now_ns < when) {
			next = earlier(next, when);
			continue;
		}
		gpu->usage_sent_ns = now_ns;
		due[count++] = gpu;
	}
	gksm_mutex_unlock(&link->lock);

	for (size_t i = 0; i < count; i++) {
		struct gksm_packet *packet = usage_packet(link, due[i]);

		if (packet)
			link_queue_append(&link->own, packet);
	}
	return next;
}

static uint64_t reports_due(struct gksm_link *link, uint64_t now_ns)
{
	struct gksm_packet *packet;
	bool pending;

	gksm_mutex_lock(&link->lock);
	pending = link->ring_sent != link->ring_written;
	gksm_mutex_unlock(&link->lock);
	if (!pending)
		return UINT64_MAX;
	if (now_ns >= link->report_ns) {
		link->report_ns = now_ns + 1000 * LINK_MS / LINK_REPORTS_PER_S;
		packet = report_packet(link);
		if (packet)
			link_queue_append(&link->own, packet);
	}
	return link->report_ns;
}

uint64_t link_queue_due(struct gksm_link *link, uint64_t now_ns)
{
	uint64_t next = usage_due(link, now_ns);

	return earlier(next, reports_due(link, now_ns));
}
