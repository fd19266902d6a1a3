/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"
#include "surface.h"

_Thread_local int sim_per_thread_calls;

int sim_missing(void)
{
	CUresult ready = sim_ready();

	return ready == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : ready;
}

CUstream sim_own_stream(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}
