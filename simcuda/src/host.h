/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that the driver knows: allocated by it, registered with it, managed. A
 * sorted array of ranges that do not overlap; root->memory_lock.
 */
#ifndef SIM_HOST_H
#define SIM_HOST_H

#include "sim.h"

enum sim_host_kind { SIM_HOST_ALLOCATED, SIM_HOST_REGISTERED, SIM_HOST_MANAGED };

struct sim_host_range {
	uintptr_t base;
	size_t bytes;
	enum sim_host_kind kind;
	unsigned flags;
	struct sim_context *context;
	uint64_t buffer_id;
	int sync_memops;
};

int sim_host_start(void);

/* The range that holds the address, or NULL. memory_lock held; valid as long. */
struct sim_host_range *sim_host_find(uintptr_t address);

/* New managed memory; NULL: none left. */
void *sim_host_managed(struct sim_context *context, size_t bytes, unsigned flags);
/* Frees memory of the kind. false: no such base. Without the lock. */
bool sim_host_free(uintptr_t base, enum sim_host_kind kind);

#endif
