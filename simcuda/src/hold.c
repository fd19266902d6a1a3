/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that a guard holds: what happens on the thread of the kernel that faulted. */
#include "hold.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "guard.h"
#include "va.h"

/* Users of device->guard: it is freed only when they are gone. By device ordinal. */
static _Atomic int guard_users[SIM_DEVICES_MAX];

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
	/* Bounded: the death of a context wakes nobody here. */
	struct timespec limit = {.tv_nsec = 10000000};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &limit, NULL, 0);
}

/* ---- holds; guard->lock held ------------------------------------------------- */

struct hold *sim_hold_find(struct sim_guard *guard, uint64_t page)
{
	for (unsigned i = 0; i < HOLDS_MAX; i++) {
		struct hold *hold = &guard->holds[i];

		if (hold->page == page && atomic_load(&hold->state) == HOLD_WAITING)
			return hold;
	}
	return NULL;
}

uint64_t sim_hold_deadline(const struct sim_guard *guard, const struct hold *hold)
{
	uint64_t start = hold->held_ns;

	if (start < guard->last_completed)
		start = guard->last_completed;
	return start + guard->deadline_ns;
}

/* Tells the other processes how long this one's holds count. */
static void publish(struct sim_guard *guard)
{
	uint64_t until = 0;

	for (unsigned i = 0; i < HOLDS_MAX && guard->waiting; i++)
		if (atomic_load(&guard->holds[i].state) == HOLD_WAITING &&
		    sim_hold_deadline(guard, &guard->holds[i]) > until)
			until = sim_hold_deadline(guard, &guard->holds[i]);
	sim_device_set_held(guard->device, until);
}

bool sim_record_send(struct sim_guard *guard, const struct gksm_fault *fault)
{
	return send(guard->fd, fault, sizeof(*fault), MSG_DONTWAIT | MSG_NOSIGNAL) ==
	       (ssize_t)sizeof(*fault);
}

void sim_hold_send(struct sim_guard *guard, struct hold *hold)
{
	struct gksm_fault fault = {
		.page = hold->page,
		.access = hold->access,
		.held_ns = hold->held_ns,
		.sequence = guard->sequence + 1,
	};

	hold->sent = sim_record_send(guard, &fault);
	if (hold->sent)
		guard->sequence++;
}

static struct hold *hold_add(struct sim_guard *guard, uint64_t page, bool write)
{
	for (unsigned i = 0; i < HOLDS_MAX; i++) {
		struct hold *hold = &guard->holds[i];

		if (atomic_load(&hold->state) != HOLD_FREE)
			continue;
		hold->page = page;
		hold->access = write ? GKSM_FAULT_WRITE : GKSM_FAULT_READ;
		hold->held_ns = sim_now_ns();
		hold->waiters = 0;
		atomic_store(&hold->state, HOLD_WAITING);
		if (!guard->waiting++)
			guard->stall_start = hold->held_ns;
		publish(guard);
		sim_hold_send(guard, hold);
		/* The thread now has a deadline to watch. */
		(void)eventfd_write(guard->wake, 1);
		return hold;
	}
	return NULL;
}

void sim_hold_end(struct sim_guard *guard, struct hold *hold, enum hold_state state)
{
	if (!--guard->waiting)
		guard->stalls[guard->stall_next++ % STALLS_MAX] =
			(struct stall){guard->stall_start, sim_now_ns()};
	if (hold->waiters) {
		atomic_store(&hold->state, state);
		futex_wake(&hold->state);
	} else {
		atomic_store(&hold->state, HOLD_FREE);
	}
	publish(guard);
}

static void hold_leave(struct sim_guard *guard, struct hold *hold)
{
	if (--hold->waiters)
		return;
	if (atomic_load(&hold->state) == HOLD_WAITING)
		sim_hold_end(guard, hold, HOLD_REFUSED);
	else
		atomic_store(&hold->state, HOLD_FREE);
}

/* ---- a fault ------------------------------------------------------------------ */

static enum sim_verdict hold_fault(struct sim_guard *guard, struct sim_context *context,
				   uint64_t page, bool write)
{
	enum sim_verdict verdict = SIM_VERDICT_FATAL;
	struct hold *hold;

	pthread_mutex_lock(&guard->lock);
	hold = guard->closed ? NULL : sim_hold_find(guard, page);
	if (!hold && !guard->closed)
		hold = hold_add(guard, page, write);
	if (!hold) {
		/* No place for it while hundreds are held: look again. */
		verdict = guard->closed ? SIM_VERDICT_FATAL : SIM_VERDICT_AGAIN;
		pthread_mutex_unlock(&guard->lock);
		return verdict;
	}
	hold->waiters++;
	pthread_mutex_unlock(&guard->lock);

	while (atomic_load(&hold->state) == HOLD_WAITING &&
	       sim_context_error(context) == CUDA_SUCCESS && !atomic_load(&context->destroyed))
		futex_wait(&hold->state, HOLD_WAITING);

	pthread_mutex_lock(&guard->lock);
	if (atomic_load(&hold->state) == HOLD_DONE)
		verdict = SIM_VERDICT_AGAIN;
	hold_leave(guard, hold);
	pthread_mutex_unlock(&guard->lock);
	return verdict;
}

static bool to_hold(struct sim_guard *guard, uint64_t page, bool write)
{
	uint8_t state = atomic_load(&guard->states[page]);

	return state == GKSM_STATE_HOLD_ALL || (state == GKSM_STATE_HOLD_WRITES && write);
}

static enum sim_verdict guard_fault(struct sim_guard *guard, struct sim_context *context,
				    CUdeviceptr address, bool write)
{
	enum sim_access needed = write ? SIM_ACCESS_READ_WRITE : SIM_ACCESS_READ;
	uint64_t page = (address - guard->base) / SIM_PAGE;

	if (address < guard->base || page >= guard->pages)
		return SIM_VERDICT_FATAL;
	/*
	 * The process may have mended the mapping since the access faulted, and have
	 * said so in the state byte: mapping first, then the byte. So a byte that does
	 * not hold means that the mapping must be looked at, and the byte once more, in
	 * case the next change has begun in between.
	 */
	for (int look = 0; look < 3; look++) {
		if (to_hold(guard, page, write))
			return hold_fault(guard, context, page, write);
		if (sim_va_access(address) >= needed)
			return SIM_VERDICT_AGAIN;
	}
	return SIM_VERDICT_FATAL;
}

enum sim_verdict sim_guard_fault(struct sim_context *context, CUdeviceptr address, bool write)
{
	struct sim_device *device = context->device;
	enum sim_verdict verdict = SIM_VERDICT_FATAL;
	struct sim_guard *guard;

	atomic_fetch_add(&guard_users[device->ordinal], 1);
	guard = atomic_load(&device->guard);
	if (guard)
		verdict = guard_fault(guard, context, address, write);
	atomic_fetch_sub(&guard_users[device->ordinal], 1);
	return verdict;
}

void sim_guard_detach(struct sim_guard *guard)
{
	struct sim_device *device = guard->device;

	atomic_store(&device->guard, NULL);
	while (atomic_load(&guard_users[device->ordinal])) {
		struct timespec moment = {.tv_nsec = 1000000};

		nanosleep(&moment, NULL);
	}
}
