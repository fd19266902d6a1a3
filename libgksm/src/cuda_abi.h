/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver API under the names its ELF symbols have.
 *
 * An application sees cuMemAlloc and gets cuMemAlloc_v2 by macro. We export and
 * call the symbols themselves, old ABI variants and the per-thread ones (_ptds,
 * _ptsz) included, so nothing here may depend on which of them a macro of this
 * year's header picks. With __CUDA_API_VERSION_INTERNAL cuda.h takes its renaming
 * macros back and declares every variant under its own name: 685 of them in 13.5,
 * a superset of those of 12.4 and 12.9 (tests/unit/test_entry_points.py).
 */
#ifndef GKSM_CUDA_ABI_H
#define GKSM_CUDA_ABI_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

/* An inline function in cuda.h, an exported symbol of newer drivers. */
CUresult CUDAAPI cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int cudaVersion,
					  cuuint64_t flags,
					  CUdriverProcAddressQueryResult *symbolStatus);

/* Visible outside libgksm.so; all else is hidden. */
#define GKSM_EXPORT __attribute__((visibility("default")))

#endif
