/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for what: streams, events, copies, frees. */
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* A word in pinned memory that holds work back: kernels spin on it. */
struct latch {
	_Atomic uint32_t *word;
	CUdeviceptr address;
};

static struct latch latch_new(void)
{
	struct latch latch;
	void *at;

	OK(cuMemAllocHost_v2(&at, 4096));
	latch.word = at;
	latch.address = (CUdeviceptr)(uintptr_t)at;
	return latch;
}

static void latch_open(struct latch *latch)
{
	atomic_store(latch->word, 1);
}

static void hold_back(CUstream stream, struct latch *latch)
{
	launch_spin(stream, latch->address, 1);
}

static uint32_t word_of(CUdeviceptr at)
{
	uint32_t word;
	CUstream own;

	/* In a stream of its own, to look without waiting for anything. */
	OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
	OK(cuMemcpyDtoHAsync_v2(&word, at, 4, own));
	OK(cuStreamSynchronize(own));
	OK(cuStreamDestroy_v2(own));
	return word;
}

static CUstream stream_new(unsigned flags)
{
	CUstream stream;

	OK(cuStreamCreate(&stream, flags));
	return stream;
}

static CUdeviceptr words_new(void)
{
	CUdeviceptr at;

	OK(cuMemAlloc_v2(&at, PAGE));
	return at;
}

static void the_null_stream_and_blocking_streams_wait_for_each_other(void)
{
	begin();
	struct latch latch = latch_new();
	CUstream blocking = stream_new(CU_STREAM_DEFAULT), second = stream_new(CU_STREAM_DEFAULT),
		 independent = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = words_new();

	hold_back(blocking, &latch);
	OK(cuMemsetD32Async(at, 1, 1, NULL));
	OK(cuMemsetD32Async(at + 4, 1, 1, second));
	OK(cuMemsetD32Async(at + 8, 1, 1, independent));
	OK(cuMemsetD32Async(at + 12, 1, 1, CU_STREAM_PER_THREAD));
	OK(cuStreamSynchronize(independent));
	usleep(50000);
	CHECK(word_of(at) == 0);
	CHECK(word_of(at + 4) == 0);
	CHECK(word_of(at + 8) == 1);
	CHECK(word_of(at + 12) == 0);
	IS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	latch_open(&latch);
	OK(cuStreamSynchronize(second));
	CHECK(word_of(at) == 1 && word_of(at + 4) == 1);
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	CHECK(word_of(at + 12) == 1);
}

