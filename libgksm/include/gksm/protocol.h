/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format between libgksm and gksmd, and between gksmd and gksm-vault.
 *
 * This is the only place where it is written down. C includes it; the daemon
 * preprocesses it at build time and hands it to cffi, so both sides read the
 * same structs.
 *
 * Transport: AF_UNIX, SOCK_SEQPACKET. One message is one packet of at most
 * GKSM_PACKET_MAX bytes:
 *
 *     struct gksm_header | head (head_bytes) | entry_count x entry (entry_bytes)
 *
 * plus fd_count descriptors in one SCM_RIGHTS message (at most GKSM_FDS_MAX;
 * the kernel's own limit is 253). Which structs head and entry are is said
 * beside each message type.
 *
 * Versions: fields are only ever appended. A receiver zero-fills what a shorter
 * (older) struct lacks and skips what a longer (newer) one has on top; a struct
 * shorter than the one of GKSM_PROTOCOL_MIN is a protocol error. HELLO and
 * WELCOME agree on a version and on feature bits.
 *
 * Replies carry the seq of their request. seq 0 marks a message that answers
 * nothing. A request whose reply needs several packets gets them in order, all
 * but the last with GKSM_FLAG_MORE. One-way messages have no reply.
 *
 * All integers are host byte order: both ends share a kernel. Times are
 * milliseconds, sizes bytes, pages 2 MiB, unless a name says otherwise.
 * A protocol error closes the connection; it never harms another one.
 */
#ifndef GKSM_PROTOCOL_H
#define GKSM_PROTOCOL_H

#include <stdint.h>

#define GKSM_MAGIC 0x4d534b47u /* "GKSM" */
#define GKSM_PROTOCOL_MIN 1
#define GKSM_PROTOCOL_MAX 1
#define GKSM_PACKET_MAX 65536
#define GKSM_FDS_MAX 240
#define GKSM_PAGE_SIZE 2097152u
#define GKSM_BATCH_MAX 512	  /* entries in one LOOKUP or ANNOUNCE */
#define GKSM_SEGMENT_PAGES_MAX 32 /* 64 MiB of host copies */

#define GKSM_FLAG_MORE 1u

/* Feature bits of HELLO and WELCOME. */
#define GKSM_FEATURE_HOST_COPIES 1u
#define GKSM_FEATURE_COMMIT 2u
#define GKSM_FEATURE_RECLAIM 4u /* RECLAIM, and CONTROL for one GPU */
#define GKSM_FEATURE_SCAN 8u
#define GKSM_FEATURE_IPC 256u /* the IPC messages */

struct gksm_header {
	uint32_t magic;
	uint16_t type;	/* enum gksm_message */
	uint16_t flags; /* GKSM_FLAG_* */
	uint32_t seq;
	int32_t status; /* replies: 0 or a negative errno */
	uint32_t head_bytes;
	uint32_t entry_bytes;
	uint32_t entry_count;
	uint32_t fd_count;
};

enum gksm_message {
	/* type                        direction  head, entry -> reply */
	GKSM_HELLO = 1,		/* c->d  hello -> WELCOME */
	GKSM_WELCOME = 2,	/* d->c  welcome */
	GKSM_GPU_OPEN = 3,	/* c->d  gpu_open -> GPU_OPENED */
	GKSM_GPU_OPENED = 4,	/* d->c  gpu_opened */
	GKSM_COMMIT = 5,	/* c->d  commit -> COMMITTED */
	GKSM_COMMITTED = 6,	/* d->c  committed; -ENOMEM: the promise cannot be kept */
	GKSM_USAGE = 7,		/* c->d  usage; one-way */
	GKSM_LOOKUP = 8,	/* c->d  lookup, lookup_entry -> LOOKED_UP (1 or more packets) */
	GKSM_LOOKED_UP = 9,	/* d->c  -, lookup_result; fds in the order of the hits */
	GKSM_WAIT = 10,		/* c->d  wait, wait_entry -> LOOKED_UP (as tickets resolve) */
	GKSM_PUBLISH = 11,	/* c->d  publish, publish_entry; one fd an entry -> PUBLISHED */
	GKSM_PUBLISHED = 12,	/* d->c  -, publish_result */
	GKSM_LEASE_DROP = 13,	/* c->d  gpu_ref, lease_entry; one-way */
	GKSM_SEGMENT_GET = 14,	/* c->d  segment_get -> SEGMENT (one fd, writable) */
	GKSM_SEGMENT_SEAL = 15, /* c->d  segment_ref; one-way: no writable mapping is left */
	GKSM_SEGMENT_OPEN = 16, /* c->d  segment_ref -> SEGMENT (one fd, sealed) */
	GKSM_SEGMENT = 17,	/* d->c  segment */
	GKSM_ATTACHED = 18,	/* c->d  gpu_ref, page_entry; one-way: grants become mappings */
	GKSM_DETACHED = 19,	/* c->d  gpu_ref, page_entry; one-way: mapping or grant given up */
	GKSM_ANNOUNCE = 20,	/* c->d  gpu_ref, page_entry -> ANNOUNCED */
	GKSM_ANNOUNCED = 21,	/* d->c  -, announce_result */
	GKSM_REPORT = 22,	/* c->d  report, text bytes (entry_bytes 1); one-way */
	GKSM_CONTROL = 23,	/* d->c  control; seq 0 */
	GKSM_RECLAIM = 24,	/* c->d  reclaim -> RECLAIMED */
	GKSM_RECLAIMED = 25,	/* d->c  reclaimed */
	GKSM_OFFER = 26,	/* c->d  offer, offer_entry -> LOOKED_UP: stable pages */
	GKSM_SCAN_TERMS = 27,	/* d->c  scan_terms; seq 0: after GPU_OPENED and at each change */

	/*
	 * Legacy IPC: memory of one process, mapped read-write by another of its domain
	 * (or, of those that no rule names, of its user). gksmd keeps no descriptors of it: on an
	 * OPEN it asks the exporter, and passes on what that answers. A part at a time, so that
	 * nobody's descriptor table fills up.
	 */
	GKSM_IPC_EXPORT = 30,	/* c->d  ipc_export -> IPC_EXPORTED; again after a reconnect */
	GKSM_IPC_EXPORTED = 31, /* d->c  status 0, -EDQUOT, or -EEXIST: another's ticket */
	GKSM_IPC_DROP = 32,	/* c->d  ipc_ref; one-way: the memory is freed */
	GKSM_IPC_OPEN = 33,	/* c->d  ipc_open -> IPC_OPENED */
	GKSM_IPC_OPENED = 34, /* d->c  ipc_opened; an fd a page from first_page on, at least one */
	GKSM_IPC_WANTED = 35, /* d->c  ipc_wanted; seq 0 */
	GKSM_IPC_PAGES = 36,  /* c->d  ipc_pages; `count` fds, one a page -> IPC_TAKEN */
	GKSM_IPC_TAKEN = 37,  /* d->c  status 0, or -ENOENT: nobody waits for it any more */

	/* gksmd <-> gksm-vault. Head of requests: vault_ref. */
	GKSM_VAULT_PUT = 64, /* vault_item entries; one fd each -> VAULT_OK */
	GKSM_VAULT_GET =
		65, /* vault_key entries -> VAULT_FDS (fds in order; missing: status -ENOENT) */
	GKSM_VAULT_DROP = 66, /* vault_key entries -> VAULT_OK */
	GKSM_VAULT_LIST = 67, /* - -> VAULT_ITEMS (1 or more packets, no fds) */
	GKSM_VAULT_OK = 68,
	GKSM_VAULT_FDS = 69,  /* -, vault_key */
	GKSM_VAULT_ITEMS = 70 /* -, vault_item */
};

/* What a process may be asked to hold its mappings safe with (DESIGN.md 6). */
enum gksm_guard {
	GKSM_GUARD_OFF = 0,
	GKSM_GUARD_SEAL = 1,
	GKSM_GUARD_OPTIMISTIC = 2,
	GKSM_GUARD_FAULT = 3
};

enum gksm_kind { GKSM_KIND_WEIGHTS = 0, GKSM_KIND_KV = 1, GKSM_KIND_OTHER = 2 };

struct gksm_hash128 { /* XXH3-128 of the page, seed 0 */
	uint64_t low;
	uint64_t high;
};

struct gksm_hello {
	uint32_t protocol_min;
	uint32_t protocol_max;
	uint64_t features;
	uint64_t guards; /* bit (1 << enum gksm_guard) for each guard this process could use */
	char build_id[64];
	char framework[32]; /* "python", "vllm", ...: a hint for people, never for decisions */
};

struct gksm_welcome {
	uint32_t protocol;
	uint32_t sharing; /* 0: told to stay private; why is in reason */
	uint64_t features;
	uint64_t instance_id;  /* fresh for each connection */
	uint64_t daemon_epoch; /* changes when gksmd restarts */
	char domain[64];
	char reason[128];
};

struct gksm_gpu_open {
	uint8_t uuid[16]; /* of the GPU or MIG instance */
	uint64_t total_bytes;
	uint64_t arena_base;
	uint64_t arena_pages;
	char name[96];
};

struct gksm_gpu_opened {
	uint32_t gpu;	/* number this connection uses for the GPU from now on */
	uint32_t guard; /* enum gksm_guard: the one to use */
	uint32_t hold_deadline_ms;
	uint32_t stall_budget_ms; /* in any second */
	uint32_t load_wait_ms;	  /* how long one load may wait for other loaders */
	uint32_t order_wait_ms;	  /* how long a load waits for the work before it */
	uint32_t drain_ms;	  /* bound of a launch-gate drain */
	uint32_t spare_pages;	  /* prepared private pages to keep at most */
	uint64_t kinds;		  /* bit (1 << enum gksm_kind) that the domain shares */
};

struct gksm_gpu_ref {
	uint32_t gpu;
	uint32_t reason; /* DETACHED: enum gksm_detach_reason */
};

enum gksm_detach_reason {
	GKSM_DETACH_FREE = 0,
	GKSM_DETACH_COW = 1,	   /* a kernel wrote */
	GKSM_DETACH_API_WRITE = 2, /* a copy, set or graph node writes */
	GKSM_DETACH_UNSHARE = 3,   /* told to by CONTROL, or pinned */
	GKSM_DETACH_DECLINED = 4,  /* a grant not used: bytes differ or the page changed */
	GKSM_DETACH_LOST = 5	   /* the context died */
};

/*
 * The bytes of unbacked pages are promised, not taken. free_bytes is what the
 * driver reports to the caller now. No other instance's promise is judged by it, so a lie
 * over-promises the liar alone; that memory is short may be concluded from it.
 */
struct gksm_commit {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t pages; /* to promise on top of what is promised already */
	uint64_t free_bytes;
	uint64_t used_bytes; /* private and spare pages and foreign memory, as the next USAGE will
				say */
};

/* With pages 0 in COMMIT this is all that is asked for. A gksmd that does not know it
 * leaves it out. */
struct gksm_committed {
	uint64_t held_bytes; /* of free_bytes: promised to others, or reserved for copies on write
			      */
	uint64_t warm_bytes; /* not free, but given up for who needs it, and promised to nobody */
};

/*
 * An allocation has failed for want of memory: is there any that nobody maps? Answered
 * when it is free, or with less than was asked for when no more can be had in time.
 */
struct gksm_reclaim {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t bytes;
};

struct gksm_reclaimed {
	uint64_t bytes;
};

/* Absolute counts of the instance on one GPU: sent after changes, at most every 100 ms. */
struct gksm_usage {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t virtual_pages;
	uint64_t unbacked_pages; /* promised */
	uint64_t private_pages;
	uint64_t shared_pages;
	uint64_t spare_pages;
	uint64_t foreign_bytes; /* handed out by the driver untouched */
	uint64_t cow_events;	/* held faults answered with a private copy, since start */
	uint64_t cow_ns_total;	/* from the fault held to the answer */
	uint64_t cow_ns_max;
	uint64_t api_detaches;
	uint64_t first_touches;	 /* unbacked pages backed by a fault */
	uint64_t loaded_pages;	 /* filled from the host */
	uint64_t attached_pages; /* loads that moved nothing */
	uint64_t unshared[16];	 /* pages not shared, by enum gksm_unshared */
	/* What the scanner does; the names with a KSM counterpart mean what KSM means. */
	uint64_t zero_pages;	 /* of the shared ones: known to be all zeros */
	uint64_t full_scans;	 /* since start, like all that follows but the next two */
	uint64_t stable_pages;	 /* now: private, unchanged for long enough, no look-alike known */
	uint64_t volatile_pages; /* now: private, changed between the last two looks */
	uint64_t scanned_pages;
	uint64_t merged_pages;
	uint64_t dropped_merges; /* written to meanwhile, or different after all */
	uint64_t churned_merges; /* written to soon after they were merged */
	uint64_t scan_ns_total;	 /* spent looking and merging */
	uint32_t scan_pass;	 /* of scan_terms: the last one that was finished */
	uint32_t reserved2;
};

/* Why a page is private: what `gksmctl explain` prints. Index of usage.unshared. */
enum gksm_unshared {
	GKSM_UNSHARED_KERNEL = 0,    /* first touched or written by a kernel */
	GKSM_UNSHARED_API = 1,	     /* written by a copy, set or graph node */
	GKSM_UNSHARED_PARTIAL = 2,   /* never completely filled from the host */
	GKSM_UNSHARED_ORDER = 3,     /* work before the load did not finish in time */
	GKSM_UNSHARED_REFUSED = 4,   /* gksmd said no: off, quota, or kind not shared */
	GKSM_UNSHARED_DAEMON = 5,    /* gksmd was not reachable */
	GKSM_UNSHARED_PINNED = 6,    /* handed out of the process, or part of a graph */
	GKSM_UNSHARED_COLLISION = 7, /* same hash, other bytes */
	GKSM_UNSHARED_PRESSURE = 8   /* memory was short: taken before it was used */
};

struct gksm_lookup {
	uint32_t gpu;
	uint32_t kind; /* enum gksm_kind */
};

struct gksm_lookup_entry {
	struct gksm_hash128 hash;
};

enum gksm_lookup_outcome {
	GKSM_LOOKUP_HIT = 0,	 /* page_id, an fd, maybe a host copy; a grant is outstanding */
	GKSM_LOOKUP_LEASE = 1,	 /* caller is the loader: token, deadline_ms */
	GKSM_LOOKUP_PENDING = 2, /* somebody else is: token is a ticket for WAIT */
	GKSM_LOOKUP_REFUSED = 3, /* stay private: reason is an enum gksm_unshared */
	GKSM_LOOKUP_EXPIRED = 4, /* WAIT only: timeout_ms passed */
	GKSM_LOOKUP_NOTED = 5	 /* OFFER only: nobody else has such a page; remembered */
};

struct gksm_lookup_result {
	uint32_t index;	  /* of the entry in LOOKUP or WAIT */
	uint32_t outcome; /* enum gksm_lookup_outcome */
	uint64_t page_id;
	uint64_t token;
	uint32_t deadline_ms;
	uint32_t reason;
	uint64_t segment_id;	 /* 0: no host copy */
	uint64_t segment_offset; /* bytes */
};

/*
 * Stable pages of the scanner. Like LOOKUP, with three differences: a page that nobody
 * else has is NOTED instead of leased; PENDING has no ticket (offer it again); and once
 * another process publishes a page that was NOTED, CONTROL_OFFER_AGAIN comes, or
 * SCAN_TERMS with a pass while passes are made on demand.
 */
struct gksm_offer {
	uint32_t gpu;
	uint32_t kind; /* enum gksm_kind */
};

#define GKSM_OFFER_TWIN 1u /* the caller has another page like it */

struct gksm_offer_entry {
	struct gksm_hash128 hash;
	uint32_t flags; /* GKSM_OFFER_* */
	uint32_t reserved;
};

/* How to look for stable pages on one GPU. Times of 0 mean the scanner's own defaults. */
struct gksm_scan_terms {
	uint32_t gpu;
	uint32_t run;		  /* 0: look only when `pass` asks for it */
	uint32_t interval_ms;	  /* between two passes, while they find something */
	uint32_t max_interval_ms; /* it doubles up to this while they do not */
	uint32_t stable_hashes;	  /* equal ones in a row that make a page stable */
	uint32_t max_percent;	  /* of the time that looking may take */
	uint32_t zero_pages;	  /* merge pages of zeros too */
	uint32_t pass;		  /* a new number: make one pass now; 0: none was asked for */
};

struct gksm_wait {
	uint32_t gpu;
	uint32_t timeout_ms;
};

struct gksm_wait_entry {
	uint64_t ticket;
};

struct gksm_publish {
	uint32_t gpu;
	uint32_t kind;
};

struct gksm_publish_entry {
	uint64_t token; /* of the lease */
	struct gksm_hash128 hash;
	uint64_t segment_id; /* 0: no host copy */
	uint64_t segment_offset;
};

struct gksm_publish_result {
	uint64_t page_id; /* 0 where status is not 0 */
	int32_t status;	  /* -ESTALE: the lease had lapsed; -EDQUOT: over a quota */
	uint32_t reserved;
};

struct gksm_lease_entry {
	uint64_t token;
};

struct gksm_segment_get {
	uint32_t gpu;
	uint32_t pages; /* 1 .. GKSM_SEGMENT_PAGES_MAX */
};

struct gksm_segment_ref {
	uint32_t gpu;
	uint32_t reserved;
	uint64_t segment_id;
};

struct gksm_segment {
	uint64_t segment_id;
	uint64_t bytes;
};

struct gksm_page_entry {
	uint64_t page_id;
	struct gksm_hash128 hash; /* ANNOUNCE; else 0 */
	uint32_t mappings; /* of this entry; a page mapped at several addresses may come in several
			      entries */
	uint32_t reserved;
};

struct gksm_announce_result {
	uint64_t page_id;
	int32_t status; /* 0, or -ENOENT: the vault no longer has it; nobody new can attach */
	uint32_t reserved;
};

enum gksm_severity { GKSM_DEBUG = 0, GKSM_INFO = 1, GKSM_WARNING = 2, GKSM_ERROR = 3 };

struct gksm_report {
	uint32_t severity;
	uint32_t dropped; /* records lost to rate limiting since the last one sent */
	uint64_t time_ns; /* CLOCK_REALTIME */
};

enum gksm_control_action {
	GKSM_CONTROL_PAUSE = 1, /* no new attaches or publications */
	GKSM_CONTROL_RESUME = 2,
	GKSM_CONTROL_UNSHARE = 3, /* PAUSE, and detach as far as memory allows */
	/* Of one GPU: no new attaches or publications, and no spare pages. Holds until the
	 * RESUME of that GPU or the next connection; gksmd then says it again. */
	GKSM_CONTROL_DRAIN = 4,
	/* level, pages, of one GPU; changes nothing about sharing */
	GKSM_CONTROL_PRESSURE = 5,
	GKSM_CONTROL_OFFER_AGAIN = 6 /* pages that were NOTED can be merged now */
};

enum gksm_pressure_level {
	GKSM_PRESSURE_NONE = 0, /* there is memory enough again */
	GKSM_PRESSURE_LOW = 1	/* keep as few spares as will do; back `pages` more of what was
				   promised while there is something to back them with */
};

struct gksm_control {
	uint32_t action; /* enum gksm_control_action */
	uint32_t gpu; /* its number + 1 (DRAIN, RESUME after it, PRESSURE); 0: all of the process */
	char reason[128];
	uint32_t level; /* PRESSURE: enum gksm_pressure_level */
	uint32_t reserved;
	uint64_t pages; /* PRESSURE: unbacked pages */
};

/* Whoever holds the ticket can ask for the memory, if gksmd lets it. */
struct gksm_ipc_ref {
	uint8_t ticket[16]; /* random, the exporter's choice */
};

struct gksm_ipc_export {
	uint32_t gpu;
	uint32_t reserved;
	uint8_t ticket[16];
	uint64_t pages;
	uint64_t bytes; /* as the program allocated */
};

struct gksm_ipc_open {
	uint8_t ticket[16];
	uint64_t first_page; /* of the allocation */
};

struct gksm_ipc_opened {
	uint8_t gpu_uuid[16];
	uint64_t pages; /* of the whole allocation */
	uint64_t bytes;
};

struct gksm_ipc_wanted {
	uint64_t request; /* to be named in the answer */
	uint8_t ticket[16];
	uint64_t first_page;
	uint32_t count; /* at most GKSM_FDS_MAX */
	uint32_t reserved;
};

struct gksm_ipc_pages {
	uint64_t request;
	int32_t status; /* not 0: no fds; -ESTALE: the memory is freed */
	uint32_t reserved;
};

enum gksm_vault_class { GKSM_VAULT_PAGE = 1, GKSM_VAULT_SEGMENT = 2 };

struct gksm_vault_ref {
	uint32_t reserved;
	uint32_t reserved2;
};

struct gksm_vault_key {
	uint32_t item_class; /* enum gksm_vault_class */
	uint32_t reserved;
	uint64_t id; /* page_id or segment_id */
};

struct gksm_vault_item {
	uint32_t item_class;
	uint32_t kind; /* enum gksm_kind */
	uint64_t id;
	char domain[64];
	uint8_t gpu_uuid[16];
	struct gksm_hash128 hash;
	uint64_t segment_id; /* of a page: its host copy, 0 if none */
	uint64_t segment_offset;
	uint64_t bytes;
};

#endif
