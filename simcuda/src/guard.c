/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's thread: answers, deadlines, the stall budget; and how a guard begins. */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hold.h"

#define DEADLINE_MS_DEFAULT 500
#define BUDGET_MS_DEFAULT 50
#define SECOND_NS 1000000000ull

static void answer(struct sim_guard *guard, const struct gksm_fault_answer *given)
{
	struct hold *hold = sim_hold_find(guard, given->page);

	if (!hold)
		return;
	guard->last_completed = sim_now_ns();
	sim_hold_end(guard, hold, given->verdict == GKSM_FAULT_DONE ? HOLD_DONE : HOLD_REFUSED);
}

/* false: the process closed its end. */
static bool answers_read(struct sim_guard *guard)
{
	for (;;) {
		ssize_t got = recv(guard->fd, guard->partial + guard->partial_bytes,
				   sizeof(guard->partial) - guard->partial_bytes, MSG_DONTWAIT);
		struct gksm_fault_answer given;

		if (!got)
			return false;
		if (got < 0)
			return errno == EAGAIN || errno == EINTR;
		guard->partial_bytes += (size_t)got;
		if (guard->partial_bytes < sizeof(given))
			continue;
		memcpy(&given, guard->partial, sizeof(given));
		guard->partial_bytes = 0;
		answer(guard, &given);
	}
}

/* When the next hold lapses; UINT64_MAX: none is held. */
static uint64_t deadlines_enforce(struct sim_guard *guard, uint64_t now)
{
	uint64_t next = UINT64_MAX;

	for (unsigned i = 0; i < HOLDS_MAX; i++) {
		struct hold *hold = &guard->holds[i];
		uint64_t deadline = sim_hold_deadline(guard, hold);

		if (atomic_load(&hold->state) != HOLD_WAITING)
			continue;
		if (deadline <= now)
			sim_hold_end(guard, hold, HOLD_REFUSED);
		else if (deadline < next)
			next = deadline;
	}
	return next;
}

/* How long the device stood still for this process within the last second. */
static uint64_t stalled(const struct sim_guard *guard, uint64_t now)
{
	uint64_t since = now > SECOND_NS ? now - SECOND_NS : 0;
	uint64_t sum = 0;

	for (unsigned i = 0; i < STALLS_MAX; i++) {
		const struct stall *stall = &guard->stalls[i];

		if (stall->to > since)
			sum += stall->to - (stall->from > since ? stall->from : since);
	}
	if (guard->waiting)
		sum += now - (guard->stall_start > since ? guard->stall_start : since);
	return sum;
}

static void budget_watch(struct sim_guard *guard, uint64_t now)
{
	if (stalled(guard, now) <= guard->budget_ns) {
		guard->over = guard->over_sent = false;
		return;
	}
	guard->over = true;
	if (!guard->over_sent) {
		struct gksm_fault fault = {
			.access = GKSM_FAULT_OVER_BUDGET,
			.held_ns = now,
			.sequence = guard->sequence + 1,
		};

		guard->over_sent = sim_record_send(guard, &fault);
		if (guard->over_sent)
			guard->sequence++;
	}
}

/* true: some record still does not fit into the process's queue. */
static bool unsent(struct sim_guard *guard)
{
	for (unsigned i = 0; i < HOLDS_MAX; i++) {
		struct hold *hold = &guard->holds[i];

		if (atomic_load(&hold->state) == HOLD_WAITING && !hold->sent) {
			sim_hold_send(guard, hold);
			if (!hold->sent)
				return true;
		}
	}
	return guard->over && !guard->over_sent;
}

/* In milliseconds, for poll(). */
static int patience(const struct sim_guard *guard, uint64_t now, uint64_t deadline)
{
	uint64_t until = deadline;

	if (guard->waiting && !guard->over_sent) {
		uint64_t spent = stalled(guard, now);
		uint64_t left = guard->budget_ns > spent ? guard->budget_ns - spent : 0;

		if (now + left < until)
			until = now + left;
	}
	/* While over budget: to notice when it is under it again. */
	if (guard->over && now + SECOND_NS / 20 < until)
		until = now + SECOND_NS / 20;
	if (until == UINT64_MAX)
		return -1;
	return until <= now ? 1 : (int)((until - now) / 1000000 + 1);
}

static void guard_close(struct sim_guard *guard)
{
	pthread_mutex_lock(&guard->lock);
	guard->closed = true;
	for (unsigned i = 0; i < HOLDS_MAX; i++)
		if (atomic_load(&guard->holds[i].state) == HOLD_WAITING)
			sim_hold_end(guard, &guard->holds[i], HOLD_REFUSED);
	pthread_mutex_unlock(&guard->lock);
	sim_guard_detach(guard);
	close(guard->fd);
	close(guard->wake);
	munmap((void *)guard->states, guard->pages);
	pthread_mutex_destroy(&guard->lock);
	free(guard);
}

