/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared private pages: created and mapped read-write at a scratch address before
 * they are needed, so that a held fault costs no creation. The COW thread's own.
 */
#ifndef GKSM_SPARES_H
#define GKSM_SPARES_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "privatize.h"

struct gksm_gpu;

#define GKSM_SPARES_MAX 64

enum gksm_spare_state { GKSM_SPARE_EMPTY, GKSM_SPARE_READY, GKSM_SPARE_USED };

struct gksm_spares {
	struct gksm_gpu *gpu;
	CUdeviceptr base;
	CUmemGenericAllocationHandle handle[GKSM_SPARES_MAX];
	unsigned char state[GKSM_SPARES_MAX]; /* enum gksm_spare_state */
};

/* Reserves addresses only. 0 or -ENOMEM. */
int gksm_spares_init(struct gksm_spares *spares, struct gksm_gpu *gpu);

/* false: none is ready. A taken spare is used up with gksm_spares_used or handed back
 * with gksm_spares_return. */
bool gksm_spares_take(struct gksm_spares *spares, struct gksm_backing *backing);
void gksm_spares_return(struct gksm_spares *spares, const struct gksm_backing *backing);

/* Instead of handing it back: it may have been written to, and whoever takes a spare
 * relies on its zeros. */
void gksm_spares_spoil(struct gksm_spares *spares, const struct gksm_backing *backing);

/* After the faults are answered: unmaps the scratch addresses of used spares, prepares
 * new ones up to what the number of shared pages asks for, gives back what is too
 * much. */
void gksm_spares_refill(struct gksm_spares *spares);

#endif
