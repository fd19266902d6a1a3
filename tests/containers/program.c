/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program no-driver|works: what a CUDA program in a container meets with libgksm
 * preloaded. BY_NAME finds the functions as the CUDA runtime does.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef BY_NAME
#include <dlfcn.h>

static void *library;

static void *find(const char *name, int version)
{
	__typeof__(cuGetProcAddress_v2) *ask = dlsym(library, "cuGetProcAddress_v2");
	CUdriverProcAddressQueryResult status;
	void *function = NULL;

	if (!ask || ask(name, &function, version, 0, &status) != CUDA_SUCCESS || !function)
		return dlsym(library, name);
	return function;
}

#define CALL(name, base, version, ...) ((__typeof__(name) *)find(base, version))(__VA_ARGS__)
#else
#define CALL(name, base, version, ...) name(__VA_ARGS__)
#endif

/* There when libgksm is preloaded. */
extern size_t gksm_records(char *text, size_t bytes) __attribute__((weak));

#define BYTES ((size_t)5 << 20)

#define EXPECT(condition)                                                                       \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

static void works(void)
{
	unsigned char *host = malloc(BYTES), *back = calloc(1, BYTES);
	static char records[16384];
	CUdeviceptr address;
	CUcontext context;
	CUdevice device;

	EXPECT(host && back);
	for (size_t i = 0; i < BYTES; i++)
		host[i] = (unsigned char)(i * 2654435761u >> 24);
	EXPECT(CALL(cuInit, "cuInit", 2000, 0) == CUDA_SUCCESS);
	EXPECT(gksm_records);
	gksm_records(records, sizeof(records));
	EXPECT(!strstr(records, "off:"));
	EXPECT(CALL(cuDeviceGet, "cuDeviceGet", 2000, &device, 0) == CUDA_SUCCESS);
	EXPECT(CALL(cuCtxCreate_v2, "cuCtxCreate", 3020, &context, 0, device) == CUDA_SUCCESS);
	EXPECT(CALL(cuMemAlloc_v2, "cuMemAlloc", 3020, &address, BYTES) == CUDA_SUCCESS);
	EXPECT(CALL(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, address, host, BYTES) == CUDA_SUCCESS);
	EXPECT(CALL(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, back, address, BYTES) == CUDA_SUCCESS);
	EXPECT(memcmp(host, back, BYTES) == 0);
	EXPECT(CALL(cuMemFree_v2, "cuMemFree", 3020, address) == CUDA_SUCCESS);
	EXPECT(CALL(cuCtxDestroy_v2, "cuCtxDestroy", 4000, context) == CUDA_SUCCESS);
	free(host);
	free(back);
}

static void no_driver(void)
{
	int version = -1;

	EXPECT(CALL(cuDriverGetVersion, "cuDriverGetVersion", 2020, &version) == CUDA_SUCCESS);
	EXPECT(version == 0);
	EXPECT(CALL(cuInit, "cuInit", 2000, 0) == CUDA_ERROR_NO_DEVICE);
}

int main(int argc, char **argv)
{
	EXPECT(argc == 2);
#ifdef BY_NAME
	library = dlopen("libcuda.so.1", RTLD_NOW);
	EXPECT(library);
#endif
	if (strcmp(argv[1], "works") == 0)
		works();
	else
		no_driver();
	return 0;
}
