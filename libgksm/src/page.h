/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of the arena: their states, the events that move them, and who acts.
 *
 * Every 2 MiB page of an arena is in one state. The state is one atomic word; it
 * changes by compare-and-swap only, and a page in BUSY belongs to the thread that
 * put it there until that thread moves it on. BUSY lasts for a bounded number of
 * driver calls on the owner's side, none of which waits for a kernel, a lock of
 * another process, or the daemon.
 *
 *   state     mapping at the page's address            state byte of the guard
 *   FREE      none; not part of an allocation          PASS
 *   UNBACKED  none; its bytes are promised             HOLD_ALL
 *   FILLING   none; part of its bytes wait in a        HOLD_ALL
 *             staging page (assembly)
 *   LOADING   none; all its bytes are in a snapshot,   HOLD_ALL
 *             the daemon is being asked
 *   PRIVATE   own handle, read-write                   PASS
 *   RELOAD    own handle, read-write; LOADING for a    PASS
 *             page that was PRIVATE
 *   MERGING   own handle, read-only; the scanner       HOLD_WRITES
 *             compares it with its look-alike
 *   SHARED    published handle, read-only              HOLD_WRITES
 *   BUSY      changing                                 HOLD_ALL
 *   LOST      none; the context died or was destroyed  PASS
 *
 * The table. A cell names the state after the event and, behind a slash, who acts
 * when that is not the thread that caused the event; BUSY is passed through in
 * between wherever the mapping changes. "=" stays; "wait" waits (on a futex) until
 * the state changes and looks again; "-" cannot happen (the caller reports it and
 * leaves the page alone). The COW thread never waits: it keeps the fault and looks
 * again.
 *
 *                UNBACKED  FILLING   LOADING   PRIVATE   RELOAD    MERGING   SHARED    BUSY
 *   LOAD_PART    FILLING   FILLING   wait      =         wait      PRIVATE   PRIVATE   wait
 *   LOAD_FULL    LOADING   LOADING   wait      RELOAD    wait      PRIVATE   PRIVATE   wait
 *   PROTECT      =         =         =         MERGING   =         =         =         =
 *   COMMIT       -         -         SHARED    -         SHARED    SHARED    -         -
 *   ABANDON      -         -         PRIVATE   -         PRIVATE   PRIVATE   -         -
 *   FAULT        PRIVATE/c PRIVATE/c PRIVATE/c =/c       =/c       PRIVATE/c PRIVATE/c wait
 *   API_WRITE    PRIVATE   PRIVATE   wait      =         wait      PRIVATE   PRIVATE   wait
 *   COPY_READ    PRIVATE   PRIVATE   wait      =         =         =         =         wait
 *   LAUNCH       PRIVATE   PRIVATE   wait      =         =         =         =         wait
 *   SEAL         =         PRIVATE   wait      RELOAD    wait      =         =         wait
 *   UNSHARE      =         =         =         =         =         =         PRIVATE   wait
 *   RELEASE      FREE      FREE      wait      FREE      wait      FREE      FREE      wait
 *   LOSE         LOST      LOST      LOST      LOST      LOST      LOST      LOST      wait
 *
 * LOST stays under every event but RELEASE (FREE); FREE takes none.
 *
 * /c: the COW thread. Notes to single cells:
 *   LOAD_FULL on SHARED: the page is detached first, without copying, since every
 *     byte is about to be replaced; the load then finds it PRIVATE.
 *   FAULT on LOADING steals the page: it is backed with the snapshot. The loader's
 *     COMMIT finds it PRIVATE, gives its grant back and is done: the bytes are
 *     there.
 *   ABANDON writes the snapshot into the page (stream order was settled before).
 *   COPY_READ on SHARED leaves it shared and marks it copy-busy, unless other work
 *     is pending: then it is detached (DESIGN.md 5, COW). So it does on MERGING.
 *   COPY_READ and API_WRITE on PRIVATE and RELOAD mark it copy-busy: the scanner takes
 *     no such page.
 *   FAULT and API_WRITE on MERGING give the page back as it was, without copying: the
 *     writer wins. The scanner's COMMIT finds it PRIVATE and drops the merge.
 *   LAUNCH happens under the guards `seal` and `optimistic` only.
 *   A pinned page takes LOAD_FULL as API_WRITE; under `seal` every page takes LOAD_PART
 *     and LOAD_FULL so.
 *
 * Lock order: launch gate -> range lock -> page (compare-and-swap) -> link queue.
 * The COW thread takes only the page's compare-and-swap.
 */
