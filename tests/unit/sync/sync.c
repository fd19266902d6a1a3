/* SPDX-License-Identifier: Apache-2.0 */
/* sync.h under threads; argv[1] says which part. Ends 0, or prints what was not so. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "sync.h"

#define THREADS 6
#define ROUNDS 20000
#define MS 1000000ll

#define EXPECT(condition)                                                                       \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

static struct gksm_mutex mutex = GKSM_MUTEX_INIT;
static struct gksm_gate gate;
static long plain; /* guarded by the mutex or the closed gate */
static _Atomic int inside, closed, timeouts;

static void run_threads(void *(*function)(void *))
{
	pthread_t threads[THREADS];

	for (long i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, function, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
}

static void *count(void *number)
{
	for (int i = 0; i < ROUNDS; i++) {
		if ((i + (long)number) % 7 != 0)
			gksm_mutex_lock(&mutex);
		else
			while (!gksm_mutex_try_lock(&mutex))
				sched_yield();
		plain++;
		gksm_mutex_unlock(&mutex);
	}
	return NULL;
}

static void *pass_or_close(void *number)
{
	for (int i = 0; i < ROUNDS / 10; i++) {
		if ((long)number < THREADS - 2) {
			gksm_gate_enter(&gate);
			atomic_fetch_add(&inside, 1);
			EXPECT(atomic_load(&closed) == 0);
			atomic_fetch_sub(&inside, 1);
			gksm_gate_leave(&gate);
		} else if (gksm_gate_close(&gate, 2000 * MS) == 0) {
			EXPECT(atomic_fetch_add(&closed, 1) == 0);
			EXPECT(atomic_load(&inside) == 0);
			plain++;
			atomic_fetch_sub(&closed, 1);
			gksm_gate_open(&gate);
		} else {
			atomic_fetch_add(&timeouts, 1);
		}
	}
	return NULL;
}

static void *stay_inside(void *unused)
{
	gksm_gate_enter(&gate);
	atomic_store(&inside, 1);
	while (atomic_load(&timeouts) == 0)
		sched_yield();
	gksm_gate_leave(&gate);
	return unused;
}

static void gate_times_out(void)
{
	pthread_t thread;

	EXPECT(pthread_create(&thread, NULL, stay_inside, NULL) == 0);
	while (!atomic_load(&inside))
		sched_yield();
	EXPECT(gksm_gate_close(&gate, 5 * MS) == -ETIMEDOUT);
	gksm_gate_enter(&gate); /* it is open again */
	gksm_gate_leave(&gate);
	atomic_store(&timeouts, 1);
	EXPECT(pthread_join(thread, NULL) == 0);
	EXPECT(gksm_gate_close(&gate, -1) == 0);
	EXPECT(gksm_gate_close(&gate, 5 * MS) == -ETIMEDOUT); /* somebody holds it closed */
	gksm_gate_open(&gate);
	gksm_gate_enter(&gate);
	gksm_gate_leave(&gate);
}

static void futex(void)
{
	_Atomic uint32_t word = 5;

	errno = 77;
	EXPECT(gksm_futex_wait(&word, 4, -1) == -EAGAIN);
	EXPECT(gksm_futex_wait(&word, 5, MS) == -ETIMEDOUT);
	gksm_futex_wake(&word, 1);
	gksm_sleep_ns(1000);
	EXPECT(errno == 77); /* the application's */
}

static _Atomic uint32_t thread_says;

static void *look_around(void *argument)
{
	sigset_t blocked;
	char name[16];

	prctl(PR_GET_NAME, name, 0, 0, 0);
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	EXPECT(argument == &thread_says && strcmp(name, "gksm-test-abcde") == 0);
	EXPECT(sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGCHLD));
	atomic_store(&thread_says, 1);
	gksm_futex_wake(&thread_says, 1);
	return NULL;
}

static void thread(void)
{
	sigset_t before, after;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	EXPECT(gksm_thread_start(look_around, &thread_says, "gksm-test-abcdefghi") == 0);
	while (!atomic_load(&thread_says))
		gksm_futex_wait(&thread_says, 0, 5000 * MS);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	EXPECT(sigismember(&before, SIGINT) == sigismember(&after, SIGINT));
}

int main(int argc, char **argv)
{
	EXPECT(argc == 2);
	if (strcmp(argv[1], "mutex") == 0) {
		run_threads(count);
		EXPECT(plain == (long)THREADS * ROUNDS);
	} else if (strcmp(argv[1], "gate") == 0) {
		run_threads(pass_or_close);
		EXPECT(plain + atomic_load(&timeouts) == 2 * (ROUNDS / 10));
		EXPECT(plain > 0);
	} else if (strcmp(argv[1], "gate-timeout") == 0) {
		gate_times_out();
	} else if (strcmp(argv[1], "futex") == 0) {
		futex();
	} else {
		EXPECT(strcmp(argv[1], "thread") == 0);
		thread();
	}
	return 0;
}
