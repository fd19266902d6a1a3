/* SPDX-License-Identifier: Apache-2.0 */
/* A guard in the hands of a test. */
#ifndef SIM_TEST_GUARDING_H
#define SIM_TEST_GUARDING_H

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gksm/guard.h"
#include "harness.h"

extern gksm_sim_guard_open simcudaGuardOpen;

struct guard {
	int fd;
	_Atomic uint8_t *states;
	CUdeviceptr base;
	uint64_t pages;
};

static inline int guard_try(struct guard *guard, CUdeviceptr base, uint64_t pages,
			    unsigned deadline_ms, unsigned budget_ms)
{
	struct gksm_guard_register wanted = {
		.bytes = sizeof(wanted),
		.uvm_fd = -1,
		.arena_base = base,
		.arena_pages = pages,
		.deadline_ms = deadline_ms,
		.stall_budget_ms = budget_ms,
	};
	CUuuid uuid;
	int state_fd, error;

	OK(cuDeviceGetUuid_v2(&uuid, 0));
	memcpy(wanted.gpu_uuid, uuid.bytes, sizeof(wanted.gpu_uuid));
	error = simcudaGuardOpen(&wanted, &guard->fd, &state_fd);
	if (error)
		return error;
	guard->states = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
	CHECK(guard->states != MAP_FAILED);
	close(state_fd);
	guard->base = base;
	guard->pages = pages;
	return 0;
}

static inline struct guard guard_open(CUdeviceptr base, uint64_t pages, unsigned deadline_ms)
{
	struct guard guard;

	CHECK(!guard_try(&guard, base, pages, deadline_ms, 60000));
	return guard;
}

static inline struct gksm_fault fault_next(struct guard *guard)
{
	struct pollfd wait = {.fd = guard->fd, .events = POLLIN};
	struct gksm_fault fault;

	CHECK(poll(&wait, 1, 20000) == 1);
	CHECK(read(guard->fd, &fault, sizeof(fault)) == sizeof(fault));
	return fault;
}

static inline void fault_answer(struct guard *guard, uint64_t page, enum gksm_fault_verdict verdict)
{
	struct gksm_fault_answer answer = {.page = page, .verdict = verdict};

	CHECK(write(guard->fd, &answer, sizeof(answer)) == sizeof(answer));
}

static inline bool quiet(struct guard *guard)
{
	struct gksm_fault fault;

	return read(guard->fd, &fault, sizeof(fault)) < 0 && errno == EAGAIN;
}

static inline void make_writable(struct guard *guard, uint64_t page)
{
	access_set(guard->base + page * PAGE, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	atomic_store(&guard->states[page], GKSM_STATE_PASS);
}

static inline CUdeviceptr pages_new(size_t count, CUmemAccess_flags flags)
{
	CUdeviceptr at = reserve(count * PAGE);

	for (size_t i = 0; i < count; i++) {
		CUmemGenericAllocationHandle handle = handle_new(PAGE);

		OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
		OK(cuMemRelease(handle));
	}
	access_set(at, count * PAGE, flags);
	return at;
}

static inline uint32_t word_at(CUdeviceptr at)
{
	uint32_t word;

	OK(cuMemcpyDtoH_v2(&word, at, sizeof(word)));
	return word;
}

#endif
