/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "sim.h"

#define POOL_MAGIC 0x53504f4cu

/* memory_lock protects all of it. */
struct sim_pool {
	uint32_t magic;
	struct sim_device *device;
	bool standard; /* the device's default pool */
	CUmemPoolProps props;
	int reuse[3]; /* FOLLOW_EVENT_DEPENDENCIES and the two after it */
	uint64_t release_threshold;
	uint64_t used, used_high;
	uint8_t access[SIM_DEVICES_MAX];
	struct sim_pool *next; /* destroyed ones, to be used again */
};

/* memory_lock held. The pool that plain stream-ordered allocations on the device come
 * from. NULL: no memory. */
struct sim_pool *sim_pool_current(struct sim_device *device);

/* NULL: the handle is none. */
struct sim_pool *sim_pool_get(CUmemoryPool handle);

#endif