static void *guard_main(void *argument)
{
	struct sim_guard *guard = argument;
	bool open = true;

	while (open) {
		struct pollfd fds[2] = {{.fd = guard->fd, .events = POLLIN},
					{.fd = guard->wake, .events = POLLIN}};
		uint64_t now = sim_now_ns();
		eventfd_t count;
		int wait;

		pthread_mutex_lock(&guard->lock);
		budget_watch(guard, now);
		wait = patience(guard, now, deadlines_enforce(guard, now));
		if (unsent(guard))
			fds[0].events |= POLLOUT;
		pthread_mutex_unlock(&guard->lock);

		if (poll(fds, 2, wait) < 0)
			continue;
		if (fds[1].revents)
			(void)eventfd_read(guard->wake, &count);
		if (fds[0].revents & (POLLIN | POLLHUP | POLLERR)) {
			pthread_mutex_lock(&guard->lock);
			/* Too late is too late, also after having been frozen. */
			deadlines_enforce(guard, sim_now_ns());
			open = answers_read(guard);
			pthread_mutex_unlock(&guard->lock);
		}
	}
	guard_close(guard);
	return NULL;
}

/* ---- opening ------------------------------------------------------------------ */

static struct sim_device *device_by_uuid(const uint8_t uuid[16])
{
	for (int i = 0; i < sim_root.device_count; i++)
		if (!memcmp(sim_root.devices[i].uuid.bytes, uuid, 16))
			return &sim_root.devices[i];
	return NULL;
}

/* The states and both channels. On failure the caller cleans up what was set. */
static int guard_resources(struct sim_guard *guard, int ends[2], int *state_fd)
{
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
		return -errno;
	guard->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (guard->wake < 0)
		return -errno;
	*state_fd = memfd_create("gksm-guard-states", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*state_fd < 0)
		return -errno;
	/* Sealed: shrinking it would turn our look at a state into SIGBUS. */
	if (ftruncate(*state_fd, (off_t)guard->pages) ||
	    fcntl(*state_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return -errno;
	guard->states = mmap(NULL, guard->pages, PROT_READ, MAP_SHARED, *state_fd, 0);
	return guard->states == MAP_FAILED ? -errno : 0;
}

static int guard_thread(struct sim_guard *guard)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, guard_main, guard);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		pthread_detach(thread);
	return -error;
}

static int guard_open(struct sim_device *device, const struct gksm_guard_register *wanted,
		      int *event_fd, int *state_fd)
{
	struct sim_guard *guard = calloc(1, sizeof(*guard)), *none = NULL;
	int ends[2] = {-1, -1}, states = -1;
	int error;

	if (!guard)
		return -ENOMEM;
	guard->device = device;
	guard->base = wanted->arena_base;
	guard->pages = wanted->arena_pages;
	guard->deadline_ns =
		1000000ull * (wanted->deadline_ms ? wanted->deadline_ms : DEADLINE_MS_DEFAULT);
	guard->budget_ns = 1000000ull *
			   (wanted->stall_budget_ms ? wanted->stall_budget_ms : BUDGET_MS_DEFAULT);
	guard->wake = -1;
	guard->states = MAP_FAILED;
	pthread_mutex_init(&guard->lock, NULL);
	error = guard_resources(guard, ends, &states);
	guard->fd = ends[0];
	if (!error && !atomic_compare_exchange_strong(&device->guard, &none, guard))
		error = -EBUSY;
	if (!error) {
		error = guard_thread(guard);
		if (error)
			atomic_store(&device->guard, NULL);
	}
	if (!error) {
		*event_fd = ends[1];
		*state_fd = states;
		return 0;
	}
	for (int i = 0; i < 2; i++)
		if (ends[i] >= 0)
			close(ends[i]);
	if (states >= 0)
		close(states);
	if (guard->wake >= 0)
		close(guard->wake);
	if (guard->states != MAP_FAILED)
		munmap((void *)guard->states, guard->pages);
	free(guard);
	return error;
}

SIM_API gksm_sim_guard_open simcudaGuardOpen;

SIM_API int simcudaGuardOpen(const struct gksm_guard_register *registration, int *event_fd,
			     int *state_fd)
{
	struct sim_device *device;

	if (sim_ready() != CUDA_SUCCESS || !sim_root.config.guard)
		return -ENODEV;
	if (!registration || !event_fd || !state_fd ||
	    registration->bytes < sizeof(*registration) || registration->arena_base % SIM_PAGE ||
	    !registration->arena_pages || registration->arena_base < sim_va_base ||
	    registration->arena_pages > (sim_va_end - sim_va_base) / SIM_PAGE ||
	    registration->arena_base + registration->arena_pages * SIM_PAGE > sim_va_end)
		return -EINVAL;
	device = device_by_uuid(registration->gpu_uuid);
	if (!device)
		return -EINVAL;
	return guard_open(device, registration, event_fd, state_fd);
}
