/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of one device may do with the memory of another. */
#include <stdatomic.h>

#include <pthread.h>

#include "harness.h"

/* Contexts on devices 0 and 1; the second is current. */
static CUcontext begin_two(CUcontext *second)
{
	CUcontext first;

	CHECK(!setenv("SIMCUDA_DEVICES", "2", 1));
	first = begin();
	OK(cuCtxCreate_v2(second, 0, 1));
	return first;
}

static void peer_rights(CUdeviceptr at, CUmemAccess_flags flags)
{
	CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
				.flags = flags};

	OK(cuMemSetAccess(at, PAGE, &desc, 1));
}

static void a_kernel_reaches_another_devices_memory_only_with_peer_access(void)
{
	CUcontext second, first = begin_two(&second);
	CUdeviceptr there;

	OK(cuCtxSetCurrent(first));
	OK(cuMemAlloc_v2(&there, 3 * MIB));
	OK(cuCtxSetCurrent(second));
	OK(cuCtxEnablePeerAccess(first, 0));
	launch_fill(NULL, there, 16, 7);
	OK(cuCtxSynchronize());
	OK(cuCtxDisablePeerAccess(first));
	launch_fill(NULL, there, 16, 8);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cuCtxSetCurrent(first));
	OK(cuCtxSynchronize());
}

static void peer_access_does_not_reach_mapped_memory(void)
{
	CUcontext second, first = begin_two(&second);
	CUdeviceptr there = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);

	OK(cuCtxSetCurrent(second));
	OK(cuCtxEnablePeerAccess(first, 0));
	launch_fill(NULL, there, 16, 7);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void mapped_memory_is_reached_by_the_devices_that_have_rights_to_it(void)
{
	CUcontext second;
	uint32_t word = 0;

	begin_two(&second);
	CUdeviceptr there = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);

	peer_rights(there, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	launch_fill(NULL, there, 16, 7);
	OK(cuCtxSynchronize());
	/* Copies need no rights: the driver goes by way of the owner. */
	peer_rights(there, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	OK(cuMemcpyDtoH_v2(&word, there, sizeof(word)));
	CHECK(word == 7);
	launch_fill(NULL, there, 16, 8);
	IS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

struct toggled {
	CUdeviceptr at;
	_Atomic bool stop;
};

static void *toggle(void *argument)
{
	struct toggled *toggled = argument;

	while (!atomic_load(&toggled->stop)) {
		peer_rights(toggled->at, CU_MEM_ACCESS_FLAGS_PROT_READ);
		peer_rights(toggled->at, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	}
	return NULL;
}

static void giving_a_peer_rights_makes_a_hole_for_the_owner_too(void)
{
	CUcontext second, first = begin_two(&second);
	CUresult result = CUDA_SUCCESS;
	struct toggled toggled = {.stop = false};
	pthread_t thread;
	CUdeviceptr out;

	OK(cuCtxSetCurrent(first));
	toggled.at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);
	OK(cuMemAlloc_v2(&out, 8));
	CHECK(!pthread_create(&thread, NULL, toggle, &toggled));
	while (result == CUDA_SUCCESS) {
		launch_sum(NULL, out, toggled.at, PAGE / 4);
		result = cuCtxSynchronize();
	}
	CHECK(result == CUDA_ERROR_ILLEGAL_ADDRESS);
	atomic_store(&toggled.stop, true);
	CHECK(!pthread_join(thread, NULL));
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
		FACT(a_kernel_reaches_another_devices_memory_only_with_peer_access),
		FACT(peer_access_does_not_reach_mapped_memory),
		FACT(mapped_memory_is_reached_by_the_devices_that_have_rights_to_it),
		FACT(giving_a_peer_rights_makes_a_hole_for_the_owner_too),
	};

	return run_facts(facts, sizeof(facts) / sizeof(facts[0]), argc, argv);
}
