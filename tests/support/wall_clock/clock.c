/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, it moves CLOCK_REALTIME by the seconds that the file WALL_CLOCK holds now. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void find(void)
{
	int fd = open(getenv("WALL_CLOCK"), O_RDONLY | O_CLOEXEC);
	void *map = mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, fd, 0);

	if (map != MAP_FAILED)
		ahead = map;
	close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = (int)syscall(SYS_clock_gettime, clock, now);

	if (ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += *ahead;
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	int result = (int)syscall(SYS_gettimeofday, now, zone);

	if (ahead)
		now->tv_sec += *ahead;
	return result;
}

time_t time(time_t *now)
{
	struct timespec precise;

	clock_gettime(CLOCK_REALTIME, &precise);
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}
