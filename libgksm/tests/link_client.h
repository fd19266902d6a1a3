/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_client's commands, and what they share.
 */
#ifndef GKSM_LINK_CLIENT_H
#define GKSM_LINK_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "link.h"
#include "sync.h"

#define PAGES_MAX 4096
#define EVENTS_MAX 65536

struct client {
	struct gksm_link *link;
	struct gksm_mutex lock; /* of what the callbacks share with the commands */
	char events[EVENTS_MAX];
	size_t event_bytes;
	struct gksm_page_entry mapped[2][PAGES_MAX]; /* by gpu: what announce tells */
	size_t mapped_count[2];
	uint64_t leaving;     /* a page that is left right after it was announced; 0: none */
	_Atomic bool jumping; /* the wall clock */
};

extern struct client client;

/* The next word of the command; 0: there is none. */
unsigned long number(void);
/* All that are left. */
size_t numbers(uint64_t *into, size_t capacity);

void do_wait(void);
void do_up(void);
void do_events(void);
void do_open(void);
void do_commit(void);
void do_ipc_export(void);
void do_ipc_open(void);
void do_ipc_pages(void);
void do_ipc_drop(void);
void do_held(void);
void do_reclaim(void);
void do_lookup(void);
void do_tickets(void);
void do_publish(void);
void do_publish_leased(void);
void do_publish_bad(void);
void do_attached(void);
void do_detached(void);
void do_storm(void);
void do_drop(void);
void do_segment(void);
void do_segment_open(void);
void do_seal(void);
void do_usage(void);
void do_report(void);
void do_hammer(void);

#endif
