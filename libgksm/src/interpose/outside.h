/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting outside the driver.
 *
 * A thread that sits in cuMemFree, cuMemFreeHost, a module load or cuCtxSetLimit
 * behind a grid keeps the copies of every other thread of its context from starting
 * (measured: docs and notes on the COW thread). If that grid stands on a held fault,
 * the COW thread's copy is what it waits for. So the wait is done before the driver is
 * entered, by polling.
 */
#ifndef GKSM_OUTSIDE_H
#define GKSM_OUTSIDE_H

#include <stdbool.h>

#include "gksm/protocol.h"

struct gksm;

/* How long a call may be kept that would not always have waited for the GPU: a program
 * may be about to end the very kernel we wait for. */
#define GKSM_OUTSIDE_MS 2000

/* Under the fault guard, waits until the current context's work is done; timeout_ms < 0:
 * as long as it takes, for calls that wait for it anyway. Else returns at once. */
void gksm_wait_outside(struct gksm *process, int timeout_ms);

/* true: some GPU of the process is under that guard. */
bool gksm_guard_in_force(struct gksm *process, enum gksm_guard guard);

#endif
