/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: creation and end, primary contexts, the current one. */
#include "context.h"

#define FLAGS_KNOWN                                                        \
	(CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | \
	 CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE | CU_CTX_SYNC_MEMOPS)

static CUresult create(CUcontext *pctx, unsigned flags, CUdevice dev)
{
	CUresult ready = sim_ready();
	struct sim_context *context;

	if (ready != CUDA_SUCCESS)
		return ready;
	if (!pctx || flags & ~(unsigned)FLAGS_KNOWN)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	context = sim_context_new(sim_device(dev), flags, false);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!sim_stack_push(context)) {
		sim_context_destroy(context);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pctx = (CUcontext)context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return create(pctx, flags, dev);
}

SIM_API CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return create(pctx, flags, dev);
}

SIM_API CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
				unsigned int flags, CUdevice dev)
{
	/* Affinity to a share of the SMs is an MPS client's matter. */
	if (numParams < 0 || (numParams && !paramsArray))
		return CUDA_ERROR_INVALID_VALUE;
	if (numParams)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
						   : sim_ready();
	return create(pctx, flags, dev);
}

SIM_API CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
				unsigned int flags, CUdevice dev)
{
	if (ctxCreateParams &&
	    (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : sim_ready();
	return create(pctx, flags, dev);
}

static CUresult destroy(CUcontext ctx)
{
	struct sim_context *context;
	CUresult result;

	if (!ctx)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : sim_ready();
	result = sim_context_get(ctx, &context);
	if (result != CUDA_SUCCESS)
		return result;
	if (context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	/* Only one caller gets past here. */
	if (!atomic_exchange(&context->users, 0))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	result = sim_context_error(context);
	sim_context_destroy(context);
	sim_stack_forget(context);
	return result;
}

SIM_API CUresult cuCtxDestroy(CUcontext ctx)
{
	return destroy(ctx);
}

SIM_API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	return destroy(ctx);
}

SIM_API CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx || flags)
		return CUDA_ERROR_INVALID_VALUE;
	atomic_fetch_add(&context->users, 1);
	*pctx = (CUcontext)context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDetach(CUcontext ctx)
{
	struct sim_context *context;
	CUresult result = sim_context_get(ctx, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (atomic_load(&context->users) > 1) {
		atomic_fetch_sub(&context->users, 1);
		return CUDA_SUCCESS;
	}
	return destroy((CUcontext)context);
}

/* ---- the current context ------------------------------------------------------ */

static CUresult push(CUcontext ctx)
{
	struct sim_context *context;
	CUresult result;

	if (!ctx)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : sim_ready();
	result = sim_context_get(ctx, &context);
	if (result != CUDA_SUCCESS)
		return result;
	return sim_stack_push(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult pop(CUcontext *pctx)
{
	CUresult ready = sim_ready();
	struct sim_context *context;

	if (ready != CUDA_SUCCESS)
		return ready;
	context = sim_stack_pop();
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (pctx)
		*pctx = (CUcontext)context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return push(ctx);
}

SIM_API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	return push(ctx);
}

SIM_API CUresult cuCtxPopCurrent(CUcontext *pctx)
{
	return pop(pctx);
}

SIM_API CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	return pop(pctx);
}

SIM_API CUresult cuCtxSetCurrent(CUcontext ctx)
{
	struct sim_context *context;
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!ctx) {
		sim_stack_pop();
		return CUDA_SUCCESS;
	}
	result = sim_context_get(ctx, &context);
	if (result != CUDA_SUCCESS)
		return result;
	sim_stack_pop();
	return sim_stack_push(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	CUresult ready = sim_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = (CUcontext)sim_stack_top();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice(CUdevice *device)
{
	struct sim_context *context;
	CUresult result = sim_current_any(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = context->device->ordinal;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	struct sim_context *context;
	CUresult result = sim_context_get(ctx, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = context->device->ordinal;
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext ctx)
{
	struct sim_context *context;
	CUresult result = sim_context_get(ctx, &context);

	if (result == CUDA_SUCCESS)
		result = sim_context_error(context);
	if (result == CUDA_SUCCESS)
		result = sim_capture_unsafe_call(context);
	return result == CUDA_SUCCESS ? sim_context_wait(context) : result;
}

SIM_API CUresult cuCtxSynchronize(void)
{
	return synchronize(NULL);
}

SIM_API CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	return synchronize(ctx);
}

SIM_API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
	struct sim_context *context;
	CUresult result = sim_context_get(ctx, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!ctxId)
		return CUDA_ERROR_INVALID_VALUE;
	*ctxId = context->id;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetFlags(unsigned int *flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetFlags(unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags & ~(unsigned)FLAGS_KNOWN)
		return CUDA_ERROR_INVALID_VALUE;
	context->flags = flags;
	return CUDA_SUCCESS;
}
