/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked of, and set on, functions and kernels; occupancy. */
#include "context_api.h"
#include "live.h"
#include "module.h"

#define THREADS_MAX 1024
#define SHARED_MAX 232448 /* of a block, opted in */
#define SHARED_OF_SM 233472
#define SHARED_RESERVED 1024 /* of each block */
#define REGISTERS 32

const struct sim_kernel *sim_function_kernel(CUfunction function,
					     struct sim_function_settings **settings)
{
	const struct sim_kernel *found = NULL;
	struct sim_function_settings *own = NULL;

	if (sim_live_is(function, SIM_LIVE_FUNCTION)) {
		found = function->kernel;
		own = &function->settings;
	} else if (sim_live_is(function, SIM_LIVE_KERNEL)) {
		CUkernel kernel = (CUkernel)(void *)function;

		found = kernel->kernel;
		own = &kernel->settings;
	}
	if (settings)
		*settings = own;
	return found;
}

/* A ready driver, something to answer into and a live function or kernel. */
static CUresult check(const void *handle, const void *out, const struct sim_kernel **kernel,
		      struct sim_function_settings **settings)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !handle)
		return CUDA_ERROR_INVALID_VALUE;
	*kernel = sim_function_kernel((CUfunction)handle, settings);
	return *kernel ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult get_attribute(const struct sim_function_settings *settings,
			      CUfunction_attribute attribute, int *value)
{
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = THREADS_MAX;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
	case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
	case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = REGISTERS;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = 90;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*value = settings->dynamic_shared;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		*value = settings->carveout;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
		*value = settings->cluster_required;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
		*value = settings->cluster[0];
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
		*value = settings->cluster[1];
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		*value = settings->cluster[2];
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		*value = settings->non_portable_cluster;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		*value = settings->cluster_policy;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult set_attribute(struct sim_function_settings *settings,
			      CUfunction_attribute attribute, int value)
{
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		if (value < 0 || value > SHARED_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		settings->dynamic_shared = value;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		if (value < -1 || value > 100)
			return CUDA_ERROR_INVALID_VALUE;
		settings->carveout = value;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		if (value < 0)
			return CUDA_ERROR_INVALID_VALUE;
		settings->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = value;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		settings->non_portable_cluster = value != 0;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		if (value < 0 || value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING)
			return CUDA_ERROR_INVALID_VALUE;
		settings->cluster_policy = value;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	const struct sim_kernel *kernel;
	struct sim_function_settings *settings;
	CUresult result = check(function, value, &kernel, &settings);

	return result == CUDA_SUCCESS ? get_attribute(settings, attribute, value) : result;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	const struct sim_kernel *kernel;
	struct sim_function_settings *settings;
	CUresult result = check(function, function, &kernel, &settings);

	return result == CUDA_SUCCESS ? set_attribute(settings, attribute, value) : result;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, function, &kernel, NULL);

	if (result == CUDA_SUCCESS && config > CU_FUNC_CACHE_PREFER_EQUAL)
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, function, &kernel, NULL);

	if (result == CUDA_SUCCESS && config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!module || !function)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_live_is(function, SIM_LIVE_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*module = function->module;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, name, &kernel, NULL);

	if (result == CUDA_SUCCESS)
		*name = kernel->name;
	return result;
}

static CUresult param_info(const struct sim_kernel *kernel, size_t index, size_t *offset,
			   size_t *size)
{
	if (index >= kernel->parameters)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = sim_kernel_offset(kernel, (unsigned)index);
	if (size)
		*size = kernel->sizes[index];
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, offset, &kernel, NULL);

	return result == CUDA_SUCCESS ? param_info(kernel, index, offset, size) : result;
}

CUresult cuFuncGetParamCount(CUfunction function, size_t *count)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, count, &kernel, NULL);

	if (result == CUDA_SUCCESS)
		*count = kernel->parameters;
	return result;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, state, &kernel, NULL);

	if (result == CUDA_SUCCESS)
		*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return result;
}

CUresult cuFuncLoad(CUfunction function)
{
	const struct sim_kernel *kernel;

	return check(function, function, &kernel, NULL);
}

