/* SPDX-License-Identifier: Apache-2.0 */
#include <simcuda/counters.h>

#include <errno.h>

#include "device.h"

SIM_API int simcudaHostToDeviceBytes(int device, uint64_t *bytes)
{
	struct sim_device *found = sim_ready() == CUDA_SUCCESS ? sim_device(device) : NULL;

	if (!found || !bytes)
		return -ENODEV;
	*bytes = atomic_load(&found->shared->host_to_device_bytes);
	return 0;
}
