/* SPDX-License-Identifier: Apache-2.0 */
/* Whether network cards and other devices may be let at the arena's pages. */
#ifndef GKSM_RDMA_H
#define GKSM_RDMA_H

struct gksm_gpu;

/*
 * Asks for memory that other devices can read and write (GPUDirect RDMA), as cuMemAlloc
 * memory is, if the GPU offers that and such a page can be mapped: gpu->prop says so from
 * then on. Once, when the arena is reserved and nobody else knows it; the context must be
 * current.
 */
void gksm_rdma_settle(struct gksm_gpu *gpu);

#endif
