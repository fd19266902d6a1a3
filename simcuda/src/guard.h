/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda's side of the fault guard, libgksm/include/gksm/guard.h.
 */
#ifndef SIM_GUARD_H
#define SIM_GUARD_H

#include "sim.h"

enum sim_verdict {
	SIM_VERDICT_FATAL,
	SIM_VERDICT_AGAIN /* touch again */
};

/*
 * A kernel of the context faulted at the address. Called in the signal handler of a
 * thread that held no lock and was not inside libc, so it may wait. Blocks while the
 * guard holds the fault.
 */
enum sim_verdict sim_guard_fault(struct sim_context *context, CUdeviceptr address, bool write);

#endif
