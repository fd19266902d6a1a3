/* SPDX-License-Identifier: Apache-2.0 */
/* Queries about devices. */
#include <stdio.h>
#include <string.h>

#include "device_api.h"

CUresult sim_device_get(CUdevice ordinal, struct sim_device **device)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	*device = sim_device(ordinal);
	return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

int sim_device_bus(const struct sim_device *device)
{
	return 0x10 + device->ordinal;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	struct sim_device *found;

	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_device_get(ordinal, &found);
	if (result == CUDA_SUCCESS)
		*device = found->ordinal;
	return result;
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim_root.device_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!name || bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)bytes, "simcuda H200%s (simulated)",
		 sim_root.config.claim == SIM_CLAIM_MIG ? " MIG 1g.18gb" : "");
	return CUDA_SUCCESS;
}

/* v1 names the whole GPU, also on a MIG instance: another one than v2 does. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	*uuid = device->uuid;
	if (sim_root.config.claim == SIM_CLAIM_MIG)
		uuid->bytes[15] ^= 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	*uuid = device->uuid;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = device->total_bytes;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || !sim_device_attribute(device, attribute, value))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static int attribute_of(struct sim_device *device, CUdevice_attribute attribute)
{
	int value = 0;

	sim_device_attribute(device, attribute, &value);
	return value;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
	*minor = attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!properties)
		return CUDA_ERROR_INVALID_VALUE;
	*properties = (CUdevprop){
		.maxThreadsPerBlock =
			attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
		.sharedMemPerBlock =
			attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
		.totalConstantMemory =
			attribute_of(device, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
		.SIMDWidth = attribute_of(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE),
		.memPitch = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_PITCH),
		.regsPerBlock = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
		.clockRate = attribute_of(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
		.textureAlign = attribute_of(device, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
	};
	for (int i = 0; i < 3; i++) {
		properties->maxThreadsDim[i] =
			attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
		properties->maxGridSize[i] =
			attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
	}
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!text || bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(text, (size_t)bytes, "0000:%02X:00.0", sim_device_bus(device));
	return CUDA_SUCCESS;
}

/* "domain:bus:device.function", "domain:bus:device" or "bus:device.function", hex. */
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
	unsigned domain = 0, bus, slot, function = 0;
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!device || !text)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
		domain = 0;
		if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) != 3)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (int i = 0; i < sim_root.device_count; i++) {
		struct sim_device *candidate = sim_device(i);

		if (!domain && !slot && !function && (int)bus == sim_device_bus(candidate)) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!supported || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	/* Only clients of MPS can limit their SMs. */
	*supported = sim_root.config.claim == SIM_CLAIM_MPS;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format, unsigned channels,
					    CUdevice ordinal)
{
	struct sim_device *device;
	CUresult result = sim_device_get(ordinal, &device);

	(void)format;
	if (result != CUDA_SUCCESS)
		return result;
	if (!width || (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	*width = (size_t)attribute_of(device, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH);
	return CUDA_SUCCESS;
}

/* Two devices reach each other's memory over a simulated PCIe, without native atomics;
 * MIG instances do not. */
static bool peers(const struct sim_device *first, const struct sim_device *second)
{
	return first != second && sim_root.config.claim != SIM_CLAIM_MIG;
}

CUresult cuDeviceCanAccessPeer(int *possible, CUdevice ordinal, CUdevice peer)
{
	struct sim_device *first, *second;
	CUresult result = sim_device_get(ordinal, &first);

	if (result == CUDA_SUCCESS)
		result = sim_device_get(peer, &second);
	if (result != CUDA_SUCCESS)
		return result;
	if (!possible)
		return CUDA_ERROR_INVALID_VALUE;
	*possible = peers(first, second);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source,
				 CUdevice destination)
{
	struct sim_device *first, *second;
	CUresult result = sim_device_get(source, &first);

	if (result == CUDA_SUCCESS)
		result = sim_device_get(destination, &second);
	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (first == second)
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
	case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
	case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
		*value = 0;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
		*value = peers(first, second);
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
		*value = 0;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}
