/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How to wrap an entry point.
 *
 * exports.S (generated) defines every known cu* name as a weak symbol that jumps to
 * the driver. A function of that name anywhere in libgksm/src takes the stub's
 * place, and nothing else has to be told: cuGetProcAddress, too, then hands out
 * the function instead of the driver's address. Write
 *
 *     GKSM_WRAP(cuMemAlloc_v2)(CUdeviceptr *dptr, size_t bytesize)
 *     {
 *             struct gksm *process = gksm_process();
 *             CUresult result;
 *
 *             if (process && gksm_alloc(process, dptr, bytesize, &result))
 *                     return result;
 *             return GKSM_REAL(cuMemAlloc_v2)(dptr, bytesize);
 *     }
 *
 * for each ELF name on its own: _v2, _ptsz and _ptds variants are separate symbols
 * with separate meanings, and each calls the real one of its own name. The compiler
 * checks the arguments against cuda.h. Names without a wrapper must be in
 * libgksm/gen/passthrough.txt if they touch memory (tests/unit/test_entry_points.py).
 *
 * Never call a cu* function by its plain name inside libgksm: that is the wrapper.
 */
#ifndef GKSM_WRAP_H
#define GKSM_WRAP_H

#include <stddef.h>

#include "driver.h"
#include "process.h"

#define GKSM_WRAP(name) GKSM_EXPORT CUresult CUDAAPI name

/*
 * The real entry point of that name; never NULL: without a driver, or where the
 * driver lacks the symbol, it is a function that returns the error the caller
 * would have met otherwise (gksm_absent). Usable at any time, also before cuInit
 * and in forked children.
 */
#define GKSM_REAL(name) ((__typeof__(name) *)gksm_real(offsetof(struct gksm_driver, name)))

void *gksm_real(size_t member_offset);

#endif
