/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Primary contexts: one for each device, counted. The handle of a device's primary
 * context stays the same over release and retain.
 */
#include "context.h"

static CUresult device_get(CUdevice dev, struct sim_device **device)
{
	CUresult ready = sim_ready();

	if (ready != CUDA_SUCCESS)
		return ready;
	*device = sim_device(dev);
	return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	struct sim_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.contexts_lock);
	if (!device->primary)
		device->primary = sim_context_new(device, device->primary_flags, true);
	else if (!device->primary_users &&
		 !sim_context_revive(device->primary, device->primary_flags))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!device->primary)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		device->primary_users++;
		*pctx = (CUcontext)device->primary;
	}
	pthread_mutex_unlock(&sim_root.contexts_lock);
	return result;
}

static CUresult release(CUdevice dev)
{
	struct sim_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.contexts_lock);
	if (!device->primary_users)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!--device->primary_users)
		sim_context_destroy(device->primary);
	pthread_mutex_unlock(&sim_root.contexts_lock);
	return result;
}

SIM_API CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return release(dev);
}

SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	return release(dev);
}

/* Everything in it is gone; those who retained it still have it, as new. */
static CUresult reset(CUdevice dev)
{
	struct sim_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.contexts_lock);
	if (device->primary_users) {
		sim_context_destroy(device->primary);
		if (!sim_context_revive(device->primary, device->primary_flags))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&sim_root.contexts_lock);
	return result;
}

SIM_API CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return reset(dev);
}

SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	return reset(dev);
}

static CUresult set_flags(CUdevice dev, unsigned flags)
{
	struct sim_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.contexts_lock);
	device->primary_flags = flags;
	if (device->primary_users)
		device->primary->flags = flags;
	pthread_mutex_unlock(&sim_root.contexts_lock);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	return set_flags(dev, flags);
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	return set_flags(dev, flags);
}

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	struct sim_device *device;
	CUresult result = device_get(dev, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_root.contexts_lock);
	*flags = device->primary_flags;
	*active = device->primary_users > 0;
	pthread_mutex_unlock(&sim_root.contexts_lock);
	return CUDA_SUCCESS;
}
