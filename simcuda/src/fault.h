/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated device faults: SIGSEGV (and SIGBUS) of threads that are inside
 * sim_touch(). Every other one goes to whoever had the signal before us.
 */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "sim.h"

void sim_fault_start(void);
/* At the start of each stream thread. */
void sim_fault_thread_start(void);

#endif
