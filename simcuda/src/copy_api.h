/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_COPY_API_H
#define SIM_COPY_API_H

#include "sim.h"

enum sim_copy_mode {
	SIM_COPY_ASYNC,
	SIM_COPY_SYNC /* waits, unless both ends are on a device */
};

/* A copy call: resolves the stream, checks, captures or enqueues. */
CUresult sim_copy_call(CUstream stream, const CUDA_MEMCPY3D_PEER *shape, enum sim_copy_mode mode);

/* One row between two addresses. */
CUresult sim_copy_row(CUstream stream, CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type,
		      CUdeviceptr from, size_t bytes, enum sim_copy_mode mode);

#endif
