/* SPDX-License-Identifier: Apache-2.0 */
/* Peer access: the driver gives it to its own memory, we to the arena's. */
#include "peers.h"

#include "streams.h"
#include "wrap.h"

static CUcontext current_context(struct gksm *process)
{
	CUcontext context = NULL;

	process->driver.cuCtxGetCurrent(&context);
	return context;
}

GKSM_WRAP(cuCtxEnablePeerAccess)(CUcontext peer, unsigned int flags)
{
	CUresult result = GKSM_REAL(cuCtxEnablePeerAccess)(peer, flags);
	struct gksm *process = gksm_process();
	struct gksm_relaxed relaxed;

	if (!process || result != CUDA_SUCCESS)
		return result;
	gksm_relaxed_enter(process, &relaxed);
	result = gksm_peers_enabled(process, current_context(process), peer);
	if (result != CUDA_SUCCESS)
		GKSM_REAL(cuCtxDisablePeerAccess)(peer);
	gksm_relaxed_leave(&relaxed);
	return result;
}

GKSM_WRAP(cuCtxDisablePeerAccess)(CUcontext peer)
{
	CUresult result = GKSM_REAL(cuCtxDisablePeerAccess)(peer);
	struct gksm *process = gksm_process();

	if (process && result == CUDA_SUCCESS)
		gksm_peers_disabled(process, current_context(process), peer);
	return result;
}
