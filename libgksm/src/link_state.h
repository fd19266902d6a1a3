/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the daemon link.
 *
 * One lock guards everything below "under the lock". It is held for short copies
 * only: never over a system call (but for a futex wake), a callback or free(), so
 * that the COW thread may take it while the GPU stands still. Descriptors are closed
 * outside it too: the last close of a driver's fd takes the driver's locks.
 *
 * The link thread alone touches the socket. Its states:
 *
 *   DOWN        no socket; pausing before the next attempt
 *   GREETING    HELLO is sent, WELCOME awaited
 *   OPENING     GPU_OPENs are sent, their answers awaited
 *   ANNOUNCING  the pages mapped are being told; one-way messages queue already, and
 *               go out behind the announcement: a page left meanwhile is first
 *               announced and then detached, whichever the thread saw first
 *   UP          requests are taken
 *
 * Two queues: `own` for what the link thread says while it comes up, `queue` for
 * everybody's messages in the order they were given. The second one is sent in UP
 * only. Whenever the two sides may no longer agree (the queue overflows, a reply
 * makes no sense, nothing is heard for long) the connection is dropped: gksmd
 * forgets its grants and leases, and the announcement after the reconnect restores the truth.
 */
#ifndef GKSM_LINK_STATE_H
#define GKSM_LINK_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "link.h"
#include "packet.h"
#include "sync.h"

#define LINK_GPUS 64
#define LINK_LOST 256 /* requests given up whose replies may still come */
#define LINK_RING 64  /* reports kept */
#define LINK_REPORT_BYTES 512
#define LINK_REPORTS_PER_S 32
#define LINK_QUEUE_BYTES (4u << 20) /* one-way messages that wait for a slow daemon */

#define LINK_MS 1000000ull
#define LINK_REQUEST_NS (5000 * LINK_MS) /* for a reply */
#define LINK_SILENCE_NS (2000 * LINK_MS) /* then, without a sign of life: reconnect */
#define LINK_STATE_NS (5000 * LINK_MS)	 /* for each step of coming up */
#define LINK_LOOK_NS (2000 * LINK_MS)	 /* a sleep ends, to see whether the fds are still ours */
#define LINK_USAGE_NS (100 * LINK_MS)
#define LINK_PAUSE_MIN_NS (100 * LINK_MS)
#define LINK_PAUSE_MAX_NS (5000 * LINK_MS)

enum link_state { LINK_DOWN, LINK_GREETING, LINK_OPENING, LINK_ANNOUNCING, LINK_UP };

/* A request and whoever waits for it; lives on the caller's stack. */
struct gksm_request {
	struct gksm_request *next;
	struct gksm_packet *packet; /* while it is queued */
	uint32_t seq;
	uint16_t type; /* of the request */
	uint16_t reply_type;
	unsigned gpu;
	_Atomic uint32_t done; /* futex */
	int status;
	size_t count; /* entries that must be answered */
	size_t answered;
	/* where the answer goes; those the type has no use for are NULL */
	struct gksm_lookup_reply *replies;
	struct gksm_publish_result *results;
	struct gksm_segment *segment;
	struct gksm_gpu_opened *opened;
	uint64_t *freed;
	struct gksm_committed *committed;
	int fd; /* of a segment; -1 */
	uint64_t connection;
	bool no_gpu; /* it is about none: its head does not begin with a GPU's number */
	struct gksm_ipc_opened *ipc;
	int *ipc_fds; /* room for GKSM_FDS_MAX */
	size_t ipc_fd_count;
};

#define LINK_UNANSWERED UINT32_MAX /* outcome of a reply that has not come */

struct link_lost {
	uint32_t seq; /* 0: free */
	uint16_t type;
	unsigned gpu;
};

struct link_queue {
	struct gksm_packet *first;
	struct gksm_packet *last;
};

struct link_gpu {
	bool known; /* opened by the caller at some time */
	bool asked; /* GPU_OPEN is sent on this connection */
	bool open;  /* and was granted, as number `wire` */
	uint32_t wire;
	uint32_t open_seq; /* GPU_OPEN that nobody waits for; 0: none */
	struct gksm_gpu_open request;
	bool usage_known;
	bool usage_dirty;
	uint64_t usage_sent_ns;
	struct gksm_usage usage;
};

struct link_report {
	uint32_t severity;
	uint32_t bytes;
	uint64_t time_ns;
	char text[LINK_REPORT_BYTES];
};