static CUresult check_kernel(CUkernel kernel, const void *out, CUdevice ordinal)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !kernel)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_live_is(kernel, SIM_LIVE_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	return sim_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
			      CUdevice ordinal)
{
	CUresult result = check_kernel(kernel, value, ordinal);

	return result == CUDA_SUCCESS ? get_attribute(&kernel->settings, attribute, value) : result;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
			      CUdevice ordinal)
{
	CUresult result = check_kernel(kernel, kernel, ordinal);

	return result == CUDA_SUCCESS ? set_attribute(&kernel->settings, attribute, value) : result;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice ordinal)
{
	CUresult result = check_kernel(kernel, kernel, ordinal);

	if (result == CUDA_SUCCESS && config > CU_FUNC_CACHE_PREFER_EQUAL)
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	return cuFuncGetName(name, (CUfunction)(void *)kernel);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
	return cuFuncGetParamInfo((CUfunction)(void *)kernel, index, offset, size);
}

CUresult cuKernelGetParamCount(CUkernel kernel, size_t *count)
{
	return cuFuncGetParamCount((CUfunction)(void *)kernel, count);
}

/* Blocks of an SM, as threads, registers and shared memory allow. */
static int active_blocks(int threads, size_t shared)
{
	int warps = (threads + 31) / 32;
	int blocks = 64 / warps;

	if (blocks > 65536 / (REGISTERS * 32 * warps))
		blocks = 65536 / (REGISTERS * 32 * warps);
	if (blocks > (int)(SHARED_OF_SM / (shared + SHARED_RESERVED)))
		blocks = (int)(SHARED_OF_SM / (shared + SHARED_RESERVED));
	return blocks > 32 ? 32 : blocks;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
							      int threads, size_t shared,
							      unsigned int flags)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, blocks, &kernel, NULL);

	if (result != CUDA_SUCCESS)
		return result;
	if (threads <= 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = threads > THREADS_MAX || shared > SHARED_MAX ? 0 : active_blocks(threads, shared);
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
						     size_t shared)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads,
								    shared, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
						   CUoccupancyB2DSize shared_of, size_t shared,
						   int limit, unsigned int flags)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, block, &kernel, NULL);
	int best = 0;

	if (result != CUDA_SUCCESS)
		return result;
	if (!grid || limit < 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return CUDA_ERROR_INVALID_VALUE;
	*block = 0;
	*grid = 0;
	for (int threads = limit && limit < THREADS_MAX ? limit : THREADS_MAX; threads > 0;
	     threads = (threads - 1) / 32 * 32) {
		size_t own = shared_of ? shared_of(threads) : shared;
		int blocks = own > SHARED_MAX ? 0 : active_blocks(threads, own);

		if (blocks * threads > best) {
			best = blocks * threads;
			*block = threads;
			*grid = blocks * (int)sim_sm_count();
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
					  CUoccupancyB2DSize shared_of, size_t shared, int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared,
							 limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
						 int threads)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, bytes, &kernel, NULL);

	if (result != CUDA_SUCCESS)
		return result;
	if (blocks <= 0 || threads <= 0 || threads > THREADS_MAX ||
	    active_blocks(threads, 0) < blocks)
		return CUDA_ERROR_INVALID_VALUE;
	size_t share = SHARED_OF_SM / (size_t)blocks - SHARED_RESERVED;
	*bytes = share > SHARED_MAX ? SHARED_MAX : share;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function,
					    const CUlaunchConfig *config)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, size, &kernel, NULL);

	if (result == CUDA_SUCCESS && !config)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*size = 8;
	return result;
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config)
{
	const struct sim_kernel *kernel;
	CUresult result = check(function, count, &kernel, NULL);
	unsigned cluster = 1;

	if (result != CUDA_SUCCESS)
		return result;
	if (!config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			cluster = config->attrs[i].value.clusterDim.x *
				  config->attrs[i].value.clusterDim.y *
				  config->attrs[i].value.clusterDim.z;
	unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
	if (!cluster || cluster > 16 || !threads || threads > THREADS_MAX)
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	*count = active_blocks((int)threads, config->sharedMemBytes) * (int)sim_sm_count() /
		 (int)cluster;
	return CUDA_SUCCESS;
}
