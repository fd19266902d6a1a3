/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "kernels.h"

struct sim_dims {
	unsigned grid[3], block[3], shared;
};

/* What every launch of the function, now or as a graph node, must satisfy. */
CUresult sim_launch_check(CUfunction function, const struct sim_dims *dims,
			  const struct sim_kernel **kernel);

/*
 * Gathers the parameters of a launch, given in either of the two forms, into
 * SIM_KERNEL_BYTES at params. INVALID_VALUE: neither, both, or too few bytes.
 */
CUresult sim_launch_params(const struct sim_kernel *kernel, void **kernel_params, void **extra,
			   void *params);

#endif
