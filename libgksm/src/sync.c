/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Futex locks and the launch gate. Only C11 atomics carry the ordering, so
 * ThreadSanitizer sees it.
 */
#include "sync.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ull
#define GATE_CLOSED 0x80000000u

enum { MUTEX_FREE, MUTEX_HELD, MUTEX_CONTENDED };

int gksm_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns)
{
	struct timespec timeout, *bound = NULL;
	int saved = errno, result = 0;

	if (timeout_ns >= 0) {
		timeout.tv_sec = timeout_ns / (int64_t)NS_PER_S;
		timeout.tv_nsec = timeout_ns % (int64_t)NS_PER_S;
		bound = &timeout;
	}
	if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, bound, NULL, 0) < 0)
		result = -errno;
	/* Wrappers run inside the application's calls: its errno is not ours to change. */
	errno = saved;
	return result;
}

void gksm_futex_wake(_Atomic uint32_t *word, int count)
{
	int saved = errno;

	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
	errno = saved;
}

void gksm_mutex_lock(struct gksm_mutex *mutex)
{
	uint32_t seen = MUTEX_FREE;

	if (atomic_compare_exchange_strong_explicit(&mutex->word, &seen, MUTEX_HELD,
						    memory_order_acquire, memory_order_relaxed))
		return;
	/*
	 * Whoever had to wait takes the lock as CONTENDED: it cannot know whether
	 * others still sleep, and one needless wake is cheaper than a lost one.
	 */
	while (atomic_exchange_explicit(&mutex->word, MUTEX_CONTENDED, memory_order_acquire) !=
	       MUTEX_FREE)
		gksm_futex_wait(&mutex->word, MUTEX_CONTENDED, -1);
}

bool gksm_mutex_try_lock(struct gksm_mutex *mutex)
{
	uint32_t seen = MUTEX_FREE;

	return atomic_compare_exchange_strong_explicit(&mutex->word, &seen, MUTEX_HELD,
						       memory_order_acquire, memory_order_relaxed);
}

void gksm_mutex_unlock(struct gksm_mutex *mutex)
{
	if (atomic_exchange_explicit(&mutex->word, MUTEX_FREE, memory_order_release) ==
	    MUTEX_CONTENDED)
		gksm_futex_wake(&mutex->word, 1);
}

void gksm_gate_enter(struct gksm_gate *gate)
{
	uint32_t seen = atomic_load_explicit(&gate->word, memory_order_relaxed);

	for (;;) {
		if (seen & GATE_CLOSED) {
			gksm_futex_wait(&gate->word, seen, -1);
			seen = atomic_load_explicit(&gate->word, memory_order_relaxed);
			continue;
		}
		if (atomic_compare_exchange_weak_explicit(&gate->word, &seen, seen + 1,
							  memory_order_acquire,
							  memory_order_relaxed))
			return;
	}
}

void gksm_gate_leave(struct gksm_gate *gate)
{
	uint32_t before = atomic_fetch_sub_explicit(&gate->word, 1, memory_order_release);

	/* The closer sleeps on the same word as those it keeps out: wake them all. */
	if (before == (GATE_CLOSED | 1))
		gksm_futex_wake(&gate->word, INT_MAX);
}

/* What is left of a bound; negative bounds never end. */
static int64_t remaining(int64_t timeout_ns, uint64_t start)
{
	int64_t left;

	if (timeout_ns < 0)
		return timeout_ns;
	left = timeout_ns - (int64_t)(gksm_now_ns() - start);
	return left > 0 ? left : 0;
}

int gksm_gate_close(struct gksm_gate *gate, int64_t timeout_ns)
{
	uint64_t start = gksm_now_ns();
	uint32_t seen = atomic_load_explicit(&gate->word, memory_order_relaxed);
	int64_t left;

	/* Shut out newcomers; if somebody else has closed it, wait for that one first. */
	for (;;) {
		if (seen & GATE_CLOSED) {
			left = remaining(timeout_ns, start);
			if (left == 0)
				return -ETIMEDOUT;
			gksm_futex_wait(&gate->word, seen, left);
			seen = atomic_load_explicit(&gate->word, memory_order_relaxed);
			continue;
		}
		if (atomic_compare_exchange_weak_explicit(&gate->word, &seen, seen | GATE_CLOSED,
							  memory_order_acquire,
							  memory_order_relaxed))
			break;
	}
	/* Acquire: what those inside did must be seen by whoever now owns the gate. */
	while ((seen = atomic_load_explicit(&gate->word, memory_order_acquire)) != GATE_CLOSED) {
		left = remaining(timeout_ns, start);
		if (left == 0) {
			gksm_gate_open(gate);
			return -ETIMEDOUT;
		}
		gksm_futex_wait(&gate->word, seen, left);
	}
	return 0;
}

void gksm_gate_open(struct gksm_gate *gate)
{
	atomic_fetch_and_explicit(&gate->word, ~GATE_CLOSED, memory_order_release);
	gksm_futex_wake(&gate->word, INT_MAX);
}

uint64_t gksm_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void gksm_sleep_ns(uint64_t nanoseconds)
{
	struct timespec left = {.tv_sec = (time_t)(nanoseconds / NS_PER_S),
				.tv_nsec = (long)(nanoseconds % NS_PER_S)};
	int saved = errno;

	while (syscall(SYS_nanosleep, &left, &left) < 0 && errno == EINTR)
		;
	errno = saved;
}
