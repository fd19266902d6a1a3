/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels are loaded when they are first launched (lazy loading is the default since
 * CUDA 12), and loading waits for the GPU inside the driver as a module load does
 * (outside.h). So a function that is not loaded yet is waited for before its launch;
 * after that it costs one look into a table.
 */
#ifndef GKSM_FUNCTIONS_H
#define GKSM_FUNCTIONS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "process.h"

#define GKSM_FUNCTION_SLOTS 4096u /* a power of two */
#define GKSM_FUNCTION_PROBES 4u

/* Functions that were launched. One that is unloaded stays; another that gets its
 * address is then launched without the wait, as all were before. */
struct gksm_functions {
	_Atomic(CUfunction) slots[GKSM_FUNCTION_SLOTS];
};

/* The first launch, or one that found no room in the table. */
void gksm_function_first(struct gksm *process, CUfunction function);

static inline size_t gksm_function_slot(CUfunction function, unsigned probe)
{
	return (((uintptr_t)function >> 4) * 0x9e3779b1u + probe) % GKSM_FUNCTION_SLOTS;
}

/* Before every launch. */
static inline void gksm_function_launched(struct gksm *process, CUfunction function)
{
	struct gksm_functions *functions = __atomic_load_n(&process->functions, __ATOMIC_ACQUIRE);

	for (unsigned i = 0; functions && i < GKSM_FUNCTION_PROBES; i++)
		if (atomic_load_explicit(&functions->slots[gksm_function_slot(function, i)],
					 memory_order_relaxed) == function)
			return;
	gksm_function_first(process, function);
}

#endif
