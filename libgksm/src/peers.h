/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peer access to arena memory (cuCtxEnablePeerAccess), which VMM mappings know nothing of.
 *
 * A page that another GPU may reach cannot be shared. The guard of its own GPU does not
 * hold that other GPU's faults, so a write from there to a read-only page, a touch of an
 * unbacked one, or a mere read while the page is remapped for somebody else's write kills
 * the context that did it. To tell the peers' reads from their writes, or to drain them
 * before each remap, would not do either: a held fault's answer must not wait for another
 * GPU. So while a peer has access, all allocations of the arena are backed, private and
 * pinned, those to come included, and every page is mapped with rights for the peers too.
 * Kept by device, not by context: what a context of the same device may reach beyond what
 * it asked for harms nobody.
 */
#ifndef GKSM_PEERS_H
#define GKSM_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct gksm;
struct gksm_gpu;

/* Rights for a page of the device: its own, then those of every device that may reach
 * it. access has room for GKSM_GPUS_MAX; how many there are. */
size_t gksm_peers_access(struct gksm *process, CUdevice device, CUmemAccess_flags flags,
			 CUmemAccessDesc *access);

/* true: `from` was given access to the memory of `device`. */
bool gksm_peers_reach(struct gksm *process, CUdevice from, CUdevice device);

/* true: some other device may reach the arena. */
bool gksm_peers_any(const struct gksm_gpu *gpu);

/*
 * The driver has given context `from` access to the memory of context `to`. Waits for
 * running work, since rights cannot change under it. CUDA_SUCCESS, or
 * CUDA_ERROR_OUT_OF_MEMORY: shared pages cannot all be made private; nothing is changed
 * then, and the driver's own access is to be taken back.
 */
CUresult gksm_peers_enabled(struct gksm *process, CUcontext from, CUcontext to);
void gksm_peers_disabled(struct gksm *process, CUcontext from, CUcontext to);

/* The context is about to go, and its access, and the access to it. */
void gksm_peers_context_gone(struct gksm *process, CUcontext context);

/* A new allocation, which nobody has heard of yet. 0 or -ENOMEM. */
int gksm_peers_cover(struct gksm_gpu *gpu, uint32_t slot);

#endif
