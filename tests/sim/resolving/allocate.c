/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates 5 MiB and prints how libgksm counts it. How the functions are found:
 * LOOKUP undefined: by the loader (-lcuda); 0: by dlsym, as the runtime does with
 * old drivers; 1, 2: by cuGetProcAddress of four or five arguments.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../libgksm/include/gksm/gksm.h"

#ifdef LOOKUP
static void *library;

static void *find(const char *elf_name, const char *base, int version)
{
	void *function = NULL;
#if LOOKUP == 2
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	__typeof__(cuGetProcAddress_v2) *ask = dlsym(library, "cuGetProcAddress_v2");

	(void)elf_name;
	if (ask(base, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS ||
	    status != CU_GET_PROC_ADDRESS_SUCCESS)
		return NULL;
#elif LOOKUP == 1
	__typeof__(cuGetProcAddress) *ask = dlsym(library, "cuGetProcAddress");

	(void)elf_name;
	if (ask(base, &function, version, CU_GET_PROC_ADDRESS_DEFAULT) != CUDA_SUCCESS)
		return NULL;
#else
	(void)base;
	(void)version;
	function = dlsym(library, elf_name);
#endif
	return function;
}

#define CALL(name, base, version, ...) ((__typeof__(name) *)find(#name, base, version))(__VA_ARGS__)
#else
#define CALL(name, base, version, ...) name(__VA_ARGS__)
#endif

#define CHECK(call)                                                       \
	do {                                                              \
		CUresult got = (call);                                    \
		if (got != CUDA_SUCCESS) {                                \
			fprintf(stderr, "%s gave %d\n", #call, (int)got); \
			exit(1);                                          \
		}                                                         \
	} while (0)

int main(void)
{
	struct gksm_statistics statistics = {.bytes = sizeof(statistics)};
	__typeof__(gksm_get_statistics) *ask = dlsym(RTLD_DEFAULT, "gksm_get_statistics");
	CUdeviceptr address;
	CUcontext context;
	CUdevice device;

#ifdef LOOKUP
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return 2;
#endif
	CHECK(CALL(cuInit, "cuInit", 2000, 0));
	CHECK(CALL(cuDeviceGet, "cuDeviceGet", 2000, &device, 0));
	CHECK(CALL(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, &context, device));
	CHECK(CALL(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, context));
	CHECK(CALL(cuMemAlloc_v2, "cuMemAlloc", 3020, &address, (size_t)5 << 20));
	if (!ask || ask(address, &statistics) != 0)
		return 3;
	printf("%d pages of an arena\n", (int)statistics.virtual_pages);
	CHECK(CALL(cuMemFree_v2, "cuMemFree", 3020, address));
	return 0;
}
