/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that a guard holds, and what stands still meanwhile. */
#include <signal.h>

#include "guarding.h"

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

static void hold_a_fault_briefly(int channel)
{
	begin();
	CUdeviceptr at = pages_new(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	struct guard guard = guard_open(at, 1, 4000);

	atomic_store(&guard.states[0], GKSM_STATE_HOLD_WRITES);
	launch_fill(NULL, at, 16, 1);
	fault_next(&guard);
	tell(channel);
	/* Frozen here; what comes after that is too late. */
	wait_for(channel);
	make_writable(&guard, 0);
	fault_answer(&guard, 0, GKSM_FAULT_DONE);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void a_frozen_holder_stops_the_device_no_longer_than_its_deadline(void)
{
	struct child holder = child_start(hold_a_fault_briefly),
		     other = child_start(work_beside_a_held_fault);

	wait_for(holder.channel);
	CHECK(!kill(holder.pid, SIGSTOP));
	tell(other.channel);
	wait_for(other.channel);
	wait_for(other.channel);
	child_end(other);
	tell(holder.channel);
	CHECK(!kill(holder.pid, SIGCONT));
	child_end(holder);
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
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
		FACT(a_frozen_holder_stops_the_device_no_longer_than_its_deadline),
	};

	return run_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
