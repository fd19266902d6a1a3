/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts ROUNDS: contexts are made, filled, reset and destroyed, and processes are
 * forked, while pages are shared. Nothing may be left over and nothing may stick.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "worker.h"

#define PAGES 6

static void fill(CUdeviceptr *base, uint8_t *expected)
{
	size_t i;

	for (i = 0; i < PAGES; i++)
		fill_page((uint64_t *)(expected + i * PAGE), 1 + i % 3);
	CHECK(cuMemAlloc(base, PAGES * PAGE));
	CHECK(cuMemcpyHtoD(*base, expected, PAGES * PAGE));
}

static void verify(CUdeviceptr base, const uint8_t *expected, uint8_t *found)
{
	CHECK(cuMemcpyDtoH(found, base, PAGES * PAGE));
	if (memcmp(found, expected, PAGES * PAGE) != 0) {
		fprintf(stderr, "wrong bytes read back\n");
		exit(1);
	}
}

static void destroyed_context(CUdevice device, uint8_t *expected, uint8_t *found)
{
	CUcontext context, popped;
	CUdeviceptr base;

	CHECK(cuCtxCreate(&context, NULL, 0, device));
	fill(&base, expected);
	verify(base, expected, found);
	CHECK(cuCtxPopCurrent(&popped));
	CHECK(cuCtxDestroy(context));
}

static void reset_primary(CUdevice device, uint8_t *expected, uint8_t *found)
{
	CUcontext context;
	CUdeviceptr base;
	CUmodule module;
	CUfunction write_pages;
	uint32_t value = 0xabcdef01;

	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, "simcuda builtin"));
	CHECK(cuModuleGetFunction(&write_pages, module, "write_pages"));
	fill(&base, expected);
	write_word(write_pages, base, 2, 8192, value, NULL);
	memcpy(expected + 2 * PAGE + 8192, &value, sizeof(value));
	verify(base, expected, found);
	CHECK(cuDevicePrimaryCtxReset(device));
	CHECK(cuDevicePrimaryCtxRelease(device));
	CHECK(cuCtxSetCurrent(NULL));
}

/* The child must neither hang nor disturb its parent's memory. */
static void forked(void)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		CUdeviceptr base;

		cuMemAlloc(&base, PAGE);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
		fprintf(stderr, "the forked child ended with %d\n", status);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	uint8_t *expected = malloc(PAGES * PAGE), *found = malloc(PAGES * PAGE);
	int rounds = argc == 2 ? atoi(argv[1]) : 0;
	CUcontext context;
	CUdeviceptr kept;
	CUdevice device;
	int i;

	if (rounds < 1 || !expected || !found) {
		fprintf(stderr, "usage: contexts ROUNDS\n");
		return 2;
	}
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	for (i = 0; i < rounds; i++) {
		destroyed_context(device, expected, found);
		reset_primary(device, expected, found);
		CHECK(cuCtxCreate(&context, NULL, 0, device));
		fill(&kept, expected);
		forked();
		verify(kept, expected, found);
		CHECK(cuMemFree(kept));
		CHECK(cuCtxDestroy(context));
	}
	free(expected);
	free(found);
	return 0;
}
