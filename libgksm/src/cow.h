/* SPDX-License-Identifier: Apache-2.0 */
/* The COW thread: one for each GPU of a process. */
#ifndef GKSM_COW_H
#define GKSM_COW_H

#include <stdbool.h>
#include <stdint.h>

struct gksm_gpu;

/* Starts the thread, its spares first. Once, before the GPU's guard is in force. 0 or a
 * negative errno. */
int gksm_cow_start(struct gksm_gpu *gpu);

/* Asks the thread to make every shared page private, as far as memory allows. Does not
 * wait. */
void gksm_cow_unshare(struct gksm_gpu *gpu);

/* gksmd says that memory is short, or is not any more: the thread keeps fewer spares and
 * backs so many more of the unbacked pages. Does not wait. */
void gksm_cow_pressure(struct gksm_gpu *gpu, bool memory_short, uint64_t pages);

/* Pages were shared or left: has the spares looked after soon. */
void gksm_cow_wake(struct gksm_gpu *gpu);

#endif
