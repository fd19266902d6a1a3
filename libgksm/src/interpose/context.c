/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts take their memory with them. VMM memory would survive, so what was
 * allocated in a context is freed before the driver ends it: at its destruction, at a
 * reset, and at the last release of a primary context.
 */
#include "alloc.h"
#include "ipc.h"
#include "peers.h"
#include "streams.h"
#include "wrap.h"

static void made(CUresult result, const CUcontext *context, CUdevice device)
{
	struct gksm *process = gksm_process();

	if (process && result == CUDA_SUCCESS)
		gksm_context_known(process, *context, device);
}

static void ends(struct gksm *process, CUcontext context)
{
	if (!context)
		return;
	gksm_ipc_context_gone(process, context);
	gksm_peers_context_gone(process, context);
	gksm_context_gone(process, context);
	gksm_context_streams_gone(process, context);
}

GKSM_WRAP(cuCtxCreate)(CUcontext *context, unsigned int flags, CUdevice device)
{
	CUresult result = GKSM_REAL(cuCtxCreate)(context, flags, device);

	made(result, context, device);
	return result;
}

GKSM_WRAP(cuCtxCreate_v2)(CUcontext *context, unsigned int flags, CUdevice device)
{
	CUresult result = GKSM_REAL(cuCtxCreate_v2)(context, flags, device);

	made(result, context, device);
	return result;
}

GKSM_WRAP(cuCtxCreate_v3)(CUcontext *context, CUexecAffinityParam *parameters, int count,
			  unsigned int flags, CUdevice device)
{
	CUresult result = GKSM_REAL(cuCtxCreate_v3)(context, parameters, count, flags, device);

	made(result, context, device);
	return result;
}

GKSM_WRAP(cuCtxCreate_v4)(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
			  CUdevice device)
{
	CUresult result = GKSM_REAL(cuCtxCreate_v4)(context, parameters, flags, device);

	made(result, context, device);
	return result;
}

static CUresult destroy(__typeof__(cuCtxDestroy_v2) *real, CUcontext context)
{
	struct gksm *process = gksm_process();

	if (process)
		ends(process, context);
	return real(context);
}

GKSM_WRAP(cuCtxDestroy)(CUcontext context)
{
	return destroy(GKSM_REAL(cuCtxDestroy), context);
}

GKSM_WRAP(cuCtxDestroy_v2)(CUcontext context)
{
	return destroy(GKSM_REAL(cuCtxDestroy_v2), context);
}

/* Of before 4.0, when contexts were counted; now it destroys. */
GKSM_WRAP(cuCtxDetach)(CUcontext context)
{
	return destroy(GKSM_REAL(cuCtxDetach), context);
}

/* Its memory is the primary context's, and stays. */
GKSM_WRAP(cuGreenCtxDestroy)(CUgreenCtx green)
{
	struct gksm *process = gksm_process();
	CUcontext context = NULL;

	if (process && GKSM_REAL(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS)
		gksm_green_context_gone(process, context);
	return GKSM_REAL(cuGreenCtxDestroy)(green);
}

static struct gksm_primary *primary_of(struct gksm *process, CUdevice device)
{
	return process && device >= 0 && device < GKSM_GPUS_MAX ? &process->primaries[device]
								: NULL;
}

GKSM_WRAP(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device)
{
	CUresult result = GKSM_REAL(cuDevicePrimaryCtxRetain)(context, device);
	struct gksm *process = gksm_process();
	struct gksm_primary *primary = primary_of(process, device);

	made(result, context, device);
	if (primary && result == CUDA_SUCCESS) {
		atomic_store(&primary->context, *context);
		atomic_fetch_add(&primary->retained, 1);
	}
	return result;
}

/* The count is the program's own (its CUDA runtime's included): nothing in libgksm
 * retains a primary context. */
static CUresult release(__typeof__(cuDevicePrimaryCtxRelease_v2) *real, CUdevice device)
{
	struct gksm *process = gksm_process();
	struct gksm_primary *primary = primary_of(process, device);
	uint32_t retained = primary ? atomic_load(&primary->retained) : 0;

	while (retained &&
	       !atomic_compare_exchange_weak(&primary->retained, &retained, retained - 1))
		;
	if (retained == 1)
		ends(process, atomic_exchange(&primary->context, NULL));
	return real(device);
}

GKSM_WRAP(cuDevicePrimaryCtxRelease)(CUdevice device)
{
	return release(GKSM_REAL(cuDevicePrimaryCtxRelease), device);
}

GKSM_WRAP(cuDevicePrimaryCtxRelease_v2)(CUdevice device)
{
	return release(GKSM_REAL(cuDevicePrimaryCtxRelease_v2), device);
}

static CUresult reset(__typeof__(cuDevicePrimaryCtxReset_v2) *real, CUdevice device)
{
	struct gksm *process = gksm_process();
	struct gksm_primary *primary = primary_of(process, device);
	unsigned flags;
	int active = 0;
	CUresult result;

	if (primary)
		ends(process, atomic_load(&primary->context));
	result = real(device);
	/* Whether a reset takes the references along is the driver's to say. */
	if (primary &&
	    GKSM_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS &&
	    !active)
		atomic_store(&primary->retained, 0);
	return result;
}

GKSM_WRAP(cuDevicePrimaryCtxReset)(CUdevice device)
{
	return reset(GKSM_REAL(cuDevicePrimaryCtxReset), device);
}

GKSM_WRAP(cuDevicePrimaryCtxReset_v2)(CUdevice device)
{
	return reset(GKSM_REAL(cuDevicePrimaryCtxReset_v2), device);
}
