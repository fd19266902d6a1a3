/* SPDX-License-Identifier: Apache-2.0 */
#include "sync.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "libc_symbols.h"

struct thread_start {
	void *(*function)(void *);
	void *argument;
	char name[16];
};

typedef int thread_create(pthread_t *thread, const pthread_attr_t *attributes,
			  void *(*function)(void *), void *argument);
typedef int thread_detach(pthread_t thread);

static void *run(void *argument)
{
	struct thread_start start = *(struct thread_start *)argument;

	free(argument);
	prctl(PR_SET_NAME, start.name, 0, 0, 0);
	return start.function(start.argument);
}

/* Reading the application's memory may raise these, as it would in the driver, and the
 * application may have an answer (a file that shrank, memory filled on demand).
 * Blocked, they would end the process without asking it. */
static const int synchronous[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

int gksm_thread_start(void *(*function)(void *), void *argument, const char *name)
{
	thread_create *create = (thread_create *)gksm_global_function("pthread_create");
	thread_detach *detach = (thread_detach *)gksm_global_function("pthread_detach");
	struct thread_start *start;
	sigset_t blocked, before;
	size_t i;
	pthread_t thread;
	int result;

	if (!create || !detach)
		return -ENOSYS;
	start = calloc(1, sizeof(*start));
	if (!start)
		return -ENOMEM;
	start->function = function;
	start->argument = argument;
	strncpy(start->name, name, sizeof(start->name) - 1);

	/*
	 * The application's signal handlers run on its own threads only. The C
	 * library keeps its internal signals out of a full set, so setuid() and
	 * pthread_cancel() still reach ours.
	 */
	sigfillset(&blocked);
	for (i = 0; i < sizeof(synchronous) / sizeof(synchronous[0]); i++)
		sigdelset(&blocked, synchronous[i]);
	sigprocmask(SIG_SETMASK, &blocked, &before);
	result = create(&thread, NULL, run, start);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (result != 0) {
		free(start);
		return -result;
	}
	detach(thread);
	return 0;
}
