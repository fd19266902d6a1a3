/* SPDX-License-Identifier: Apache-2.0 */
/* The SMs as a resource that can be divided. Contexts of parts are not simulated. */
#include "context_api.h"
#include "device_api.h"
#include "surface.h"

/* As on this architecture: groups of at least 8 SMs, in multiples of 8; of 2 when the
 * caller does without coscheduling. */
#define GROUP 8u
#define GROUP_LOOSE 2u

static CUresult whole(CUdevResource *resource, CUdevResourceType type)
{
	if (!resource)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*resource = (CUdevResource){.type = type};
	resource->sm.smCount = sim_sm_count();
	resource->sm.minSmPartitionSize = GROUP;
	resource->sm.smCoscheduledAlignment = GROUP;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, CUdevResourceType type)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	return result == CUDA_SUCCESS ? whole(resource, type) : result;
}

CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource *resource, CUdevResourceType type)
{
	struct sim_context *context;
	CUresult result = sim_context_get(handle, &context);

	return result == CUDA_SUCCESS ? whole(resource, type) : result;
}

CUresult cuStreamGetDevResource(CUstream handle, CUdevResource *resource, CUdevResourceType type)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	return result == CUDA_SUCCESS ? whole(resource, type) : result;
}

static CUdevResource part(const CUdevResource *of, unsigned sms)
{
	CUdevResource made = *of;

	made.sm.smCount = sms;
	if (!sms)
		made.type = CU_DEV_RESOURCE_TYPE_INVALID;
	return made;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *groups,
				     const CUdevResource *input, CUdevResource *remainder,
				     unsigned int flags, unsigned int least)
{
	unsigned align =
		flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING ? GROUP_LOOSE : GROUP;
	unsigned sms, possible;
	CUresult ready = sim_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	if (!groups || !input ||
	    flags & ~(unsigned)(CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
				CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE))
		return CUDA_ERROR_INVALID_VALUE;
	if (input->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	if (least > input->sm.smCount)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	sms = least ? (least + align - 1) / align * align : align;
	possible = input->sm.smCount / sms;
	if (!possible)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	if (!result || *groups > possible)
		*groups = possible;
	for (unsigned i = 0; result && i < *groups; i++)
		result[i] = part(input, sms);
	if (remainder)
		*remainder = part(input, input->sm.smCount - *groups * sms);
	return CUDA_SUCCESS;
}

/* Without a count a group takes what is left, as far as its alignment goes. */
CUresult cuDevSmResourceSplit(CUdevResource *result, unsigned int groups,
			      const CUdevResource *input, CUdevResource *remainder,
			      unsigned int flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *params)
{
	CUresult ready = sim_ready();
	unsigned left;

	if (ready != CUDA_SUCCESS)
		return ready;
	if (!groups || !input || !params || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (input->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	left = input->sm.smCount;
	for (unsigned i = 0; i < groups; i++) {
		unsigned align =
			params[i].coscheduledSmCount ? params[i].coscheduledSmCount : GROUP;
		unsigned sms = params[i].smCount;

		if (align % GROUP_LOOSE || align > sim_sm_count())
			return CUDA_ERROR_INVALID_VALUE;
		if (!sms)
			sms = left / align * align;
		if (!sms || sms % align || sms > left)
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		left -= sms;
		params[i].smCount = sms;
		if (result)
			result[i] = part(input, sms);
	}
	if (remainder)
		*remainder = part(input, left);
	return CUDA_SUCCESS;
}
