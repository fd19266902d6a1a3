/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/functions.h"

#include <stdbool.h>
#include <stdlib.h>

#include "interpose/outside.h"
#include "wrap.h"

static struct gksm_functions *functions_of(struct gksm *process)
{
	struct gksm_functions *functions = __atomic_load_n(&process->functions, __ATOMIC_ACQUIRE);
	struct gksm_functions *fresh;

	if (functions)
		return functions;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (__atomic_compare_exchange_n(&process->functions, &functions, fresh, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	free(fresh);
	return functions;
}

static void remember(struct gksm_functions *functions, CUfunction function)
{
	for (unsigned i = 0; i < GKSM_FUNCTION_PROBES; i++) {
		CUfunction none = NULL;

		if (atomic_compare_exchange_strong(
			    &functions->slots[gksm_function_slot(function, i)], &none, function))
			return;
	}
}

void gksm_function_first(struct gksm *process, CUfunction function)
{
	struct gksm_functions *functions = functions_of(process);
	CUfunctionLoadingState state;

	if (gksm_guard_in_force(process, GKSM_GUARD_FAULT) &&
	    /* A driver that cannot tell, or a CUkernel, which it does not tell about. */
	    (GKSM_REAL(cuFuncIsLoaded)(&state, function) != CUDA_SUCCESS ||
	     state != CU_FUNCTION_LOADING_STATE_LOADED))
		gksm_wait_outside(process, GKSM_OUTSIDE_MS);
	/* Also without the guard: what was launched is loaded when it comes into force. */
	if (functions)
		remember(functions, function);
}
