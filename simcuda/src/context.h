/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "sim.h"

/* A new context with its legacy stream, on the root's list. NULL: no memory. */
struct sim_context *sim_context_new(struct sim_device *device, unsigned flags, bool primary);
/* Makes a released primary context usable again. */
bool sim_context_revive(struct sim_context *context, unsigned flags);
/* Ends its work, frees its memory. The struct stays. At most one caller. */
void sim_context_destroy(struct sim_context *context);

/* alloc.c, host.c, pool.c: everything allocated in the context goes. */
void sim_memory_context_gone(struct sim_context *context);
void sim_host_context_gone(struct sim_context *context);

/* The calling thread's stack of contexts. */
struct sim_context *sim_stack_top(void);
bool sim_stack_push(struct sim_context *context);
struct sim_context *sim_stack_pop(void);
/* Removes it from the calling thread's stack where it is on top. */
void sim_stack_forget(struct sim_context *context);

#endif
