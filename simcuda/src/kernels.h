/* SPDX-License-Identifier: Apache-2.0 */
/* Built-in kernels: what a module's functions run. See simcuda/kernels.h. */
#ifndef SIM_KERNELS_H
#define SIM_KERNELS_H

#include "sim.h"

#define SIM_KERNEL_PARAMETERS 6
#define SIM_KERNEL_BYTES 48 /* of the largest parameter list */

struct sim_kernel {
	const char *name;
	unsigned parameters;
	unsigned sizes[SIM_KERNEL_PARAMETERS];
	/* params: laid out as a C struct of the parameters. An op's own code: no locks. */
	CUresult (*run)(struct sim_context *context, const void *params);
};

extern const struct sim_kernel sim_kernels[];
extern const unsigned sim_kernel_count;

/* NULL: no such kernel. */
const struct sim_kernel *sim_kernel_named(const char *name);

/* Where parameter `index` lies in the laid out list; the whole size for the index
 * one behind the last. Naturally aligned, as the CUDA ABI has it. */
size_t sim_kernel_offset(const struct sim_kernel *kernel, unsigned index);

/* The launch enqueued on a stream. params is copied. */
CUresult sim_kernel_enqueue(struct sim_stream *stream, const struct sim_kernel *kernel,
			    const void *params);

#endif
