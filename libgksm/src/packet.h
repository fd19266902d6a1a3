/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of the protocol: made, taken apart, sent and received. Nothing here knows
 * what a message means.
 */
#ifndef GKSM_PACKET_H
#define GKSM_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "gksm/protocol.h"

struct gksm_request;

/* A packet on its way out. */
struct gksm_packet {
	struct gksm_packet *next;
	struct gksm_request *request; /* whose it is; NULL: one-way */
	const int *fds;		      /* the request's own, never ours to close */
	size_t capacity;	      /* entries there is room for */
	struct gksm_header header;    /* what follows goes out from here on */
	uint8_t body[];		      /* head, then entries */
};

/* Room for `capacity` entries of entry_bytes, all in use, all zero. head may be NULL
 * with head_bytes 0. NULL: no memory, or it would not fit a packet. free() it. */
struct gksm_packet *gksm_packet_new(enum gksm_message type, const void *head, size_t head_bytes,
				    size_t entry_bytes, size_t capacity);

void *gksm_packet_entry(struct gksm_packet *packet, size_t i);
size_t gksm_packet_bytes(const struct gksm_packet *packet);

/* Never blocks. 0, -EAGAIN (no room now), or another negative errno. */
int gksm_packet_send(int socket, const struct gksm_packet *packet);

#define GKSM_SCM_FDS 253 /* the most that the kernel passes in one message */

/* The last packet received. Its fds belong to it until they are taken. */
struct gksm_received {
	struct gksm_header header;
	const uint8_t *head;
	const uint8_t *entries;
	bool fds_lost; /* our fd table was full: the fds from fd_count on are missing */
	unsigned fd_count;
	int fds[GKSM_SCM_FDS]; /* -1: taken */
	_Alignas(8) uint8_t bytes[GKSM_PACKET_MAX];
};

/*
 * Never blocks. 0, -EAGAIN (nothing there), -ENOTCONN (the peer is gone), -EPROTO (not
 * a packet of this protocol; its fds are closed), -EBADF or -ENOTSOCK (the application
 * has closed our socket).
 */
int gksm_packet_receive(int socket, struct gksm_received *received);

/* Copies head or entry i into a struct of this build: what an older peer lacks is
 * zero, what a newer one has on top is skipped. */
void gksm_received_head(const struct gksm_received *received, void *into, size_t bytes);
void gksm_received_entry(const struct gksm_received *received, size_t i, void *into, size_t bytes);

/* The fd that comes next among those not taken; -1: there is none. */
int gksm_received_take_fd(struct gksm_received *received);
void gksm_received_close_fds(struct gksm_received *received);

#endif
