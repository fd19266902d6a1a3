/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to gksmd. One thread owns the socket: it connects, says HELLO,
 * receives, and after a loss reconnects with growing pauses (100 ms to 5 s), opens
 * the GPUs anew and announces the pages that are still mapped. Any thread may send;
 * a request waits for its replies on a futex.
 *
 * Every function is bounded in time and returns a negative errno when gksmd is not
 * there or does not answer in time: -ENOTCONN, -ETIMEDOUT, -EPROTO. Nothing is
 * ever sent twice, and a reply that comes after its timeout is taken apart (its fds
 * closed, its grants given back) by the link thread. No call blocks on a full
 * socket: one-way messages queue (bounded; the oldest USAGE is replaced).
 */
#ifndef GKSM_LINK_H
#define GKSM_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gksm/protocol.h"

struct gksm;
struct gksm_link;

/* Called on the link thread. None may block or send requests. */
struct gksm_link_events {
	/* connected (or back): WELCOME is in, GPUs of before are open again */
	void (*up)(void *user, const struct gksm_welcome *welcome);
	void (*down)(void *user);
	void (*control)(void *user, const struct gksm_control *control);
	/* the reply to a GPU_OPEN made again after a reconnect */
	void (*gpu_opened)(void *user, unsigned gpu, const struct gksm_gpu_opened *opened);
	void (*scan_terms)(void *user, unsigned gpu, const struct gksm_scan_terms *terms);
	/* fill entries[0..capacity) with the pages mapped on the GPU from *cursor on;
	 * returns how many, 0 at the end. One entry an address will do: those of one
	 * page are added up */
	size_t (*announce)(void *user, unsigned gpu, size_t *cursor,
			   struct gksm_page_entry *entries, size_t capacity);
};

/* Starts the link thread; does not wait for the daemon. NULL: no memory. */
struct gksm_link *gksm_link_start(const char *socket_path, const struct gksm_hello *hello,
				  const struct gksm_link_events *events, void *user);

/* Waits for the first WELCOME. 0 or -ETIMEDOUT / -ENOTCONN (there is no socket). */
int gksm_link_wait(struct gksm_link *link, int timeout_ms, struct gksm_welcome *welcome);

bool gksm_link_is_up(const struct gksm_link *link);

/* gpu: the caller's own small index (0 ..). The request is remembered and made
 * again after a reconnect. */
int gksm_link_gpu_open(struct gksm_link *link, unsigned gpu, const struct gksm_gpu_open *open,
		       struct gksm_gpu_opened *opened);

int gksm_link_commit(struct gksm_link *link, unsigned gpu, uint64_t pages, uint64_t free_bytes);
void gksm_link_usage(struct gksm_link *link, unsigned gpu, const struct gksm_usage *usage);

/* A result with its descriptor: fd is >= 0 for a HIT and belongs to the caller. */
struct gksm_lookup_reply {
	struct gksm_lookup_result result;
	int fd;
};

/* count <= GKSM_BATCH_MAX. replies[i] answers hashes[i]. */
int gksm_link_lookup(struct gksm_link *link, unsigned gpu, enum gksm_kind kind,
		     const struct gksm_hash128 *hashes, size_t count,
		     struct gksm_lookup_reply *replies);

/* The same for stable pages. Pages that were NOTED are mentioned in CONTROL later. */
int gksm_link_offer(struct gksm_link *link, unsigned gpu, enum gksm_kind kind,
		    const struct gksm_offer_entry *entries, size_t count,
		    struct gksm_lookup_reply *replies);

/* replies[i] answers tickets[i]; EXPIRED for those not resolved in time. */
int gksm_link_wait_tickets(struct gksm_link *link, unsigned gpu, const uint64_t *tickets,
			   size_t count, unsigned timeout_ms, struct gksm_lookup_reply *replies);

/* fds[i] goes with entries[i]; they stay the caller's to close. count any size:
 * split into packets here. Negative: no page has an answer. Else results[i].status is
 * gksmd's word, or -ENOTCONN or -ETIMEDOUT: no answer for this one. A page without
 * answer may have reached gksmd and others all the same; it has no page_id and counts
 * as not mapped by us. */
int gksm_link_publish(struct gksm_link *link, unsigned gpu, enum gksm_kind kind,
		      const struct gksm_publish_entry *entries, const int *fds, size_t count,
		      struct gksm_publish_result *results);

void gksm_link_lease_drop(struct gksm_link *link, unsigned gpu, const uint64_t *tokens,
			  size_t count);

/* *fd belongs to the caller. */
int gksm_link_segment_get(struct gksm_link *link, unsigned gpu, unsigned pages,
			  struct gksm_segment *segment, int *fd);
void gksm_link_segment_seal(struct gksm_link *link, unsigned gpu, uint64_t segment_id);
int gksm_link_segment_open(struct gksm_link *link, unsigned gpu, uint64_t segment_id,
			   struct gksm_segment *segment, int *fd);

void gksm_link_attached(struct gksm_link *link, unsigned gpu, const uint64_t *page_ids,
			size_t count);
void gksm_link_detached(struct gksm_link *link, unsigned gpu, enum gksm_detach_reason reason,
			const uint64_t *page_ids, size_t count);

/* Rate-limited (32 a second); text is cut at 512 bytes. Also kept in a ring. */
void gksm_link_report(struct gksm_link *link, enum gksm_severity severity, const char *text);

#endif
