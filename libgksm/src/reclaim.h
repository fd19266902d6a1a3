/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that nobody maps (warm pages) makes way for an allocation of the application.
 *
 * gksmd is asked, and waited for, one second at most: never while a page is BUSY, a fault
 * is held, or anything else that others wait for is.
 */
#ifndef GKSM_RECLAIM_H
#define GKSM_RECLAIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gksm;
struct gksm_gpu;
struct gksm_span;

/* The GPU has no memory for `bytes`. true: some was freed, so trying once more makes
 * sense. 0 bytes: only what makes way already is waited for. */
bool gksm_reclaim(struct gksm_gpu *gpu, uint64_t bytes);

/* The same for the GPUs of the spans, all of whose pages may need memory of their own. */
bool gksm_reclaim_spans(struct gksm *process, const struct gksm_span *spans, size_t count);

#endif
