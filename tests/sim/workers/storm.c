/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm THREADS ROUNDS SEED: threads that allocate, load, launch, copy, set, read back
 * and free at once. Few different pages, so that they share with each other and with
 * other processes that run the same.
 */
#include <pthread.h>

#include "worker.h"

#define PAGES_MAX 4
#define SEEDS 5

struct storm {
	CUcontext context;
	CUfunction write_pages;
	int rounds;
	uint64_t seed;
};

struct thread {
	struct storm *storm;
	pthread_t id;
	uint64_t number;
};

static void change(struct storm *storm, CUdeviceptr base, size_t pages, uint8_t *expected,
		   CUstream stream, uint64_t *dice)
{
	size_t page = next_random(dice) % pages, other = next_random(dice) % pages;
	size_t offset = next_random(dice) % (PAGE / 4) * 4;
	uint32_t value = (uint32_t)next_random(dice);
	uint8_t *at = expected + page * PAGE;

	switch (next_random(dice) % 5) {
	case 0:
		write_word(storm->write_pages, base, page, offset, value, stream);
		memcpy(at + offset, &value, sizeof(value));
		break;
	case 1:
		CHECK(cuMemcpyHtoDAsync(base + page * PAGE + offset, &value, sizeof(value),
					stream));
		memcpy(at + offset, &value, sizeof(value));
		break;
	case 2:
		if (page == other)
			break;
		CHECK(cuMemcpyDtoDAsync(base + page * PAGE, base + other * PAGE, PAGE, stream));
		memcpy(at, expected + other * PAGE, PAGE);
		break;
	case 3:
		CHECK(cuMemsetD8Async(base + page * PAGE, (unsigned char)value, PAGE, stream));
		memset(at, (unsigned char)value, PAGE);
		break;
	default:
		break;
	}
}

static void one_round(struct storm *storm, CUstream stream, uint8_t *expected, uint8_t *found,
		      uint64_t *dice)
{
	size_t pages = 1 + next_random(dice) % PAGES_MAX, i;
	CUdeviceptr base;

	for (i = 0; i < pages; i++)
		fill_page((uint64_t *)(expected + i * PAGE), 1 + next_random(dice) % SEEDS);
	CHECK(cuMemAlloc(&base, pages * PAGE));
	if (next_random(dice) % 2) {
		CHECK(cuMemcpyHtoD(base, expected, pages * PAGE));
	} else {
		/* In two parts that meet inside a page. */
		size_t part = pages * PAGE - PAGE / 2 - 4096;

		CHECK(cuMemcpyHtoDAsync(base + part, expected + part, pages * PAGE - part, stream));
		CHECK(cuMemcpyHtoDAsync(base, expected, part, stream));
	}
	for (i = next_random(dice) % 4; i; i--)
		change(storm, base, pages, expected, stream, dice);
	CHECK(cuMemcpyDtoHAsync(found, base, pages * PAGE, stream));
	CHECK(cuStreamSynchronize(stream));
	if (memcmp(expected, found, pages * PAGE) != 0) {
		fprintf(stderr, "wrong bytes read back\n");
		exit(1);
	}
	CHECK(cuMemFree(base));
}

static void *work(void *argument)
{
	struct thread *self = argument;
	uint64_t dice = (self->storm->seed + 1) * 1000003 + self->number * 7919;
	uint8_t *expected = malloc(PAGES_MAX * PAGE), *found = malloc(PAGES_MAX * PAGE);
	CUstream stream;
	int i;

	if (!expected || !found)
		exit(1);
	CHECK(cuCtxSetCurrent(self->storm->context));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (i = 0; i < self->storm->rounds; i++)
		one_round(self->storm, stream, expected, found, &dice);
	CHECK(cuStreamDestroy(stream));
	free(expected);
	free(found);
	return NULL;
}

int main(int argc, char **argv)
{
	struct thread threads[16];
	struct storm storm = {0};
	CUdevice device;
	CUmodule module;
	int count, i;

	if (argc != 4 || (count = atoi(argv[1])) < 1 || count > 16) {
		fprintf(stderr, "usage: storm THREADS ROUNDS SEED\n");
		return 2;
	}
	storm.rounds = atoi(argv[2]);
	storm.seed = strtoull(argv[3], NULL, 10);
	storm.context = worker_start(&module);
	CHECK(cuModuleGetFunction(&storm.write_pages, module, "write_pages"));
	for (i = 0; i < count; i++) {
		threads[i] = (struct thread){.storm = &storm, .number = (uint64_t)i};
		if (pthread_create(&threads[i].id, NULL, work, &threads[i]) != 0)
			return 1;
	}
	for (i = 0; i < count; i++)
		pthread_join(threads[i].id, NULL);
	CHECK(cuModuleUnload(module));
	CHECK(cuCtxGetDevice(&device));
	CHECK(cuDevicePrimaryCtxRelease(device));
	return 0;
}
