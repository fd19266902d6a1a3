/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of streams: kept and answered; none changes how simulated work runs. */
#include "sim.h"
#include "surface.h"

static bool known(CUstreamAttrID attribute)
{
	switch ((int)attribute) {
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		return true;
	default:
		return false;
	}
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || !known(attribute))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.queue_lock);
	*value = stream->attributes[attribute];
	if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
		value->priority = stream->priority;
	pthread_mutex_unlock(&sim_root.queue_lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
			      const CUstreamAttrValue *value)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || !known(attribute) ||
	    (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY &&
	     (value->syncPolicy < CU_SYNC_POLICY_AUTO ||
	      value->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.queue_lock);
	stream->attributes[attribute] = *value;
	if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
		stream->priority = value->priority;
	pthread_mutex_unlock(&sim_root.queue_lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle)
{
	struct sim_stream *to, *from;
	CUresult result = sim_stream_get(to_handle, sim_per_thread_calls > 0, &to);

	if (result == CUDA_SUCCESS)
		result = sim_stream_get(from_handle, sim_per_thread_calls > 0, &from);
	if (result != CUDA_SUCCESS)
		return result;
	if (to->context != from->context)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.queue_lock);
	for (int i = 0; i < CU_LAUNCH_ATTRIBUTE_MAX; i++)
		if (known(i) && i != CU_LAUNCH_ATTRIBUTE_PRIORITY)
			to->attributes[i] = from->attributes[i];
	pthread_mutex_unlock(&sim_root.queue_lock);
	return CUDA_SUCCESS;
}
