/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, captures and modules used by several threads at once. */
#include "harness.h"

#include <pthread.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 25
#define WORDS 1024

static CUcontext shared;
static _Atomic int dead;

static void in_threads(void *(*body)(void *))
{
	pthread_t threads[THREADS];

	shared = begin();
	kernel("fill"); /* loaded here: loading is not for threads that capture */
	for (size_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, body, (void *)i));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

static CUgraph capture(CUstream stream, CUdeviceptr at, uint32_t value)
{
	CUgraph graph;

	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(cuMemsetD32Async(at, value, WORDS, stream));
	launch_fill(stream, at, 1, value + 1);
	OK(cuStreamEndCapture(stream, &graph));
	return graph;
}

static void *captures(void *argument)
{
	uint32_t value = (uint32_t)(uintptr_t)argument * 1000, seen[WORDS];
	CUstream stream;
	CUdeviceptr at;

	OK(cuCtxSetCurrent(shared));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc_v2(&at, sizeof(seen)));
	for (int round = 0; round < ROUNDS; round++, value++) {
		CUgraph graph = capture(stream, at, value);
		CUgraphExec exec;

		OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
		OK(cuGraphDestroy(graph));
		OK(cuGraphLaunch(exec, stream));
		OK(cuGraphLaunch(exec, stream));
		OK(cuGraphExecDestroy(exec));
		OK(cuMemcpyDtoHAsync_v2(seen, at, sizeof(seen), stream));
		OK(cuStreamSynchronize(stream));
		CHECK(seen[0] == value + 1 && seen[1] == value && seen[WORDS - 1] == value);
	}
	OK(cuStreamDestroy_v2(stream));
	return NULL;
}

static void threads_capture_and_launch_at_once(void)
{
	in_threads(captures);
}

static CUgraphExec common;
static CUdeviceptr common_at;

static void *launches(void *argument)
{
	CUstream stream;

	(void)argument;
	OK(cuCtxSetCurrent(shared));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int round = 0; round < ROUNDS; round++)
		OK(cuGraphLaunch(common, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	return NULL;
}

/* Each launch adds the words to themselves, two launches at once would lose one. */
static void launches_of_one_graph_never_overlap(void)
{
	pthread_t threads[2];
	uint32_t seen[4];
	CUstream stream;
	CUgraph graph;
	CUdeviceptr one;
	uint64_t count = 1;

	shared = begin();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc_v2(&common_at, sizeof(seen)));
	OK(cuMemAlloc_v2(&one, sizeof(seen)));
	launch_fill(stream, one, 1, 1);
	/* The launches below are in streams that are not ordered with this one. */
	OK(cuStreamSynchronize(stream));
	CUfunction add = kernel("add");
	void *params[] = {&common_at, &common_at, &one, &count};
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&common, graph, 0));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, launches, NULL));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
	OK(cuMemcpyDtoH_v2(seen, common_at, sizeof(seen)));
	CHECK(seen[0] == 2 * ROUNDS);
}

static void *loads(void *argument)
{
	(void)argument;
	OK(cuCtxSetCurrent(shared));
	for (int round = 0; round < ROUNDS; round++) {
		CUmodule module;
		CUfunction function;
		CUdeviceptr global;

		OK(cuModuleLoadData(&module, SIMCUDA_BUILTIN_IMAGE));
		OK(cuModuleGetFunction(&function, module, "fill"));
		OK(cuModuleGetGlobal_v2(&global, NULL, module, SIMCUDA_BUILTIN_GLOBAL));
		uint64_t count = 4;
		uint32_t value = 5;
		void *params[] = {&global, &count, &value};
		OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, params,
				  NULL));
		OK(cuModuleUnload(module));
		IS(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
	}
	return NULL;
}

static void modules_come_and_go_in_threads(void)
{
	in_threads(loads);
}

/* Until its context is dead, which must show as an error and as nothing else. */
static void *captures_until_dead(void *argument)
{
	CUstream stream = NULL;
	CUdeviceptr at = 0;

	(void)argument;
	cuCtxSetCurrent(shared);
	if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) || cuMemAlloc_v2(&at, 64))
		return NULL;
	while (!dead) {
		CUgraph graph = NULL;
		CUgraphExec exec;

		cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
		cuMemsetD32Async(at, 1, 4, stream);
		if (cuStreamEndCapture(stream, &graph))
			continue;
		if (!cuGraphInstantiateWithFlags(&exec, graph, 0)) {
			cuGraphLaunch(exec, stream);
			cuGraphExecDestroy(exec);
		}
		cuGraphDestroy(graph);
	}
	return NULL;
}

static void a_context_may_die_under_captures(void)
{
	pthread_t threads[THREADS];
	CUstream stream;

	shared = begin();
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, captures_until_dead, NULL));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	usleep(20000);
	launch_fill(stream, 0x700000000000, 1, 1);
	IS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	dead = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	IS(cuCtxDestroy_v2(shared), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(begin() != shared);
}

static CUgraph nested(int depth)
{
	CUgraph graph, inner;
	CUgraphNode node, first;

	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddEmptyNode(&first, graph, NULL, 0));
	if (depth) {
		inner = nested(depth - 1);
		OK(cuGraphAddChildGraphNode(&node, graph, &first, 1, inner));
		OK(cuGraphDestroy(inner));
	}
	return graph;
}

static void nested_graphs_are_cloned_and_freed_whole(void)
{
	begin();
	for (int round = 0; round < 10; round++) {
		CUgraph graph = nested(6), clone;
		CUgraphExec exec;

		OK(cuGraphClone(&clone, graph));
		OK(cuGraphDestroy(graph));
		OK(cuGraphInstantiateWithFlags(&exec, clone, 0));
		OK(cuGraphLaunch(exec, NULL));
		OK(cuGraphExecDestroy(exec));
		OK(cuGraphDestroy(clone));
	}
	OK(cuCtxSynchronize());
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
		FACT(threads_capture_and_launch_at_once),
		FACT(launches_of_one_graph_never_overlap),
		FACT(modules_come_and_go_in_threads),
		FACT(a_context_may_die_under_captures),
		FACT(nested_graphs_are_cloned_and_freed_whole),
	};

	return run_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
