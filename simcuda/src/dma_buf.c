/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory handed to other devices as a dma-buf. What an importer would get from the
 * kernel, the pages behind the range and a hold on them, is here a message that waits
 * in a socket: descriptors of the runs of pages, and an entry {offset in the bank's
 * file, bytes} for each. Whoever plays the network card reads it with MSG_PEEK. The
 * pages are in use until the descriptor is closed, whatever is mapped at the range
 * then, and the card never learns of it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc.h"
#include "handle.h"

#define RUNS_MAX 253	  /* descriptors in one message */
#define HOST_PAGE 4096ull /* the range must be of whole ones */

struct run {
	uint64_t offset;
	uint64_t bytes;
};

struct runs {
	unsigned count;
	struct run run[RUNS_MAX];
	int fd[RUNS_MAX];
};

static void runs_close(struct runs *runs)
{
	for (unsigned i = 0; i < runs->count; i++)
		close(runs->fd[i]);
	free(runs);
}

/* Only memory that the device lets others at; what lies beside it is another matter. */
static bool exportable(const struct sim_mapping *mapping)
{
	if (mapping->kind == SIM_MAPPING_VMM)
		return mapping->handle->prop.allocFlags.gpuDirectRDMACapable;
	return mapping->kind == SIM_MAPPING_ALLOC && !mapping->pool;
}

/* Adds what the range and the mapping have in common. */
static CUresult add_mapping(struct runs *runs, const struct sim_mapping *mapping, uint64_t start,
			    uint64_t end)
{
	const bool vmm = mapping->kind == SIM_MAPPING_VMM;
	const struct sim_extent *extents = vmm ? mapping->handle->extents : mapping->extents;
	unsigned count = vmm ? mapping->handle->extent_count : mapping->extent_count;
	uint64_t at = mapping->base;

	for (unsigned i = 0; i < count; i++) {
		struct sim_extent joined = extents[i];
		uint64_t from = at > start ? at : start;
		uint64_t to = at + sim_extent_bytes(&joined);

		to = to < end ? to : end;
		if (from < to) {
			if (runs->count == RUNS_MAX)
				return CUDA_ERROR_NOT_SUPPORTED;
			if (sim_vram_join(&joined, sim_vram_generation(&joined)))
				return CUDA_ERROR_OPERATING_SYSTEM;
			runs->fd[runs->count] = joined.fd;
			runs->run[runs->count++] = (struct run){
				(uint64_t)sim_extent_offset(&joined) + (from - at), to - from};
		}
		at += sim_extent_bytes(&joined);
	}
	return CUDA_SUCCESS;
}

static CUresult collect(struct runs *runs, CUdeviceptr start, CUdeviceptr end)
{
	CUresult result = CUDA_SUCCESS;

	for (CUdeviceptr at = start; result == CUDA_SUCCESS && at < end;) {
		const struct sim_mapping *mapping = sim_va_find(at);

		if (!mapping || !exportable(mapping))
			return CUDA_ERROR_INVALID_VALUE;
		result = add_mapping(runs, mapping, start, end);
		at = mapping->base + mapping->pages * SIM_PAGE;
	}
	return result;
}

static CUresult send_runs(const struct runs *runs, int *handle)
{
	char control[CMSG_SPACE(sizeof(runs->fd))] = {0};
	size_t fd_bytes = runs->count * sizeof(int);
	struct iovec data = {(void *)runs->run, runs->count * sizeof(runs->run[0])};
	struct msghdr message = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = CMSG_SPACE(fd_bytes),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int ends[2];
	bool sent;

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(fd_bytes);
	memcpy(CMSG_DATA(header), runs->fd, fd_bytes);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return CUDA_ERROR_OPERATING_SYSTEM;
	sent = sendmsg(ends[0], &message, MSG_NOSIGNAL) == (ssize_t)data.iov_len;
	close(ends[0]);
	if (!sent) {
		close(ends[1]);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*handle = ends[1];
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
					       CUmemRangeHandleType handleType,
					       unsigned long long flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct runs *runs;

	if (result != CUDA_SUCCESS)
		return result;
	if (sim_root.config.rdma == SIM_RDMA_NONE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!handle || !size || handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags ||
	    dptr % HOST_PAGE || size % HOST_PAGE || dptr + size < dptr)
		return CUDA_ERROR_INVALID_VALUE;
	runs = calloc(1, sizeof(*runs));
	if (!runs)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_root.memory_lock);
	result = collect(runs, dptr, dptr + size);
	pthread_mutex_unlock(&sim_root.memory_lock);
	if (result == CUDA_SUCCESS)
		result = send_runs(runs, handle);
	runs_close(runs);
	return result;
}
