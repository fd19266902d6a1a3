/* SPDX-License-Identifier: Apache-2.0 */
#include "map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

#include "gpu.h"
#include "peers.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

static int error_of(CUresult result)
{
	return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

int gksm_handle_create(struct gksm_gpu *gpu, CUmemGenericAllocationHandle *handle)
{
	CUresult result = gpu->process->driver.cuMemCreate(handle, PAGE, &gpu->prop, 0);

	return result ? error_of(result) : 0;
}

void gksm_handle_release(struct gksm_gpu *gpu, CUmemGenericAllocationHandle handle)
{
	gpu->process->driver.cuMemRelease(handle);
}

int gksm_handle_import(struct gksm_gpu *gpu, int fd, CUmemGenericAllocationHandle *handle)
{
	CUresult result = gpu->process->driver.cuMemImportFromShareableHandle(
		handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	return result ? error_of(result) : 0;
}

int gksm_handle_export(struct gksm_gpu *gpu, CUmemGenericAllocationHandle handle, int *fd)
{
	int flags;

	*fd = -1;
	if (gpu->process->driver.cuMemExportToShareableHandle(
		    fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ||
	    *fd < 0)
		return -EIO;
	/* The driver does not promise it, and no child of the application may hold on to
	 * shared memory. */
	flags = fcntl(*fd, F_GETFD);
	if (flags >= 0 && !(flags & FD_CLOEXEC))
		fcntl(*fd, F_SETFD, flags | FD_CLOEXEC);
	return 0;
}

int gksm_protect(struct gksm_gpu *gpu, CUdeviceptr address, const CUmemAccessDesc *access)
{
	CUmemAccessDesc peers[GKSM_GPUS_MAX];
	size_t count = 1;

	if (gksm_peers_any(gpu)) {
		count = gksm_peers_access(gpu->process, gpu->device, access->flags, peers);
		access = peers;
	}
	return gpu->process->driver.cuMemSetAccess(address, PAGE, access, count) ? -EIO : 0;
}

int gksm_map(struct gksm_gpu *gpu, CUdeviceptr address, CUmemGenericAllocationHandle handle,
	     const CUmemAccessDesc *access)
{
	const struct gksm_driver *driver = &gpu->process->driver;

	if (driver->cuMemMap(address, PAGE, 0, handle, 0))
		return -EIO;
	if (gksm_protect(gpu, address, access)) {
		driver->cuMemUnmap(address, PAGE);
		return -EIO;
	}
	return 0;
}

void gksm_unmap(struct gksm_gpu *gpu, CUdeviceptr address)
{
	gpu->process->driver.cuMemUnmap(address, PAGE);
}
