/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"

#define ALLOC_FLAGS \
	(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS                                                \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | \
	 CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

struct sim_host {
	struct sim_host_range *ranges; /* by base */
	size_t count, room;
};

static void lock(void)
{
	pthread_mutex_lock(&sim_root.memory_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&sim_root.memory_lock);
}

int sim_host_start(void)
{
	sim_root.host = calloc(1, sizeof(*sim_root.host));
	return sim_root.host ? 0 : -ENOMEM;
}

/* The first range that does not end at or before the address. */
static size_t search(uintptr_t address)
{
	size_t low = 0, high = sim_root.host->count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct sim_host_range *range = &sim_root.host->ranges[middle];

		if (range->base + range->bytes <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct sim_host_range *sim_host_find(uintptr_t address)
{
	size_t at = search(address);

	if (at == sim_root.host->count || sim_root.host->ranges[at].base > address)
		return NULL;
	return &sim_root.host->ranges[at];
}

bool sim_host_known(const void *address, size_t bytes)
{
	uintptr_t from = (uintptr_t)address, to = from + (bytes ? bytes : 1);
	bool known = true;

	lock();
	while (from < to && known) {
		struct sim_host_range *range = sim_host_find(from);

		known = range != NULL;
		if (known)
			from = range->base + range->bytes;
	}
	unlock();
	return known;
}

/* 0, -EEXIST (overlaps), -ENOMEM. */
static int insert(const struct sim_host_range *range)
{
	struct sim_host *host = sim_root.host;
	size_t at = search(range->base);

	if (at < host->count && host->ranges[at].base < range->base + range->bytes)
		return -EEXIST;
	if (host->count == host->room) {
		size_t room = host->room ? host->room * 2 : 64;
		struct sim_host_range *grown = realloc(host->ranges, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		host->ranges = grown;
		host->room = room;
	}
	memmove(&host->ranges[at + 1], &host->ranges[at],
		(host->count - at) * sizeof(*host->ranges));
	host->ranges[at] = *range;
	host->ranges[at].buffer_id = sim_next_id();
	host->count++;
	return 0;
}

/* Takes the range out; it is not unmapped yet. false: none of the kind begins there. */
static bool take(uintptr_t base, enum sim_host_kind kind, struct sim_host_range *taken)
{
	struct sim_host *host = sim_root.host;
	struct sim_host_range *range = sim_host_find(base);

	if (!range || range->base != base || range->kind != kind)
		return false;
	*taken = *range;
	host->count--;
	memmove(range, range + 1,
		(size_t)(&host->ranges[host->count] - range) * sizeof(*host->ranges));
	return true;
}

static void unmap(const struct sim_host_range *range)
{
	if (range->kind != SIM_HOST_REGISTERED)
		munmap((void *)range->base, range->bytes);
}

static void *map(struct sim_context *context, size_t bytes, unsigned flags, enum sim_host_kind kind)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct sim_host_range range = {.kind = kind, .flags = flags, .context = context};
	void *at;
	int error;

	if (bytes > SIZE_MAX - page)
		return NULL;
	range.bytes = (bytes + page - 1) / page * page;
	at = mmap(NULL, range.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	range.base = (uintptr_t)at;
	lock();
	error = insert(&range);
	unlock();
	if (!error)
		return at;
	munmap(at, range.bytes);
	return NULL;
}

void *sim_host_managed(struct sim_context *context, size_t bytes, unsigned flags)
{
	return map(context, bytes, flags, SIM_HOST_MANAGED);
}

bool sim_host_free(uintptr_t base, enum sim_host_kind kind)
{
	struct sim_host_range range;
	bool found;

	lock();
	found = take(base, kind, &range);
	unlock();
	if (found)
		unmap(&range);
	return found;
}

void sim_host_context_gone(struct sim_context *context)
{
	for (;;) {
		struct sim_host_range range;
		bool found = false;

		lock();
		for (size_t i = 0; i < sim_root.host->count && !found; i++)
			if (sim_root.host->ranges[i].context == context)
				found = take(sim_root.host->ranges[i].base,
					     sim_root.host->ranges[i].kind, &range);
		unlock();
		if (!found)
			return;
		unmap(&range);
	}
}

/* ---- entry points -------------------------------------------------------------- */

SIM_API CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	void *at;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pp || !bytesize || Flags & ~(unsigned)ALLOC_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	at = map(context, bytesize, Flags | CU_MEMHOSTALLOC_DEVICEMAP, SIM_HOST_ALLOCATED);
	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pp = at;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return cuMemHostAlloc(pp, bytesize, 0);
}

SIM_API CUresult cuMemAllocHost(void **pp, unsigned int bytesize)
{
	return cuMemHostAlloc(pp, bytesize, 0);
}

static struct sim_context *owner(uintptr_t base, enum sim_host_kind kind)
{
	struct sim_context *context = NULL;
	struct sim_host_range *range;

	lock();
	range = sim_host_find(base);
	if (range && range->base == base && range->kind == kind)
		context = range->context;
	unlock();
	return context;
}

SIM_API CUresult cuMemFreeHost(void *p)
{
	struct sim_context *context, *owning;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	owning = owner((uintptr_t)p, SIM_HOST_ALLOCATED);
	if (!owning)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_context_quiesce(owning);
	if (result != CUDA_SUCCESS)
		return result;
	return sim_host_free((uintptr_t)p, SIM_HOST_ALLOCATED) ? CUDA_SUCCESS
							       : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pdptr || Flags || !sim_host_known(p, 1))
		return CUDA_ERROR_INVALID_VALUE;
	*pdptr = (CUdeviceptr)(uintptr_t)p;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct sim_host_range *range;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pFlags)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	range = sim_host_find((uintptr_t)p);
	if (range && range->kind == SIM_HOST_ALLOCATED)
		*pFlags = range->flags;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	unlock();
	return result;
}

SIM_API CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	struct sim_host_range range = {
		.base = (uintptr_t)p,
		.bytes = bytesize,
		.kind = SIM_HOST_REGISTERED,
		.flags = Flags,
	};
	int error;

	if (result != CUDA_SUCCESS)
		return result;
	if (!p || !bytesize || Flags & ~(unsigned)REGISTER_FLAGS ||
	    range.base + bytesize < range.base)
		return CUDA_ERROR_INVALID_VALUE;
	range.context = context;
	lock();
	error = insert(&range);
	unlock();
	if (error == -EEXIST)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	return error ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
	return cuMemHostRegister_v2(p, bytesize, Flags);
}

SIM_API CUresult cuMemHostUnregister(void *p)
{
	struct sim_context *context, *owning;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	owning = owner((uintptr_t)p, SIM_HOST_REGISTERED);
	if (!owning)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	result = sim_context_wait(owning);
	if (result != CUDA_SUCCESS)
		return result;
	return sim_host_free((uintptr_t)p, SIM_HOST_REGISTERED)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

SIM_API CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);
	void *at;

	if (result == CUDA_SUCCESS)
		result = sim_capture_unsafe_call(context);
	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
	     flags != CU_MEM_ATTACH_SINGLE))
		return CUDA_ERROR_INVALID_VALUE;
	at = sim_host_managed(context, bytesize, flags);
	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*dptr = (CUdeviceptr)(uintptr_t)at;
	return CUDA_SUCCESS;
}
