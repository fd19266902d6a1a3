/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a context: limits, cache preferences, peers. */
#include <stdlib.h>

#include "context_api.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct sim_surface *sim_surface_of(struct sim_context *context)
{
	pthread_mutex_lock(&lock);
	if (!context->surface)
		context->surface = calloc(1, sizeof(struct sim_surface));
	struct sim_surface *surface = context->surface;
	pthread_mutex_unlock(&lock);
	return surface;
}

void sim_surface_context_gone(struct sim_context *context)
{
	pthread_mutex_lock(&lock);
	struct sim_surface *surface = context->surface;
	context->surface = NULL;
	pthread_mutex_unlock(&lock);
	if (!surface)
		return;
	sim_modules_context_gone(surface);
	free(surface);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if ((int)limit < 0 || limit >= CU_LIMIT_MAX)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if ((int)limit < 0 || limit >= CU_LIMIT_MAX)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	result = sim_capture_unsafe_call(context);
	/* Resizing what running work uses waits for that work. */
	if (result == CUDA_SUCCESS)
		result = sim_context_quiesce(context);
	if (result == CUDA_SUCCESS)
		context->limits[limit] = value;
	return result;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = context->cache_config;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (config > CU_FUNC_CACHE_PREFER_EQUAL)
		return CUDA_ERROR_INVALID_VALUE;
	context->cache_config = config;
	return CUDA_SUCCESS;
}

/* The bank size is fixed on this architecture; setting it has no effect. */
CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
								  : CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	struct sim_context *context;
	CUresult result = sim_context_get(handle, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!affinity || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_root.config.claim != SIM_CLAIM_MPS)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	affinity->type = type;
	affinity->param.smCount.val = sim_sm_count();
	return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
	struct sim_context *context;

	return sim_current(&context);
}

/* Peer access is to plain memory; mapped memory has rights of its own (reach.c). */
static CUresult peer_set(CUcontext handle, bool wanted, CUresult otherwise)
{
	struct sim_context *context, *peer;
	CUresult result = sim_current(&context);
	uint32_t bit, before;

	if (result == CUDA_SUCCESS)
		result = handle ? sim_context_get(handle, &peer) : CUDA_ERROR_INVALID_CONTEXT;
	if (result != CUDA_SUCCESS)
		return result;
	if (peer == context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer->device == context->device || sim_root.config.claim == SIM_CLAIM_MIG)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	bit = 1u << peer->device->ordinal;
	before = wanted ? atomic_fetch_or(&context->peers, bit)
			: atomic_fetch_and(&context->peers, ~bit);
	return !(before & bit) == !wanted ? otherwise : CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return peer_set(peer, true, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	return peer_set(peer, false, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}
