/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_CONTEXT_API_H
#define SIM_CONTEXT_API_H

#include "sim.h"

/* Of a device; a MIG instance has one of seven slices. */
static inline unsigned sim_sm_count(void)
{
	return sim_root.config.claim == SIM_CLAIM_MIG ? 16 : 132;
}

struct CUmod_st;

/* What modules and settings keep for one context (sim_context.surface). */
struct sim_surface {
	struct CUmod_st *modules; /* module.c's lock */
};

/* The context's; made when first asked for. NULL: no memory. */
struct sim_surface *sim_surface_of(struct sim_context *context);

/* module.c: the context ended; frees its modules. */
void sim_modules_context_gone(struct sim_surface *surface);

#endif
