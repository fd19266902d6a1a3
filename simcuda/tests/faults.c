/* SPDX-License-Identifier: Apache-2.0 */
/* Device faults that kill, the hole in every change of a mapping, and signals. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include "guarding.h"

/* ---- fatal ones ------------------------------------------------------------------ */

static void a_kernel_store_to_a_read_only_page_kills_its_context_alone(void)
{
	CUcontext other = begin(), context;
	CUdeviceptr at, mine;

	OK(cuMemAlloc_v2(&mine, 64));
	OK(cuCtxCreate_v2(&context, 0, 0));
	at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READ, NULL);
	launch_fill(NULL, at, 16, 1);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	IS(cuMemAlloc_v2(&at, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
	IS(cuCtxDestroy_v2(context), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cuCtxSetCurrent(other));
	launch_fill(NULL, mine, 16, 7);
	OK(cuCtxSynchronize());
	CHECK(word_at(mine) == 7);
}

static void a_kernel_touch_of_nothing_kills_its_context(void)
{
	CUdeviceptr hole;

	begin();
	hole = reserve(PAGE);
	launch_fill(NULL, hole, 1, 1);
	IS(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void a_copy_that_meets_a_hole_when_it_runs_kills_the_context(void)
{
	CUdeviceptr at, flag;
	void *pinned;

	begin();
	at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);
	struct guard guard = guard_open(at, 1, 5000);

	OK(cuMemAllocHost_v2(&pinned, PAGE));
	OK(cuMemAlloc_v2(&flag, 4));
	OK(cuStreamWaitValue32_v2(NULL, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuMemcpyDtoHAsync_v2(pinned, at, PAGE, NULL));
	/* Guard or not: the faults of copy engines are not held. */
	atomic_store(&guard.states[0], GKSM_STATE_HOLD_ALL);
	OK(cuMemUnmap(at, PAGE));

	CUstream other;

	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	OK(cuStreamWriteValue32_v2(other, flag, 1, 0));
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(quiet(&guard));
}

static CUgraphExec graph_of_a_set(CUdeviceptr at)
{
	CUDA_MEMSET_NODE_PARAMS set = {
		.dst = at, .value = 1, .elementSize = 4, .width = 4, .height = 1};
	CUcontext context;
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph graph;

	OK(cuCtxGetCurrent(&context));
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, context));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static void a_graphs_set_of_a_read_only_page_launches_and_then_kills_the_context(void)
{
	CUdeviceptr at;

	begin();
	at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);
	CUgraphExec exec = graph_of_a_set(at);

	access_set(at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ);
	OK(cuGraphLaunch(exec, NULL));
	IS(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
}

/* ---- the hole in every change ----------------------------------------------------- */

struct toggled {
	CUcontext context;
	CUdeviceptr at;
	struct guard *guard;
	_Atomic bool stop;
	unsigned toggles;
};

/* Says what it is going to do before it does it, as libgksm does. */
static void state_set(struct toggled *page, uint8_t state)
{
	if (page->guard)
		atomic_store(&page->guard->states[0], state);
}

static void *toggle_rights(void *argument)
{
	struct toggled *page = argument;

	while (!atomic_load(&page->stop)) {
		state_set(page, GKSM_STATE_HOLD_ALL);
		access_set(page->at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		state_set(page, GKSM_STATE_PASS);
		state_set(page, GKSM_STATE_HOLD_ALL);
		access_set(page->at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ);
		state_set(page, GKSM_STATE_HOLD_WRITES);
		page->toggles++;
	}
	return NULL;
}

/* A kernel that reads the page again and again while its rights change. */
static CUresult read_while_toggling(struct toggled *page, unsigned rounds)
{
	CUdeviceptr out;
	pthread_t thread;
	CUresult result = CUDA_SUCCESS;

	OK(cuMemAlloc_v2(&out, 8));
	CHECK(!pthread_create(&thread, NULL, toggle_rights, page));
	for (unsigned i = 0; i < rounds && result == CUDA_SUCCESS; i++) {
		launch_sum(NULL, out, page->at, PAGE / 4);
		result = cuCtxSynchronize();
	}
	atomic_store(&page->stop, true);
	pthread_join(thread, NULL);
	CHECK(page->toggles);
	return result;
}

static void without_a_guard_a_reader_dies_in_the_hole_of_a_change(void)
{
	struct toggled page = {0};

	begin();
	page.at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READ, NULL);
	CHECK(read_while_toggling(&page, 100000) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void *answer_all(void *argument)
{
	struct guard *guard = argument;
	struct gksm_fault fault;

	for (;;) {
		struct pollfd wait = {.fd = guard->fd, .events = POLLIN};

		if (poll(&wait, 1, 100) == 1 &&
		    read(guard->fd, &fault, sizeof(fault)) == sizeof(fault) &&
		    fault.access != GKSM_FAULT_OVER_BUDGET)
			fault_answer(guard, fault.page, GKSM_FAULT_DONE);
	}
	return NULL;
}

static void with_a_guard_a_reader_survives_the_hole_of_a_change(void)
{
	struct toggled page = {0};
	pthread_t thread;

	begin();
	page.at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READ, NULL);
	struct guard guard = guard_open(page.at, 1, 5000);

	page.guard = &guard;
	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	CHECK(!pthread_create(&thread, NULL, answer_all, &guard));
	OK(read_while_toggling(&page, 60));
}

/* ---- whose signal it is -------------------------------------------------------------- */

static sigjmp_buf *application_jump;

static void application_handler(int number)
{
	(void)number;
	siglongjmp(*application_jump, 1);
}

static void the_applications_own_fault_handler_works_before_and_after_cuinit(void)
{
	struct sigaction own = {.sa_handler = application_handler};
	sigjmp_buf jump;

	application_jump = &jump;
	CHECK(!sigaction(SIGSEGV, &own, NULL));
	begin();
	CUdeviceptr at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READ, NULL);

	if (!sigsetjmp(jump, 1)) {
		*(volatile int *)(uintptr_t)at = 1;
		CHECK(!"the host cannot reach device memory");
	}
	CHECK(!sigaction(SIGSEGV, &own, NULL));
	launch_fill(NULL, at, 16, 1);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	if (!sigsetjmp(jump, 1)) {
		*(volatile int *)(uintptr_t)at = 1;
		CHECK(!"the host cannot reach device memory");
	}
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
		FACT(a_kernel_store_to_a_read_only_page_kills_its_context_alone),
		FACT(a_kernel_touch_of_nothing_kills_its_context),
		FACT(a_copy_that_meets_a_hole_when_it_runs_kills_the_context),
		FACT(a_graphs_set_of_a_read_only_page_launches_and_then_kills_the_context),
		FACT(without_a_guard_a_reader_dies_in_the_hole_of_a_change),
		FACT(with_a_guard_a_reader_survives_the_hole_of_a_change),
		FACT(the_applications_own_fault_handler_works_before_and_after_cuinit),
	};

	return run_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
