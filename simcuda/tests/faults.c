/* SPDX-License-Identifier: Apache-2.0 */
/* Device faults: fatal ones, and those that a guard holds. */
#include "harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gksm/guard.h"

extern gksm_sim_guard_open simcudaGuardOpen;

struct guard {
	int fd;
	_Atomic uint8_t *states;
	CUdeviceptr base;
	uint64_t pages;
};

static int guard_try(struct guard *guard, CUdeviceptr base, uint64_t pages, unsigned deadline_ms,
		     unsigned budget_ms)
{
	struct gksm_guard_register wanted = {
		.bytes = sizeof(wanted),
		.uvm_fd = -1,
		.arena_base = base,
		.arena_pages = pages,
		.deadline_ms = deadline_ms,
		.stall_budget_ms = budget_ms,
	};
	CUuuid uuid;
	int state_fd, error;

	OK(cuDeviceGetUuid_v2(&uuid, 0));
	memcpy(wanted.gpu_uuid, uuid.bytes, sizeof(wanted.gpu_uuid));
	error = simcudaGuardOpen(&wanted, &guard->fd, &state_fd);
	if (error)
		return error;
	guard->states = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
	CHECK(guard->states != MAP_FAILED);
	close(state_fd);
	guard->base = base;
	guard->pages = pages;
	return 0;
}

static struct guard guard_open(CUdeviceptr base, uint64_t pages, unsigned deadline_ms)
{
	struct guard guard;

	CHECK(!guard_try(&guard, base, pages, deadline_ms, 60000));
	return guard;
}

static struct gksm_fault fault_next(struct guard *guard)
{
	struct pollfd wait = {.fd = guard->fd, .events = POLLIN};
	struct gksm_fault fault;

	CHECK(poll(&wait, 1, 20000) == 1);
	CHECK(read(guard->fd, &fault, sizeof(fault)) == sizeof(fault));
	return fault;
}

static void fault_answer(struct guard *guard, uint64_t page, enum gksm_fault_verdict verdict)
{
	struct gksm_fault_answer answer = {.page = page, .verdict = verdict};

	CHECK(write(guard->fd, &answer, sizeof(answer)) == sizeof(answer));
}

static bool quiet(struct guard *guard)
{
	struct gksm_fault fault;

	return read(guard->fd, &fault, sizeof(fault)) < 0 && errno == EAGAIN;
}

static void make_writable(struct guard *guard, uint64_t page)
{
	access_set(guard->base + page * PAGE, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	atomic_store(&guard->states[page], GKSM_STATE_PASS);
}

static CUdeviceptr pages_new(size_t count, CUmemAccess_flags flags)
{
	CUdeviceptr at = reserve(count * PAGE);

	for (size_t i = 0; i < count; i++) {
		CUmemGenericAllocationHandle handle = handle_new(PAGE);

		OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
		OK(cuMemRelease(handle));
	}
	access_set(at, count * PAGE, flags);
	return at;
}

static uint32_t word_at(CUdeviceptr at)
{
	uint32_t word;

	OK(cuMemcpyDtoH_v2(&word, at, sizeof(word)));
	return word;
}

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

/* ---- held ones ---------------------------------------------------------------------- */

static void a_held_write_goes_on_once_it_is_answered(void)
{
	begin();
	CUdeviceptr at = pages_new(4, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 4, 5000);

	for (int i = 0; i < 4; i++)
		atomic_store(&guard.states[i], GKSM_STATE_HOLD_WRITES);
	CHECK(quiet(&guard));
	launch_fill(NULL, at, 4 * PAGE / 4, 5);
	for (uint64_t page = 0; page < 4; page++) {
		struct gksm_fault fault = fault_next(&guard);

		CHECK(fault.page == page && fault.access == GKSM_FAULT_WRITE && fault.held_ns &&
		      fault.sequence == page + 1);
		IS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
		make_writable(&guard, page);
		fault_answer(&guard, page, GKSM_FAULT_DONE);
	}
	OK(cuCtxSynchronize());
	CHECK(word_at(at + 4 * PAGE - 4) == 5);
}

static void a_page_is_reported_once_and_anew_if_it_still_faults(void)
{
	CUstream streams[3];

	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 1, 5000);

	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	for (int i = 0; i < 3; i++) {
		OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
		launch_fill(streams[i], at, 16, 1);
	}
	fault_next(&guard);
	fault_answer(&guard, 0, GKSM_FAULT_DONE);
	fault_next(&guard);
	CHECK(quiet(&guard));
	make_writable(&guard, 0);
	fault_answer(&guard, 0, GKSM_FAULT_DONE);
	OK(cuCtxSynchronize());
}

static void a_refused_fault_kills_the_context(void)
{
	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 1, 5000);

	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	launch_fill(NULL, at, 16, 1);
	fault_answer(&guard, fault_next(&guard).page, GKSM_FAULT_REFUSE);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void a_fault_that_nobody_answers_is_refused_at_its_deadline(void)
{
	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 1, 50);

	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	launch_fill(NULL, at, 16, 1);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void a_closed_guard_refuses_what_it_holds(void)
{
	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 1, 60000), second;

	CHECK(guard_try(&second, at, 1, 0, 0) == -EBUSY);
	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	launch_fill(NULL, at, 16, 1);
	fault_next(&guard);
	close(guard.fd);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	while (guard_try(&second, at, 1, 0, 0) == -EBUSY)
		usleep(1000);
}

