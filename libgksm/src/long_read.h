/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page that a copy engine reads cannot be remapped until it has been read, and a fault
 * on it waits meanwhile, until the deadline of a held fault. So a long copy of shared
 * pages to the host is enqueued in parts, the next when the last is done: a fault then
 * waits for one part at most. Asynchronous calls return when their last part is enqueued,
 * as they do when a stream is full.
 */
#ifndef GKSM_LONG_READ_H
#define GKSM_LONG_READ_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

struct gksm;

/*
 * How many bytes of a linear copy the next call to the driver is to copy: `bytes`, unless
 * it is a long one of shared pages to the host. `first`: none of it is enqueued yet; else
 * waits for what is, bounded.
 */
size_t gksm_read_part(struct gksm *process, CUdeviceptr destination, CUdeviceptr source,
		      size_t bytes, CUstream stream, bool first);

#endif
