/* SPDX-License-Identifier: Apache-2.0 */
/* Putting in force the guard that gksmd chose for a GPU. */
#ifndef GKSM_GUARD_CLIENT_H
#define GKSM_GUARD_CLIENT_H

#include <stdint.h>

#include "gksm/protocol.h"

struct gksm;
struct gksm_gpu;

/* The guards this process could use, as bits for HELLO. */
uint64_t gksm_guards_possible(struct gksm *process);

/*
 * gksmd answered GPU_OPEN: takes over its terms, opens the guard and starts the COW
 * thread if that has not been done. Any thread. If the guard cannot be had the GPU
 * stays private, and the reason is reported.
 */
void gksm_guard_start(struct gksm_gpu *gpu, const struct gksm_gpu_opened *opened);

#endif
