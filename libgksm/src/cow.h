/* SPDX-License-Identifier: Apache-2.0 */
/* The COW thread: one for each GPU of a process. */
#ifndef GKSM_COW_H
#define GKSM_COW_H

struct gksm_gpu;

/* Starts the thread, its spares first. Once, before the GPU's guard is in force. 0 or a
 * negative errno. */
int gksm_cow_start(struct gksm_gpu *gpu);

/* Asks the thread to make every shared page private, as far as memory allows. Does not
 * wait. */
void gksm_cow_unshare(struct gksm_gpu *gpu);

/* Pages were shared or left: has the spares looked after soon. */
void gksm_cow_wake(struct gksm_gpu *gpu);

#endif
