/* SPDX-License-Identifier: Apache-2.0 */
#include "guard.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cow.h"
#include "fork.h"
#include "gksm/guard.h"
#include "gpu.h"
#include "refusal.h"
#include "report.h"
#include "scan.h"

static gksm_sim_guard_open *sim_guard(void)
{
	return (gksm_sim_guard_open *)gksm_driver_symbol(GKSM_SIM_GUARD_SYMBOL);
}

/* Whether the driver would give device 0 a guard: it looks at that before it looks at
 * the arena, which here is none. */
static bool fault_guard_possible(struct gksm *process)
{
	gksm_sim_guard_open *open_guard = sim_guard();
	struct gksm_guard_register none = {.bytes = sizeof(none), .uvm_fd = -1};
	int event_fd = -1;
	int state_fd = -1;
	CUuuid uuid;

	if (!open_guard || process->driver.cuDeviceGetUuid(&uuid, 0))
		return false;
	memcpy(none.gpu_uuid, &uuid, sizeof(none.gpu_uuid));
	return open_guard(&none, &event_fd, &state_fd) == -EINVAL;
}

uint64_t gksm_guards_possible(struct gksm *process)
{
	uint64_t guards = 1u << GKSM_GUARD_OFF;
	const char *refusal = gksm_refusal(process, 0);

	/* gksmd then says off, and why, to whoever asks. */
	if (refusal) {
		gksm_report(process, GKSM_WARNING, "GPU 0 is left alone: %s", refusal);
		return guards;
	}
	guards |= 1u << GKSM_GUARD_SEAL | 1u << GKSM_GUARD_OPTIMISTIC;
	if (fault_guard_possible(process))
		guards |= 1u << GKSM_GUARD_FAULT;
	return guards;
}

static int open_fault_guard(struct gksm_gpu *gpu, const struct gksm_gpu_opened *opened)
{
	gksm_sim_guard_open *open_guard = sim_guard();
	struct gksm_guard_register registration = {
		.bytes = sizeof(registration),
		.uvm_fd = -1,
		.arena_base = gpu->arena_base,
		.arena_pages = gpu->arena_pages,
		.deadline_ms = opened->hold_deadline_ms,
		.stall_budget_ms = opened->stall_budget_ms,
	};
	_Atomic uint8_t *states;
	int event_fd = -1;
	int state_fd = -1;
	uint64_t page;
	int error;

	if (!open_guard)
		return -ENODEV;
	memcpy(registration.gpu_uuid, gpu->uuid, sizeof(gpu->uuid));
	error = open_guard(&registration, &event_fd, &state_fd);
	if (error)
		return error;
	states = mmap(NULL, gpu->arena_pages, PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
	if (state_fd != event_fd)
		close(state_fd);
	if (states == MAP_FAILED) {
		close(event_fd);
		return -ENOMEM;
	}
	gksm_fd_opened(event_fd);
	gpu->guard_fd = event_fd;
	/* Pages may exist already (gksmd came late): all are mapped read-write, which is
	 * what the zero of a new byte says. A page in transition writes its own byte. */
	for (page = 0; page < gpu->arena_pages; page++) {
		uint8_t state = gksm_page_guard_state(gksm_page_state(gpu, page));

		if (state != GKSM_STATE_PASS)
			atomic_store(&states[page], state);
	}
	atomic_store_explicit(&gpu->guard_states, states, memory_order_release);
	return 0;
}

static int start(struct gksm_gpu *gpu, const struct gksm_gpu_opened *opened)
{
	int error = 0;

	if (opened->guard == GKSM_GUARD_FAULT)
		error = open_fault_guard(gpu, opened);
	if (!error)
		error = gksm_cow_start(gpu);
	/* Without it pages are shared as they are loaded, and that is all. */
	if (!error && opened->guard == GKSM_GUARD_FAULT && gksm_scan_start(gpu))
		gksm_report(gpu->process, GKSM_WARNING,
			    "GPU %d is not scanned for equal pages: no memory or threads",
			    (int)gpu->device);
	/* gksmd's next answer tries again, and there is one guard to a process. */
	if (error && gpu->guard_fd >= 0) {
		gksm_fd_close(gpu->guard_fd);
		gpu->guard_fd = -1;
	}
	if (!error && opened->guard != GKSM_GUARD_FAULT)
		atomic_fetch_add(&gpu->process->gated_gpus, 1);
	return error;
}

/* gksmd leaves open (0) what it has no opinion on. */
static struct gksm_gpu_opened completed(const struct gksm_gpu_opened *opened)
{
	struct gksm_gpu_opened terms = *opened;

	if (!terms.hold_deadline_ms)
		terms.hold_deadline_ms = 500;
	if (!terms.load_wait_ms)
		terms.load_wait_ms = 10000;
	if (!terms.order_wait_ms)
		terms.order_wait_ms = 100;
	if (!terms.drain_ms)
		terms.drain_ms = 20;
	return terms;
}

void gksm_guard_start(struct gksm_gpu *gpu, const struct gksm_gpu_opened *opened)
{
	int error = 0;

	gksm_mutex_lock(&gpu->guard_lock);
	atomic_store(&gpu->allowed, opened->guard != GKSM_GUARD_OFF);
	if (opened->guard != GKSM_GUARD_OFF && atomic_load(&gpu->guard) == GKSM_GUARD_OFF) {
		/* Terms are read without the lock: they are complete before the guard is
		 * in force, and stay as they are from then on. */
		gpu->terms = completed(opened);
		error = start(gpu, &gpu->terms);
		if (!error)
			atomic_store(&gpu->guard, opened->guard);
	}
	gksm_mutex_unlock(&gpu->guard_lock);
	if (error)
		gksm_report(gpu->process, GKSM_WARNING,
			    "GPU %d stays private: its fault guard cannot be opened (%s)",
			    (int)gpu->device, error == -EBUSY ? "taken" : "no device or memory");
}
