/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver of few functions, for tests of how libgksm finds, opens and starts on
 * one. With -DWITHOUT_V2 it is as old as 11.x: no cuGetProcAddress_v2.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int initialised, calls_inside, most_inside;
static pid_t initialised_in;

CUresult cuInit(unsigned int flags)
{
	int inside = atomic_fetch_add(&calls_inside, 1) + 1;

	if (inside > atomic_load(&most_inside))
		atomic_store(&most_inside, inside);
	if (flags == 0)
		usleep(20000);
	atomic_fetch_sub(&calls_inside, 1);
	if (flags == 77)
		return CUDA_ERROR_INVALID_VALUE;
	if (atomic_load(&initialised) && initialised_in != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	initialised_in = getpid();
	atomic_store(&initialised, 1);
	return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 12040;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	*address = 0x7000000000ull + bytes;
	return atomic_load(&initialised) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	*table = id;
	return CUDA_SUCCESS;
}

static CUresult find(const char *symbol, void **function)
{
	static const struct {
		const char *name;
		void *function;
	} known[] = {
		{"cuInit", (void *)cuInit},
		{"cuMemAlloc", (void *)cuMemAlloc_v2},
		{"cuDriverGetVersion", (void *)cuDriverGetVersion},
		{"cuGetExportTable", (void *)cuGetExportTable},
	};

	*function = NULL;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(symbol, known[i].name) == 0)
			*function = known[i].function;
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
	(void)version;
	(void)flags;
	return find(symbol, function);
}

#ifndef WITHOUT_V2
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	CUresult result = find(symbol, function);

	(void)version;
	(void)flags;
	if (status)
		*status = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS
						 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return result;
}
#endif

/* How many cuInit calls were inside at once. */
int test_most_inside(void)
{
	return atomic_load(&most_inside);
}
