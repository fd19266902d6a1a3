/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For small CUDA programs that know nothing of gKSM. Failures end the program with
 * status 1 and a line on standard error: these are test programs, not libgksm.
 */
#ifndef WORKER_H
#define WORKER_H

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)2 << 20)
#define PAGE_WORDS (PAGE / sizeof(uint64_t))

#define CHECK(call)                                                                       \
	do {                                                                              \
		CUresult check_result = (call);                                           \
		if (check_result != CUDA_SUCCESS) {                                       \
			fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, \
				(int)check_result);                                       \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* The bytes that belong to a seed, the same in every process. */
static inline void fill_page(uint64_t *page, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
	size_t i;

	for (i = 0; i < PAGE_WORDS; i++)
		page[i] = next_random(&state);
}

static inline CUcontext worker_start(CUmodule *module)
{
	CUcontext context;
	CUdevice device;

	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(module, "simcuda builtin"));
	return context;
}

/* Enqueues a kernel that writes one word of one page. */
static inline void write_word(CUfunction write_pages, CUdeviceptr base, uint64_t page,
			      uint64_t offset, uint32_t value, CUstream stream)
{
	uint64_t count = 1, step = 1;
	void *parameters[] = {&base, &page, &count, &step, &offset, &value};

	CHECK(cuLaunchKernel(write_pages, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

#endif