static void blocking_streams_do_not_wait_for_each_other(void)
{
	begin();
	struct latch latch = latch_new();
	CUstream first = stream_new(CU_STREAM_DEFAULT), second = stream_new(CU_STREAM_DEFAULT);
	CUdeviceptr at = words_new();

	hold_back(first, &latch);
	OK(cuMemsetD32Async(at, 1, 1, second));
	OK(cuStreamSynchronize(second));
	IS(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
	latch_open(&latch);
	OK(cuCtxSynchronize());
}

static void an_event_orders_streams_and_stands_for_its_last_record(void)
{
	CUevent event, plain;
	float milliseconds;

	begin();
	struct latch latch = latch_new();
	CUstream first = stream_new(CU_STREAM_NON_BLOCKING),
		 second = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = words_new();

	OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	OK(cuEventQuery(event));
	OK(cuEventRecord(event, first));
	OK(cuEventSynchronize(event));
	hold_back(first, &latch);
	OK(cuMemsetD32Async(at, 7, 1, first));
	OK(cuEventRecord(event, first));
	OK(cuStreamWaitEvent(second, event, 0));
	OK(cuMemcpyDtoDAsync_v2(at + 4, at, 4, second));
	IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	IS(cuEventElapsedTime(&milliseconds, event, event), CUDA_ERROR_NOT_READY);
	latch_open(&latch);
	OK(cuStreamSynchronize(second));
	CHECK(word_of(at + 4) == 7);
	OK(cuEventElapsedTime(&milliseconds, event, event));
	IS(cuEventElapsedTime(&milliseconds, event, plain), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventDestroy_v2(event));
	IS(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

static void pageable_sources_are_staged_and_pinned_ones_are_read_when_it_is_their_turn(void)
{
	uint32_t pageable = 1, *pinned;
	void *memory;

	begin();
	struct latch latch = latch_new();
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = words_new();

	OK(cuMemAllocHost_v2(&memory, 4096));
	pinned = memory;
	*pinned = 1;
	hold_back(stream, &latch);
	OK(cuMemcpyHtoDAsync_v2(at, &pageable, 4, stream));
	OK(cuMemcpyHtoDAsync_v2(at + 4, pinned, 4, stream));
	pageable = 2;
	*pinned = 2;
	latch_open(&latch);
	OK(cuStreamSynchronize(stream));
	CHECK(word_of(at) == 1);
	CHECK(word_of(at + 4) == 2);
}

static void a_copy_to_pageable_memory_is_done_when_the_call_returns(void)
{
	uint32_t word = 0;

	begin();
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = words_new();

	launch_fill(stream, at, 1, 9);
	OK(cuMemcpyDtoHAsync_v2(&word, at, 4, stream));
	CHECK(word == 9);
}

struct blocked {
	CUcontext context;
	CUdeviceptr at;
	_Atomic pid_t thread;
	_Atomic int done;
};

static void *free_it(void *argument)
{
	struct blocked *blocked = argument;

	OK(cuCtxSetCurrent(blocked->context));
	atomic_store(&blocked->thread, gettid());
	OK(cuMemFree_v2(blocked->at));
	atomic_store(&blocked->done, 1);
	return NULL;
}

/* Until the thread sleeps, and goes on sleeping, in the call it has announced. */
static void wait_asleep(_Atomic pid_t *thread)
{
	int asleep = 0;

	while (asleep < 20) {
		char path[64], state = '?';
		FILE *file;

		usleep(1000);
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(thread));
		file = fopen(path, "r");
		if (file && fscanf(file, "%*d %*s %c", &state) == 1 && state == 'S')
			asleep++;
		else
			asleep = 0;
		if (file)
			fclose(file);
	}
}

static void *copy_it(void *argument)
{
	struct blocked *blocked = argument;
	uint32_t word;

	OK(cuCtxSetCurrent(blocked->context));
	OK(cuMemcpyDtoHAsync_v2(&word, blocked->at, 4, stream_new(CU_STREAM_NON_BLOCKING)));
	atomic_store(&blocked->done, 1);
	return NULL;
}

static void a_free_waits_for_the_contexts_work_and_copies_queue_up_behind_it(void)
{
	struct blocked freeing = {.context = begin()}, copying = {.context = freeing.context};
	pthread_t threads[2];

	struct latch latch = latch_new();

	freeing.at = words_new();
	copying.at = words_new();
	hold_back(stream_new(CU_STREAM_NON_BLOCKING), &latch);
	CHECK(!pthread_create(&threads[0], NULL, free_it, &freeing));
	wait_asleep(&freeing.thread);
	CHECK(!pthread_create(&threads[1], NULL, copy_it, &copying));
	usleep(50000);
	CHECK(!atomic_load(&freeing.done));
	CHECK(!atomic_load(&copying.done));
	/* What changes mappings does not wait. */
	CUdeviceptr page = page_new(CU_MEM_ACCESS_FLAGS_PROT_READ, NULL);

	OK(cuMemUnmap(page, PAGE));
	/* Nor does a copy in another context of the process. */
	CUcontext second;
	uint32_t word;

	OK(cuCtxCreate_v2(&second, 0, 0));
	OK(cuMemcpyDtoH_v2(&word, copying.at, 4));
	CHECK(!atomic_load(&freeing.done));
	latch_open(&latch);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
}

static void a_stream_value_is_waited_for_and_written_in_order(void)
{
	begin();
	CUstream first = stream_new(CU_STREAM_NON_BLOCKING),
		 second = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr flag = words_new(), at = words_new();

	OK(cuStreamWaitValue32_v2(first, flag, 5, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuMemsetD32Async(at, 1, 1, first));
	OK(cuStreamWriteValue32_v2(second, flag, 4, 0));
	OK(cuStreamSynchronize(second));
	IS(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
	OK(cuStreamWriteValue32_v2(second, flag, 6, 0));
	OK(cuStreamSynchronize(first));
	CHECK(word_of(at) == 1);
}

static _Atomic int calls;
static CUresult inside;

static void count_call(void *argument)
{
	CUdeviceptr at;

	(void)argument;
	inside = cuMemAlloc_v2(&at, 64);
	atomic_fetch_add(&calls, 1);
}

static void host_functions_run_in_order_and_may_not_call_the_driver(void)
{
	begin();
	struct latch latch = latch_new();
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);

	hold_back(stream, &latch);
	OK(cuLaunchHostFunc(stream, count_call, NULL));
	usleep(20000);
	CHECK(!atomic_load(&calls));
	latch_open(&latch);
	OK(cuStreamSynchronize(stream));
	CHECK(atomic_load(&calls) == 1 && inside == CUDA_ERROR_NOT_PERMITTED);
}

static void work_of_a_destroyed_stream_still_runs(void)
{
	begin();
	struct latch latch = latch_new();
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = words_new();

	hold_back(stream, &latch);
	OK(cuMemsetD32Async(at, 3, 1, stream));
	OK(cuStreamDestroy_v2(stream));
	IS(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
	latch_open(&latch);
	OK(cuCtxSynchronize());
	CHECK(word_of(at) == 3);
}

static void stream_ordered_memory_is_freed_when_the_stream_gets_there(void)
{
	CUdeviceptr at;

	begin();
	struct latch latch = latch_new();
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);

	OK(cuMemAllocAsync(&at, PAGE, stream));
	hold_back(stream, &latch);
	OK(cuMemFreeAsync(at, stream));
	IS(cuMemFreeAsync(at, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(used() == PAGE);
	latch_open(&latch);
	OK(cuStreamSynchronize(stream));
	CHECK(used() == 0);
}

struct worker {
	CUcontext context;
	uint32_t seed;
};

static void *work_at_random(void *argument)
{
	struct worker *worker = argument;
	CUstream stream;
	CUdeviceptr at;

	OK(cuCtxSetCurrent(worker->context));
	stream = stream_new(worker->seed % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
	for (uint32_t i = 1; i <= 30; i++) {
		uint32_t value = worker->seed * 1000 + i, back = 0;
		CUevent event;

		OK(cuMemAlloc_v2(&at, i % 3 ? 4096 : 3 * MIB));
		OK(cuEventCreate(&event, 0));
		OK(cuMemcpyHtoDAsync_v2(at, &value, 4, stream));
		OK(cuMemcpyDtoDAsync_v2(at + 4, at, 4, stream));
		OK(cuEventRecord(event, stream));
		OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
		OK(cuMemcpyDtoHAsync_v2(&back, at + 4, 4, CU_STREAM_PER_THREAD));
		CHECK(back == value);
		OK(cuEventDestroy_v2(event));
		OK(cuMemFree_v2(at));
	}
	OK(cuStreamDestroy_v2(stream));
	return NULL;
}

static void threads_that_allocate_copy_and_free_at_once_see_their_own_bytes(void)
{
	struct worker workers[4];
	pthread_t threads[4];
	CUcontext context = begin();

	for (uint32_t i = 0; i < 4; i++) {
		workers[i] = (struct worker){context, i + 1};
		CHECK(!pthread_create(&threads[i], NULL, work_at_random, &workers[i]));
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	CHECK(used() == 0);
	OK(cuCtxDestroy_v2(context));
}

static void a_primary_context_is_counted_and_keeps_its_handle(void)
{
	CUcontext first, second, again;
	unsigned flags;
	CUdeviceptr at;
	int active;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&first, 0));
	OK(cuDevicePrimaryCtxRetain(&second, 0));
	CHECK(first == second);
	OK(cuCtxSetCurrent(first));
	OK(cuMemAlloc_v2(&at, PAGE));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	CHECK(used() == PAGE);
	OK(cuDevicePrimaryCtxReset_v2(0));
	CHECK(used() == 0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	IS(cuMemAlloc_v2(&at, PAGE), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	IS(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuDevicePrimaryCtxRetain(&again, 0));
	CHECK(again == first);
	OK(cuMemAlloc_v2(&at, PAGE));
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
		FACT(the_null_stream_and_blocking_streams_wait_for_each_other),
		FACT(blocking_streams_do_not_wait_for_each_other),
		FACT(an_event_orders_streams_and_stands_for_its_last_record),
		FACT(pageable_sources_are_staged_and_pinned_ones_are_read_when_it_is_their_turn),
		FACT(a_copy_to_pageable_memory_is_done_when_the_call_returns),
		FACT(a_free_waits_for_the_contexts_work_and_copies_queue_up_behind_it),
		FACT(a_stream_value_is_waited_for_and_written_in_order),
		FACT(host_functions_run_in_order_and_may_not_call_the_driver),
		FACT(work_of_a_destroyed_stream_still_runs),
		FACT(stream_ordered_memory_is_freed_when_the_stream_gets_there),
		FACT(threads_that_allocate_copy_and_free_at_once_see_their_own_bytes),
		FACT(a_primary_context_is_counted_and_keeps_its_handle),
	};

	return run_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
