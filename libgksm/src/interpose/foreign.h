/* SPDX-License-Identifier: Apache-2.0 */
/* What the program gets from the driver itself, for the count of it. */
#ifndef GKSM_INTERPOSE_FOREIGN_H
#define GKSM_INTERPOSE_FOREIGN_H

#include <stdint.h>

#include "cuda_abi.h"

struct gksm;

/* The driver allocated that in the current context. */
void gksm_foreign_made(struct gksm *process, CUdeviceptr address, uint64_t bytes);

/* It is about to be freed: afterwards another thread may have got the address anew. */
void gksm_foreign_ends(struct gksm *process, CUdeviceptr address);

#endif
