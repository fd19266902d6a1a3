/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma.h"

#include "gpu.h"
#include "map.h"
#include "report.h"

static bool offered(const struct gksm_gpu *gpu)
{
	int value = 0;

	return gpu->process->driver.cuDeviceGetAttribute(
		       &value, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
		       gpu->device) == CUDA_SUCCESS &&
	       value;
}

/* Some drivers offer it, create the memory, and then refuse to map it. */
static bool can_be_mapped(struct gksm_gpu *gpu)
{
	CUmemGenericAllocationHandle handle;
	bool mapped;

	if (gksm_handle_create(gpu, &handle))
		return false;
	mapped = gksm_map(gpu, gpu->arena_base, handle, &gpu->read_write) == 0;
	if (mapped)
		gksm_unmap(gpu, gpu->arena_base);
	gksm_handle_release(gpu, handle);
	return mapped;
}

void gksm_rdma_settle(struct gksm_gpu *gpu)
{
	if (!offered(gpu))
		return;
	gpu->prop.allocFlags.gpuDirectRDMACapable = 1;
	if (can_be_mapped(gpu))
		return;
	gpu->prop.allocFlags.gpuDirectRDMACapable = 0;
	gksm_report(gpu->process, GKSM_WARNING,
		    "GPU %d offers memory for RDMA but does not map it: network cards cannot be "
		    "let at this program's memory",
		    (int)gpu->device);
}
