/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guard and its holds, between hold.c (faults: kernel threads) and guard.c (answers:
 * the guard's own thread).
 */
#ifndef SIM_HOLD_H
#define SIM_HOLD_H

#include "gksm/guard.h"
#include "sim.h"

#define HOLDS_MAX 256
#define STALLS_MAX 1024

enum hold_state { HOLD_FREE, HOLD_WAITING, HOLD_DONE, HOLD_REFUSED };

struct hold {
	_Atomic uint32_t state; /* enum hold_state; a futex word */
	uint32_t access;
	uint64_t page;
	uint64_t held_ns;
	unsigned waiters;
	bool sent;
};

struct stall {
	uint64_t from, to;
};

struct sim_guard {
	struct sim_device *device;
	CUdeviceptr base;
	uint64_t pages;
	_Atomic uint8_t *states; /* the process's: not to be trusted */
	uint64_t deadline_ns;
	uint64_t budget_ns;
	int fd;	  /* our end */
	int wake; /* eventfd: a hold was added */
	pthread_mutex_t lock;
	bool closed;
	struct hold holds[HOLDS_MAX]; /* not malloc: it is filled in a signal handler */
	unsigned waiting;	      /* holds in HOLD_WAITING */
	uint64_t sequence;
	uint64_t last_completed;
	uint64_t stall_start; /* while waiting > 0 */
	struct stall stalls[STALLS_MAX];
	unsigned stall_next;
	bool over, over_sent;
	uint8_t partial[sizeof(struct gksm_fault_answer)];
	size_t partial_bytes;
};

/* All with guard->lock. */
struct hold *sim_hold_find(struct sim_guard *guard, uint64_t page);
void sim_hold_end(struct sim_guard *guard, struct hold *hold, enum hold_state state);
/* Puts the hold's record into the process's queue; hold->sent tells whether it fitted. */
void sim_hold_send(struct sim_guard *guard, struct hold *hold);
bool sim_record_send(struct sim_guard *guard, const struct gksm_fault *fault);
/* CLOCK_MONOTONIC when the hold is refused. */
uint64_t sim_hold_deadline(const struct sim_guard *guard, const struct hold *hold);

/* Without the lock. Takes the guard off its device and waits until no fault looks at it
 * any more; its holds must have been refused. */
void sim_guard_detach(struct sim_guard *guard);

#endif
