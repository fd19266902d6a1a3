/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call waits for before it enters the launch gate. Both return at once when
 * nothing needs waiting for, and answer no error: what is left to do is met again, inside
 * the gate, by the walk over the call's pages.
 */
#ifndef GKSM_ACCESS_WAIT_H
#define GKSM_ACCESS_WAIT_H

#include <stddef.h>

#include "cuda_abi.h"

struct gksm;
struct gksm_span;

/* Without a fault guard: makes the shared pages that the call writes private, once
 * nothing that runs can touch them. Reported once when that takes longer than a drain. */
void gksm_wait_to_write(struct gksm *process, const struct gksm_span *spans, size_t count);

/* With one: waits up to drain_ms for work that may yet write to the shared pages that the
 * call, made in `context`, reads. */
void gksm_wait_to_read(struct gksm *process, const struct gksm_span *spans, size_t count,
		       CUcontext context);

#endif
