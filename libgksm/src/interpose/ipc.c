/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC. Memory of the arena, and handles of such memory, are ours to serve; the
 * driver knows about all others. Events are the driver's in any case.
 */
#include "ipc.h"

#include "interpose/outside.h"
#include "streams.h"
#include "wrap.h"

GKSM_WRAP(cuIpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr address)
{
	struct gksm *process = gksm_process();
	struct gksm_relaxed relaxed;
	CUresult result;

	if (!process || !gksm_is_ours(process, address))
		return GKSM_REAL(cuIpcGetMemHandle)(handle, address);
	gksm_relaxed_enter(process, &relaxed);
	result = gksm_ipc_export(process, address, handle);
	gksm_relaxed_leave(&relaxed);
	return result;
}

static bool open_ours(const CUipcMemHandle *handle, unsigned flags, CUdeviceptr *address,
		      CUresult *result)
{
	struct gksm *process = gksm_process();
	struct gksm_relaxed relaxed;
	bool ours;

	if (!process)
		return false;
	gksm_relaxed_enter(process, &relaxed);
	ours = gksm_ipc_open(process, handle, flags, address, result);
	gksm_relaxed_leave(&relaxed);
	return ours;
}

GKSM_WRAP(cuIpcOpenMemHandle)(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	CUresult result;

	if (open_ours(&handle, flags, address, &result))
		return result;
	return GKSM_REAL(cuIpcOpenMemHandle)(address, handle, flags);
}

GKSM_WRAP(cuIpcOpenMemHandle_v2)(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	CUresult result;

	if (open_ours(&handle, flags, address, &result))
		return result;
	return GKSM_REAL(cuIpcOpenMemHandle_v2)(address, handle, flags);
}

GKSM_WRAP(cuIpcCloseMemHandle)(CUdeviceptr address)
{
	struct gksm *process = gksm_process();
	struct gksm_relaxed relaxed;
	CUresult result;
	bool ours;

	if (process) {
		gksm_relaxed_enter(process, &relaxed);
		ours = gksm_ipc_close(process, address, &result);
		gksm_relaxed_leave(&relaxed);
		if (ours)
			return result;
		/* It may wait for the GPU in the driver, as cuMemFree does. */
		gksm_wait_outside(process, GKSM_OUTSIDE_MS);
	}
	return GKSM_REAL(cuIpcCloseMemHandle)(address);
}
