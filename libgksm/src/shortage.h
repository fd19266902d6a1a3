/* SPDX-License-Identifier: Apache-2.0 */
/* The last resort when the driver has no memory left. */
#ifndef GKSM_SHORTAGE_H
#define GKSM_SHORTAGE_H

#include <stdint.h>

#include "cuda_abi.h"
#include "page.h"

struct gksm_gpu;
struct gksm_privatize;

/*
 * A page of memory from warm pages that gksmd gives up for it. Waits at most timeout_ms,
 * for gksmd and for the memory to come free. *handle is the caller's. 0 or -ENOMEM; after
 * that it is -ENOMEM at once for a second, so that a thousand writes without memory do
 * not wait a thousand times.
 */
int gksm_shortage_create(struct gksm_gpu *gpu, unsigned timeout_ms,
			 CUmemGenericAllocationHandle *handle);

/*
 * gksm_privatize with such a page, after one that came back with -ENOMEM and put the page
 * back into `from`. As that one, or -EAGAIN: somebody else has taken the page meanwhile.
 */
int gksm_shortage_privatize(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
			    struct gksm_privatize *how, unsigned timeout_ms);

#endif