#ifndef GKSM_PAGE_H
#define GKSM_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#include "cuda_abi.h"

/* clang-format off */
#define GKSM_PAGE_STATES(X) \
	X(FREE) X(UNBACKED) X(FILLING) X(LOADING) X(PRIVATE) X(RELOAD) X(MERGING) X(SHARED) X(BUSY) X(LOST)

#define GKSM_PAGE_EVENTS(X) \
	X(LOAD_PART) X(LOAD_FULL) X(PROTECT) X(COMMIT) X(ABANDON) X(FAULT) X(API_WRITE) X(COPY_READ) \
	X(LAUNCH) X(SEAL) X(UNSHARE) X(RELEASE) X(LOSE)

/* clang-format on */

enum gksm_page_state {
#define X(name) GKSM_PAGE_##name,
	GKSM_PAGE_STATES(X)
#undef X
};

enum gksm_page_event {
#define X(name) GKSM_ON_##name,
	GKSM_PAGE_EVENTS(X)
#undef X
};

enum gksm_page_verdict {
	GKSM_GO,      /* move the page to `next` */
	GKSM_STAY,    /* nothing to do */
	GKSM_WAIT_IT, /* look again once the state has changed */
	GKSM_NEVER    /* cannot happen */
};

struct gksm_page_rule {
	uint8_t verdict;
	uint8_t next;
	uint8_t guard_state; /* of the guard, once the page is in `next` */
};

enum gksm_written {
	GKSM_NOT_WRITTEN = 0,
	GKSM_WRITTEN = 1,
	GKSM_WRITTEN_COPIED = 2 /* every byte, from other device memory: a likely duplicate */
};

struct gksm_assembly;
struct gksm_engine;

struct gksm_page {
	_Atomic uint32_t state;	     /* enum gksm_page_state; a futex word */
	_Atomic uint32_t copy_busy;  /* copies in flight that saw it and do not hold */
	_Atomic uint32_t allocation; /* index + 1 into the gpu's allocations; 0: none */
	_Atomic uint32_t pins;	     /* handed out, or in a live graph: never shared */
	_Atomic uint32_t looks;	     /* scanner reads in flight of what is mapped here */
	_Atomic uint8_t unshared;    /* enum gksm_unshared, meaningful in PRIVATE */
	_Atomic uint8_t sealed;
	_Atomic uint8_t kind;	 /* enum gksm_kind: how it was filled */
	_Atomic uint8_t hint;	 /* what the program says it is: enum gksm_kind + 1; 0: nothing */
	_Atomic uint8_t written; /* enum gksm_written: by a copy or set since the last look */
	_Atomic uint8_t zero;	 /* in SHARED: compared, all its bytes are 0 */
	uint32_t merged_pass;	 /* in SHARED: the scanner's pass that merged it; 0: it did not */
	CUmemGenericAllocationHandle handle; /* ours to release; 0: none */
	_Atomic uint64_t page_id;	     /* in SHARED; 0: gksmd has not named it */
	_Atomic uint64_t hash_low; /* XXH3-128 of a SHARED page: told again after a reconnect */
	_Atomic uint64_t hash_high;
	struct gksm_assembly *assembly;	      /* in FILLING and LOADING */
	const void *snapshot;		      /* in LOADING: all its bytes, pinned */
	_Atomic(struct gksm_engine *) engine; /* of the context it was allocated in */
};

/* The table above, one rule. */
struct gksm_page_rule gksm_page_rule(enum gksm_page_state state, enum gksm_page_event event);

/* What the guard's state byte must be while a page is in `state`. */
uint8_t gksm_page_guard_state(enum gksm_page_state state);

const char *gksm_page_state_name(enum gksm_page_state state);
const char *gksm_page_event_name(enum gksm_page_event event);

#endif
