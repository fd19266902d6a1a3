/* SPDX-License-Identifier: Apache-2.0 */
/* The few driver calls that change what lies at an address. */
#ifndef GKSM_MAP_H
#define GKSM_MAP_H

#include "cuda_abi.h"

struct gksm_gpu;

/* A new zero-filled page of memory. 0, -ENOMEM, or -EIO (the context is dead). */
int gksm_handle_create(struct gksm_gpu *gpu, CUmemGenericAllocationHandle *handle);
void gksm_handle_release(struct gksm_gpu *gpu, CUmemGenericAllocationHandle handle);

/* Takes over nothing: the fd stays the caller's. 0 or -EIO. */
int gksm_handle_import(struct gksm_gpu *gpu, int fd, CUmemGenericAllocationHandle *handle);

/* *fd (CLOEXEC) is the caller's. 0, -EMFILE or -EIO. */
int gksm_handle_export(struct gksm_gpu *gpu, CUmemGenericAllocationHandle handle, int *fd);

/* Rights to a mapped page, for its own GPU and for peers that may reach it. If it had any,
 * it has none for a moment. 0 or -EIO. */
int gksm_protect(struct gksm_gpu *gpu, CUdeviceptr address, const CUmemAccessDesc *access);

/* One page at a 2 MiB-aligned address where nothing is mapped. 0 or -EIO; nothing is
 * mapped then. */
int gksm_map(struct gksm_gpu *gpu, CUdeviceptr address, CUmemGenericAllocationHandle handle,
	     const CUmemAccessDesc *access);
void gksm_unmap(struct gksm_gpu *gpu, CUdeviceptr address);

#endif