struct gksm_link {
	const struct gksm_link_events *events;
	void *user;
	struct gksm_hello hello;
	char path[108];
	_Atomic int wake_fd;
	_Atomic uint32_t wake_pending;
	_Atomic uint32_t attempts;   /* futex: ended one way or the other; for wait() */
	_Atomic uint64_t heard_ns;   /* when the last packet came */
	_Atomic uint64_t stalled_ns; /* since when a request has gone unanswered; 0: none */

	struct gksm_mutex lock;
	/* under the lock; `state` is also read without it */
	_Atomic uint32_t state;
	uint64_t connection; /* counts them, from 1 */
	bool drop;	     /* whoever sets it wants the connection dropped */
	bool welcomed;	     /* ever */
	bool refused;	     /* the last attempt to connect failed */
	struct gksm_welcome welcome;
	uint32_t seq;
	struct link_queue queue;
	size_t queue_bytes;	     /* of one-way messages in it */
	struct gksm_packet *sending; /* out of reach of a caller that gives up */
	struct gksm_request *requests;
	struct link_lost lost[LINK_LOST];
	unsigned lost_count;
	struct link_gpu gpus[LINK_GPUS];
	struct link_report ring[LINK_RING];
	uint64_t ring_written;
	uint64_t ring_sent;
	uint32_t ring_dropped;

	/* the link thread's own */
	int socket;
	bool robbed; /* the application has closed the socket: the number is not ours */
	bool was_up;
	bool blocked;	   /* the socket is full */
	uint64_t retry_ns; /* the kernel is short of something: not before */
	uint64_t pause_ns;
	uint64_t up_since_ns;
	uint64_t deadline_ns; /* of the state */
	uint64_t report_ns;   /* when the next report may go */
	uint32_t hello_seq;
	uint32_t announce_first; /* seqs of this connection's announcement */
	uint32_t announce_count;
	unsigned announce_gpu;
	struct gksm_page_entry *mapped; /* what is to be announced of announce_gpu */
	size_t mapped_count;
	size_t mapped_sent;
	struct link_queue own;
	struct gksm_received received;
	char turned_away[128]; /* why, the last time; empty once it was served */
};

/* link_queue.c */
void link_queue_append(struct link_queue *queue, struct gksm_packet *packet);
bool link_queue_remove(struct link_queue *queue, struct gksm_packet *packet);
struct gksm_packet *link_queue_take_all(struct link_queue *queue);
void link_packets_free(struct gksm_packet *packets);
size_t link_packet_cost(const struct gksm_packet *packet); /* against LINK_QUEUE_BYTES */
uint32_t link_next_seq(struct gksm_link *link);		   /* under the lock */
void link_wake(struct gksm_link *link);

/* Appends pages or lease tokens to the queue as one-way messages of the type. Any
 * thread. connection not 0: only if it is still that one. */
void link_tell(struct gksm_link *link, enum gksm_message type, unsigned gpu, uint32_t reason,
	       const uint64_t *ids, size_t count, uint64_t connection);
/* The same for a head of any kind. gpu negative: it is about none. */
void link_tell_head(struct gksm_link *link, enum gksm_message type, int gpu, const void *head,
		    size_t bytes);
void link_tell_seal(struct gksm_link *link, unsigned gpu, uint64_t segment_id);

/* Moves usage and reports that are due into the queue; when the next one will be. */
uint64_t link_queue_due(struct gksm_link *link, uint64_t now_ns);

/* link_reply.c: one received packet. 0, or -EPROTO or -ECONNREFUSED: drop the connection. */
int link_dispatch(struct gksm_link *link, struct gksm_received *received);

/* link_request.c */ /* Ends the request; under the lock. The request is gone right after. */
void link_request_done(struct gksm_link *link, struct gksm_request *request, int status);
/*
 * Sends the packet, which is the link's from here on, and waits. The head's first
 * word becomes the gpu's number on the wire, but for requests about no GPU and GPU_OPEN,
 * which asks for one. Returns the reply's status, -ENOTCONN, -ETIMEDOUT or -ENOMEM (packet
 * is NULL).
 */
int link_ask(struct gksm_link *link, struct gksm_request *request, struct gksm_packet *packet,
	     uint64_t timeout_ns);
struct gksm_packet *link_gpu_open_packet(const struct gksm_gpu_open *open);

/* link_announce.c: queues the next packet of the announcement among the thread's own.
 * 1, 0 at its end, -ENOMEM. */
int link_announce(struct gksm_link *link);
void link_announce_reset(struct gksm_link *link);

/* link_thread.c */
void *link_thread(void *argument);

#endif
