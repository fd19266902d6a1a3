/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptors that a forked child closes: one bit each. The child's handler
 * runs between fork() and the child's own code, when locks may be held by threads
 * that do not exist there, so it only reads bits and calls close.
 */
#include "fork.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FDS_MAX 1048576 /* fs.nr_open's default; what is beyond is left to CLOEXEC */
#define WORD_BITS 64

/* In libc since 2.3.2; pthread_atfork is a macro around it in each library. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
			     void *dso);
extern void *__dso_handle;

static _Atomic uint64_t owned[FDS_MAX / WORD_BITS];
static _Atomic uint32_t words_used; /* no bit is set from this word on */

void gksm_fd_opened(int fd)
{
	uint32_t used, need;

	if (fd < 0 || fd >= FDS_MAX)
		return;
	atomic_fetch_or(&owned[fd / WORD_BITS], 1ull << (fd % WORD_BITS));
	need = (uint32_t)fd / WORD_BITS + 1;
	used = atomic_load(&words_used);
	while (used < need && !atomic_compare_exchange_weak(&words_used, &used, need))
		;
}

void gksm_fd_closed(int fd)
{
	if (fd >= 0 && fd < FDS_MAX)
		atomic_fetch_and(&owned[fd / WORD_BITS], ~(1ull << (fd % WORD_BITS)));
}

void gksm_fd_close(int fd)
{
	int saved = errno;

	if (fd < 0)
		return;
	gksm_fd_closed(fd);
	close(fd);
	errno = saved;
}

static void close_in_child(void)
{
	uint32_t words = atomic_load(&words_used);
	int saved = errno;

	for (uint32_t word = 0; word < words; word++) {
		uint64_t bits = atomic_exchange(&owned[word], 0);

		while (bits) {
			int bit = __builtin_ctzll(bits);

			/* The bare call: in a child of a threaded program nothing else is safe. */
			syscall(SYS_close, (int)(word * WORD_BITS) + bit);
			bits &= bits - 1;
		}
	}
	atomic_store(&words_used, 0);
	errno = saved;
}

int gksm_fork_watch(void)
{
	return __register_atfork(NULL, NULL, close_in_child, &__dso_handle) == 0 ? 0 : -ENOMEM;
}
