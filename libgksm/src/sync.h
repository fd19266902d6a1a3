/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks, waiting and threads, without any symbol newer than glibc 2.17 and without
 * NEEDED beyond libc: futexes by syscall, threads through pthread_create found in
 * the process after libcuda has loaded it.
 */
#ifndef GKSM_SYNC_H
#define GKSM_SYNC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct gksm_mutex {
	_Atomic uint32_t word;
};

#define GKSM_MUTEX_INIT {0}

void gksm_mutex_lock(struct gksm_mutex *mutex);
bool gksm_mutex_try_lock(struct gksm_mutex *mutex);
void gksm_mutex_unlock(struct gksm_mutex *mutex);

/* Waits while *word == expected. timeout_ns < 0: no bound. 0, -EAGAIN (it differed),
 * -ETIMEDOUT, -EINTR. */
int gksm_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
void gksm_futex_wake(_Atomic uint32_t *word, int count);

/* A gate: many may be inside, or one may have closed it. Readers are not starved:
 * a closed gate opens again within its owner's bound. */
struct gksm_gate {
	_Atomic uint32_t word; /* readers, and the top bit while closing or closed */
};

void gksm_gate_enter(struct gksm_gate *gate);
void gksm_gate_leave(struct gksm_gate *gate);
/* 0, or -ETIMEDOUT: somebody stayed inside; the gate is open. */
int gksm_gate_close(struct gksm_gate *gate, int64_t timeout_ns);
void gksm_gate_open(struct gksm_gate *gate);

uint64_t gksm_now_ns(void); /* CLOCK_MONOTONIC */
void gksm_sleep_ns(uint64_t nanoseconds);

/* Starts a detached thread with all signals blocked. 0 or a negative errno. */
int gksm_thread_start(void *(*function)(void *), void *argument, const char *name);

#endif