static void a_fault_where_the_state_says_pass_or_nonsense_is_fatal(void)
{
	static const uint8_t values[] = {GKSM_STATE_PASS, 77};

	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 1, 5000);

	for (int i = 0; i < 2; i++) {
		CUcontext context;

		OK(cuCtxCreate_v2(&context, 0, 0));
		atomic_store(&guard.states[0], values[i]);
		launch_fill(NULL, at, 16, 1);
		IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	}
	CHECK(quiet(&guard));
}

static void standing_still_too_long_is_said_once(void)
{
	struct gksm_fault fault;
	struct guard guard;

	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);

	CHECK(!guard_try(&guard, at, 1, 20000, 20));
	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	launch_fill(NULL, at, 16, 1);
	CHECK(fault_next(&guard).access == GKSM_FAULT_WRITE);
	fault = fault_next(&guard);
	CHECK(fault.access == GKSM_FAULT_OVER_BUDGET);
	CHECK(quiet(&guard));
	make_writable(&guard, 0);
	fault_answer(&guard, 0, GKSM_FAULT_DONE);
	OK(cuCtxSynchronize());
	CHECK(quiet(&guard));
}

static void a_device_without_a_guard_says_so(void)
{
	struct guard guard;

	setenv("SIMCUDA_GUARD", "0", 1);
	begin();
	CHECK(guard_try(&guard, reserve(PAGE), 1, 0, 0) == -ENODEV);
}

/* ---- while a fault is held the device stands still for everybody ------------------- */

static void work_beside_a_held_fault(int channel)
{
	CUstream kernels, sets, moves, copies;
	CUdeviceptr at, to;
	void *pinned;

	begin();
	OK(cuMemAlloc_v2(&at, PAGE));
	OK(cuMemAlloc_v2(&to, PAGE));
	OK(cuMemAllocHost_v2(&pinned, PAGE));
	OK(cuStreamCreate(&kernels, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&sets, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&moves, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING));
	wait_for(channel);
	launch_fill(kernels, at, PAGE / 4, 1);
	OK(cuMemsetD8Async(to, 1, PAGE, sets));
	OK(cuMemcpyDtoDAsync_v2(to, at, PAGE, moves));
	OK(cuMemcpyHtoDAsync_v2(at, pinned, PAGE, copies));
	OK(cuMemcpyDtoHAsync_v2(pinned, at, PAGE, copies));
	OK(cuStreamSynchronize(copies));
	IS(cuStreamQuery(kernels), CUDA_ERROR_NOT_READY);
	IS(cuStreamQuery(sets), CUDA_ERROR_NOT_READY);
	IS(cuStreamQuery(moves), CUDA_ERROR_NOT_READY);
	tell(channel);
	OK(cuCtxSynchronize());
	tell(channel);
}

static void hold_a_fault(int channel)
{
	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 1, 60000);

	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	launch_fill(NULL, at, 16, 1);
	fault_next(&guard);
	tell(channel);
	wait_for(channel);
	make_writable(&guard, 0);
	fault_answer(&guard, 0, GKSM_FAULT_DONE);
	OK(cuCtxSynchronize());
}

static void a_held_fault_stops_another_process_but_not_its_copies_over_pcie(void)
{
	struct child holder = child_start(hold_a_fault),
		     other = child_start(work_beside_a_held_fault);

	wait_for(holder.channel);
	tell(other.channel);
	wait_for(other.channel);
	CHECK(!told_within(other.channel, 200));
	tell(holder.channel);
	wait_for(other.channel);
	child_end(other);
	child_end(holder);
}

static void a_killed_holder_releases_the_device(void)
{
	struct child holder = child_start(hold_a_fault),
		     other = child_start(work_beside_a_held_fault);

	wait_for(holder.channel);
	tell(other.channel);
	wait_for(other.channel);
	child_kill(holder);
	wait_for(other.channel);
	child_end(other);
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
		FACT(a_held_write_goes_on_once_it_is_answered),
		FACT(a_page_is_reported_once_and_anew_if_it_still_faults),
		FACT(a_refused_fault_kills_the_context),
		FACT(a_fault_that_nobody_answers_is_refused_at_its_deadline),
		FACT(a_closed_guard_refuses_what_it_holds),
		FACT(a_fault_where_the_state_says_pass_or_nonsense_is_fatal),
		FACT(standing_still_too_long_is_said_once),
		FACT(a_device_without_a_guard_says_so),
		FACT(a_held_fault_stops_another_process_but_not_its_copies_over_pcie),
		FACT(a_killed_holder_releases_the_device),
		FACT(the_applications_own_fault_handler_works_before_and_after_cuinit),
	};

	return run_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
