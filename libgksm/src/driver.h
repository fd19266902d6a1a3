/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver's entry points.
 *
 * The list is generated from cuda.h (libgksm/gen): every name the header declares,
 * under its ELF name, is a member here, so nothing has to be added by hand. A
 * member is NULL where the installed driver has no such symbol: a wrapper of a
 * symbol the driver lacks is never handed out by cuGetProcAddress, but dlsym can
 * reach it, so wrappers ask through GKSM_REAL (wrap.h).
 */
#ifndef GKSM_DRIVER_H
#define GKSM_DRIVER_H

#include "cuda_abi.h"
#include "gksm_entry_points.h"

struct gksm_driver {
#define X(name) __typeof__(name) *name;
	GKSM_ENTRY_POINTS(X)
#undef X
};

/* The driver's dlopen handle, for symbols that are no CUDA entry points
 * (simcudaGuardOpen). NULL: no driver. */
void *gksm_driver_handle(void);

/* dlsym on the driver's handle; NULL when there is none. */
void *gksm_driver_symbol(const char *name);

/* The path it was opened by; "" when there is none. */
const char *gksm_driver_path(void);

#endif
