/* SPDX-License-Identifier: Apache-2.0 */
/* Merging what was declared finished, under the `seal` guard. */
#ifndef GKSM_SEAL_H
#define GKSM_SEAL_H

#include <stdint.h>

struct gksm_gpu;

/*
 * Offers the private pages of [first, end) for sharing: each is read back, hashed,
 * looked up, and attached or published, while nothing runs. Pages that cannot be
 * (pinned, gksmd away, work that does not end) stay private. 0, or -EIO when the
 * context is dead. Under other guards than `seal` it does nothing.
 */
int gksm_seal_pages(struct gksm_gpu *gpu, uint64_t first, uint64_t end);

#endif
