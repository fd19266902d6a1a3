/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's folder, dev<N>/ in SIMCUDA_DIR: the bank files and `state`, which every
 * process that uses the device maps.
 *
 * Nothing in `state` is trusted to have been cleaned up by its owner: each process
 * holds an open-file-description lock on the byte of its slot, and a slot whose byte
 * nobody has locked belongs to a dead process, whatever is written in it.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "sim.h"

#define SIM_SLOTS 256
#define SIM_PAGES_MAX 65536

struct sim_shared {
	_Atomic uint32_t ready; /* SIM_SHARED_READY once everything else is */
	uint32_t version;
	uint8_t uuid[16];
	pthread_mutex_t lock; /* robust, between processes */
	_Atomic uint64_t total_bytes;
	/* Changes whenever a hold ends: what gates sleep on. */
	_Atomic uint32_t held_change;
	_Atomic uint64_t held_slots[SIM_SLOTS / 64]; /* slots that hold a fault */
	/* CLOCK_MONOTONIC at which a slot's holds count no more. Its own process refuses
	 * them then; should that be frozen, the others go on all the same. */
	_Atomic uint64_t held_until[SIM_SLOTS];
	/* A clear bit: the page is free. A set one: look at the locks. */
	uint64_t used_hint[SIM_PAGES_MAX / 64];
	/* Counts how often a page was handed out, so that a stale IPC handle is seen. */
	uint32_t generation[SIM_PAGES_MAX];
	_Atomic uint64_t host_to_device_bytes; /* copied, by all processes ever */
};

/* CUDA_SUCCESS, or what cuInit is to return. */
CUresult sim_device_attach(struct sim_device *device, int ordinal);

/* device->vram_lock must be held. Takes shared->lock, mending it when its owner died. */
void sim_shared_lock(struct sim_device *device);
void sim_shared_unlock(struct sim_device *device);

/* In a forked child: lets go of what would look like the parent being alive. */
void sim_device_forked(struct sim_device *device);

/* This process holds faults on the device until then at most; 0: none any more. */
void sim_device_set_held(struct sim_device *device, uint64_t until_ns);

/* true while a live process holds a fault; sweeps the marks of dead ones. */
bool sim_device_held(struct sim_device *device);

/* Sleeps until a hold may have ended, at most a few milliseconds. */
void sim_device_wait_released(struct sim_device *device, uint32_t seen);

#endif
