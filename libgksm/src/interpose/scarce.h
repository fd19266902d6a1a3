/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations that stay the driver's own, tried again as long as memory can be had. */
#ifndef GKSM_SCARCE_H
#define GKSM_SCARCE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

/* `result` is the driver's answer to an allocation of `bytes` on the current context's
 * device. true: it had no memory, and some has been freed since; asked again and again it comes
 * to an end, for what is freed is gone. */
bool gksm_memory_freed(CUresult result, size_t bytes);

/* In stream order: a capture must not wait for gksmd. */
bool gksm_memory_freed_for_stream(CUresult result, size_t bytes, CUstream stream);

/* For a handle, whose device is in its properties. */
bool gksm_memory_freed_for_handle(CUresult result, size_t bytes, const CUmemAllocationProp *prop);

#endif
