/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of built-in kernels. */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "context_api.h"
#include "launch.h"
#include "module.h"
#include "surface.h"

struct launch_op {
	struct sim_op op;
	const struct sim_kernel *kernel;
	_Alignas(16) unsigned char params[SIM_KERNEL_BYTES];
};

static CUresult launch_run(struct sim_op *op)
{
	struct launch_op *launch = (struct launch_op *)op;

	return launch->kernel->run(op->stream->context, launch->params);
}

static void launch_release(struct sim_op *op)
{
	free(op);
}

CUresult sim_kernel_enqueue(struct sim_stream *stream, const struct sim_kernel *kernel,
			    const void *params)
{
	struct launch_op *launch = calloc(1, sizeof(*launch));

	if (!launch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	launch->op.run = launch_run;
	launch->op.release = launch_release;
	launch->kernel = kernel;
	memcpy(launch->params, params, SIM_KERNEL_BYTES);
	return sim_enqueue(stream, &launch->op);
}

CUresult sim_launch_check(CUfunction function, const struct sim_dims *dims,
			  const struct sim_kernel **kernel)
{
	static const unsigned grid_max[3] = {0x7fffffff, 65535, 65535};
	static const unsigned block_max[3] = {1024, 1024, 64};
	struct sim_function_settings *settings;

	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	*kernel = sim_function_kernel(function, &settings);
	if (!*kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	for (int i = 0; i < 3; i++) {
		if (!dims->grid[i] || dims->grid[i] > grid_max[i] || !dims->block[i] ||
		    dims->block[i] > block_max[i])
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (dims->block[0] * dims->block[1] * dims->block[2] > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (dims->shared > (unsigned)settings->dynamic_shared)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* The `extra` form: a list of keys and values that ends with CU_LAUNCH_PARAM_END. */
static CUresult packed_params(const struct sim_kernel *kernel, void **extra, void *params)
{
	const void *buffer = NULL;
	const size_t *bytes = NULL;
	size_t needed = sim_kernel_offset(kernel, kernel->parameters);

	for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[i + 1];
		else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			bytes = extra[i + 1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (!buffer || !bytes || *bytes < needed)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(params, buffer, needed);
	return CUDA_SUCCESS;
}

CUresult sim_launch_params(const struct sim_kernel *kernel, void **kernel_params, void **extra,
			   void *params)
{
	memset(params, 0, SIM_KERNEL_BYTES);
	if (kernel_params && extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (extra)
		return packed_params(kernel, extra, params);
	if (!kernel_params)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < kernel->parameters; i++) {
		if (!kernel_params[i])
			return CUDA_ERROR_INVALID_VALUE;
		memcpy((char *)params + sim_kernel_offset(kernel, i), kernel_params[i],
		       kernel->sizes[i]);
	}
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const struct sim_dims *dims, CUstream handle,
		       void **kernel_params, void **extra)
{
	_Alignas(16) unsigned char params[SIM_KERNEL_BYTES];
	const struct sim_kernel *kernel;
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_launch_check(function, dims, &kernel);
	if (result == CUDA_SUCCESS)
		result = sim_launch_params(kernel, kernel_params, extra, params);
	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return sim_capture_kernel(stream, function, dims, kernel, params);
	result = sim_capture_legacy_check(stream);
	return result == CUDA_SUCCESS ? sim_kernel_enqueue(stream, kernel, params) : result;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared, CUstream stream,
			void **kernel_params, void **extra)
{
	struct sim_dims dims = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};

	return launch(function, &dims, stream, kernel_params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
				   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				   unsigned int block_z, unsigned int shared, CUstream stream,
				   void **kernel_params)
{
	struct sim_dims dims = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
	int blocks = 0;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (block_x && block_y && block_z)
		result = cuOccupancyMaxActiveBlocksPerMultiprocessor(
			&blocks, function, (int)(block_x * block_y * block_z), shared);
	if (result != CUDA_SUCCESS)
		return result;
	if ((uint64_t)grid_x * grid_y * grid_z > (uint64_t)blocks * sim_sm_count())
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return launch(function, &dims, stream, kernel_params, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **kernel_params,
			  void **extra)
{
	if (!config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_dims dims = {
		{config->gridDimX, config->gridDimY, config->gridDimZ},
		{config->blockDimX, config->blockDimY, config->blockDimZ},
		config->sharedMemBytes,
	};
	for (unsigned i = 0; i < config->numAttrs; i++) {
		const CUlaunchAttribute *attribute = &config->attrs[i];

		if ((int)attribute->id < 0 || attribute->id >= CU_LAUNCH_ATTRIBUTE_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE &&
		    attribute->value.cooperative)
			return cuLaunchCooperativeKernel(
				function, config->gridDimX, config->gridDimY, config->gridDimZ,
				config->blockDimX, config->blockDimY, config->blockDimZ,
				config->sharedMemBytes, config->hStream, kernel_params);
	}
	return launch(function, &dims, config->hStream, kernel_params, extra);
}
