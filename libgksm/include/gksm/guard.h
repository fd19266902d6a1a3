/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault guard: how a process asks that GPU faults on its shared pages are
 * held until it has repaired the mapping, instead of killing its context.
 *
 * Two implementations, one interface: gksm.ko on a real GPU, and simcuda.
 *
 *   open      One guard per process and GPU. The process registers one range of
 *             device addresses, its arena. The result is an event fd and a fd to
 *             mmap the state bytes from (the same fd for gksm.ko).
 *   states    One byte for each page of the arena, mapped shared and writable:
 *             what the guard is to do with a fault there. The process writes the
 *             byte BEFORE it changes a mapping (release order); the guard reads
 *             it at each fault and treats it as untrusted: any value that is not
 *             one of enum gksm_guard_state counts as PASS.
 *   events    read() returns whole struct gksm_fault records, as many as fit;
 *             EAGAIN when there are none (the fd is non-blocking); poll() works.
 *             A page is reported once, until it is answered; more faults on it
 *             join the first.
 *   answers   write() takes whole struct gksm_fault_answer records. DONE: every
 *             access waiting on the page is tried again (and reported anew if it
 *             still faults). REFUSE: they become fatal, as without a guard.
 *   deadline  A hold not answered within deadline_ms since the process last
 *             completed a hold is refused by the guard itself.
 *   budget    Time the device stood still for this process's faults, in any one
 *             second. Once over it, one record with GKSM_FAULT_OVER_BUDGET is
 *             queued: the process is to make its pages private and stop sharing.
 *   death     Closing the event fd or the end of the process refuses its holds.
 *
 * While any fault is held on a device nothing that needs its SMs advances there,
 * for any process: no kernel, memset or device-to-device copy. Copies that cross
 * PCIe do. Faults of copy engines are never held.
 */
#ifndef GKSM_GUARD_H
#define GKSM_GUARD_H

#include <stdint.h>

enum gksm_guard_state {
	GKSM_STATE_PASS = 0,	    /* not ours: a fault is fatal */
	GKSM_STATE_HOLD_WRITES = 1, /* mapped read-only */
	GKSM_STATE_HOLD_ALL = 2	    /* not mapped, or the mapping is changing */
};

struct gksm_guard_register {
	uint32_t bytes; /* sizeof this struct */
	int32_t uvm_fd; /* the process's own /dev/nvidia-uvm; -1 with simcuda */
	uint8_t gpu_uuid[16];
	uint64_t arena_base; /* 2 MiB aligned */
	uint64_t arena_pages;
	uint32_t deadline_ms;
	uint32_t stall_budget_ms; /* 0: the guard's own default */
};

enum gksm_fault_access {
	GKSM_FAULT_READ = 0,
	GKSM_FAULT_WRITE = 1,
	GKSM_FAULT_OVER_BUDGET = 2 /* no page: see above */
};

struct gksm_fault {
	uint64_t page;	 /* index into the arena */
	uint32_t access; /* enum gksm_fault_access: of the first fault */
	uint32_t reserved;
	uint64_t held_ns; /* CLOCK_MONOTONIC */
	uint64_t sequence;
};

enum gksm_fault_verdict { GKSM_FAULT_DONE = 0, GKSM_FAULT_REFUSE = 1 };

struct gksm_fault_answer {
	uint64_t page;
	uint32_t verdict; /* enum gksm_fault_verdict */
	uint32_t reserved;
};

/*
 * Exported by simcuda's libcuda.so.1, found with dlsym on the driver's handle.
 * Returns 0 or a negative errno (-ENODEV: this device is configured without a
 * fault guard; -EBUSY: the process has one already on it; -EINVAL). The caller
 * owns both fds (CLOEXEC). state_fd is to be mapped once, arena_pages bytes,
 * MAP_SHARED, and may then be closed.
 */
#define GKSM_SIM_GUARD_SYMBOL "simcudaGuardOpen"
typedef int gksm_sim_guard_open(const struct gksm_guard_register *registration, int *event_fd,
				int *state_fd);

#endif
