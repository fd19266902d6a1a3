/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight threads call cuInit at the same moment, each as if it were the first, and
 * allocate. Prints how many pages libgksm counts in the end.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../libgksm/include/gksm/gksm.h"

#define THREADS 8
#define CHECK(call)                                                       \
	do {                                                              \
		CUresult got = (call);                                    \
		if (got != CUDA_SUCCESS) {                                \
			fprintf(stderr, "%s gave %d\n", #call, (int)got); \
			exit(1);                                          \
		}                                                         \
	} while (0)

static pthread_barrier_t start;

static void *first(void *unused)
{
	CUdeviceptr *address = malloc(sizeof(*address));
	CUcontext context;
	CUdevice device;

	(void)unused;
	pthread_barrier_wait(&start);
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAlloc_v2(address, (size_t)4 << 20));
	return address;
}

int main(void)
{
	__typeof__(gksm_get_statistics) *ask = dlsym(RTLD_DEFAULT, "gksm_get_statistics");
	struct gksm_statistics statistics = {.bytes = sizeof(statistics)};
	pthread_t threads[THREADS];
	void *address = NULL;

	pthread_barrier_init(&start, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, first, NULL) != 0)
			return 2;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], &address);
	if (!ask || !address || ask(*(CUdeviceptr *)address, &statistics) != 0)
		return 3;
	printf("%d pages\n", (int)statistics.virtual_pages);
	return 0;
}
