/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that share a device, fork and die: nothing of theirs may stay behind. */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void use_memory_until_killed(int channel)
{
	CUdeviceptr at;

	begin();
	OK(cuMemAlloc_v2(&at, 20 * MIB));
	OK(cuMemAlloc_v2(&at, 100));
	page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);
	handle_new(3 * PAGE);
	tell(channel);
	wait_for(channel);
}

static void a_killed_process_gives_all_its_memory_back(void)
{
	struct child children[3];

	for (int i = 0; i < 3; i++)
		children[i] = child_start(use_memory_until_killed);
	for (int i = 0; i < 3; i++)
		wait_for(children[i].channel);
	begin();
	CHECK(used() == 3 * (10 + 1 + 1 + 3) * PAGE);
	child_kill(children[0]);
	CHECK(used() == 2 * 15 * PAGE);
	child_kill(children[1]);
	child_kill(children[2]);
	CHECK(used() == 0);
}

static void export_a_page_and_be_killed(int channel)
{
	CUmemGenericAllocationHandle handle;
	int fd;

	begin();
	CUdeviceptr at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &handle);

	OK(cuMemsetD8_v2(at, 42, PAGE));
	OK(cuCtxSynchronize());
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	fd_send(channel, fd);
	wait_for(channel);
}

static void an_exported_page_lives_as_long_as_anybody_has_its_fd(void)
{
	struct child owner = child_start(export_a_page_and_be_killed);
	CUmemGenericAllocationHandle handle;
	unsigned char *bytes = malloc(PAGE);
	/* Kept by a process that has not even initialised the driver yet. */
	int fd = fd_receive(owner.channel);

	child_kill(owner);
	begin();
	CHECK(used() == PAGE);
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	CUdeviceptr at = reserve(PAGE);

	OK(cuMemMap(at, PAGE, 0, handle, 0));
	OK(cuMemRelease(handle));
	access_set(at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemcpyDtoH_v2(bytes, at, PAGE));
	for (size_t i = 0; i < PAGE; i++)
		CHECK(bytes[i] == 42);
	free(bytes);
	OK(cuMemUnmap(at, PAGE));
	CHECK(used() == 0);
}

static void a_page_that_only_a_mapping_keeps_is_not_handed_out_again(void)
{
	struct child owner = child_start(export_a_page_and_be_killed);
	CUmemGenericAllocationHandle handle;
	size_t available, total;
	unsigned char byte;
	CUdeviceptr rest;
	int fd = fd_receive(owner.channel);

	begin();
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	CUdeviceptr at = reserve(PAGE);

	OK(cuMemMap(at, PAGE, 0, handle, 0));
	OK(cuMemRelease(handle));
	access_set(at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ);
	child_kill(owner);
	OK(cuMemGetInfo_v2(&available, &total));
	CHECK(available == total - PAGE);
	OK(cuMemAlloc_v2(&rest, available));
	OK(cuMemsetD8_v2(rest, 1, available));
	OK(cuMemcpyDtoH_v2(&byte, at + PAGE / 2, 1));
	CHECK(byte == 42);
	OK(cuMemFree_v2(rest));
}

static void allocate_without_end(int channel)
{
	begin();
	tell(channel);
	for (;;) {
		CUdeviceptr at[4];

		for (int i = 0; i < 4; i++)
			OK(cuMemAlloc_v2(&at[i], (size_t)(i + 1) * PAGE));
		for (int i = 0; i < 4; i++)
			OK(cuMemFree_v2(at[i]));
	}
}

static void kills_in_the_middle_of_allocating_leave_nothing_and_block_nobody(void)
{
	struct child survivor = child_start(use_memory_until_killed);

	wait_for(survivor.channel);
	for (int round = 0; round < 30; round++) {
		struct child child = child_start(allocate_without_end);

		wait_for(child.channel);
		usleep((useconds_t)(round * 997 % 9000));
		child_kill(child);
	}
	begin();
	CHECK(used() == 15 * PAGE);
	tell(survivor.channel);
	child_end(survivor);
	CHECK(used() == 0);
}

static void freed_memory_gives_the_hosts_storage_back(void)
{
	char path[4200];
	struct stat status;
	CUdeviceptr at;

	begin();
	OK(cuMemAlloc_v2(&at, 100 * MIB));
	snprintf(path, sizeof(path), "%s/dev0/bank0", getenv("SIMCUDA_DIR"));
	CHECK(!stat(path, &status) && (size_t)status.st_blocks * 512 >= 100 * MIB);
	OK(cuMemFree_v2(at));
	CHECK(!stat(path, &status) && (size_t)status.st_blocks * 512 < MIB);
}

static void a_forked_child_is_not_initialised_and_does_not_hang(void)
{
	CUcontext context = begin(), current;
	CUdeviceptr at, more;
	int status;

	OK(cuMemAlloc_v2(&at, PAGE));
	launch_fill(NULL, at, 16, 1);
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		IS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
		IS(cuMemAlloc_v2(&more, PAGE), CUDA_ERROR_NOT_INITIALIZED);
		IS(cuCtxGetCurrent(&current), CUDA_ERROR_NOT_INITIALIZED);
		IS(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
		IS(cuMemFree_v2(at), CUDA_ERROR_NOT_INITIALIZED);
		IS(cuStreamSynchronize(NULL), CUDA_ERROR_NOT_INITIALIZED);
		IS(cuCtxDestroy_v2(context), CUDA_ERROR_NOT_INITIALIZED);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
	OK(cuCtxSynchronize());
	OK(cuMemFree_v2(at));
	CHECK(used() == 0);
}

static void fork_and_be_killed(int channel)
{
	CUdeviceptr at;

	begin();
	OK(cuMemAlloc_v2(&at, 4 * PAGE));
	page_new(CU_MEM_ACCESS_FLAGS_PROT_READ, NULL);
	if (!fork()) {
		tell(channel);
		wait_for(channel);
		_exit(0);
	}
	pause();
}

static void memory_of_a_killed_parent_is_free_while_its_forked_child_lives(void)
{
	struct child parent = child_start(fork_and_be_killed);
	int status;

	wait_for(parent.channel);
	CHECK(!kill(parent.pid, SIGKILL));
	CHECK(waitpid(parent.pid, &status, 0) == parent.pid);
	begin();
	CHECK(used() == 0);
	tell(parent.channel);
}

static void no_descriptors_are_left_when_everything_is_released(void)
{
	size_t counts[2] = {0, 0};

	begin();
	for (int round = 0; round < 2; round++) {
		CUmemGenericAllocationHandle handle;
		CUdeviceptr at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &handle), plain;
		DIR *open_fds;

		OK(cuMemAlloc_v2(&plain, 10 * MIB));
		OK(cuMemFree_v2(plain));
		OK(cuMemUnmap(at, PAGE));
		OK(cuMemRelease(handle));
		open_fds = opendir("/proc/self/fd");
		while (readdir(open_fds))
			counts[round]++;
		closedir(open_fds);
	}
	CHECK(counts[0] == counts[1]);
}

static void a_full_descriptor_table_is_an_error_and_not_a_crash(void)
{
	struct rlimit limit = {64, 64};
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	CUmemGenericAllocationHandle handles[64];
	CUresult result = CUDA_SUCCESS;
	int count = 0;

	begin();
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	while (count < 64 && result == CUDA_SUCCESS)
		result = cuMemCreate(&handles[count++], PAGE, &prop, 0);
	CHECK(result == CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(used() == (size_t)(count - 1) * PAGE);
	for (int i = 0; i < count - 1; i++)
		OK(cuMemRelease(handles[i]));
	CHECK(used() == 0);
}

static void the_device_keeps_its_identity_from_process_to_process(void)
{
	CUuuid here, there;
	int ends[2], status;

	CHECK(!pipe(ends));
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		OK(cuInit(0));
		OK(cuDeviceGetUuid_v2(&there, 0));
		CHECK(write(ends[1], &there, sizeof(there)) == sizeof(there));
		_exit(0);
	}
	OK(cuInit(0));
	OK(cuDeviceGetUuid_v2(&here, 0));
	CHECK(read(ends[0], &there, sizeof(there)) == sizeof(there));
	CHECK(!memcmp(&here, &there, sizeof(here)));
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

static void two_devices_have_separate_memory_and_names(void)
{
	CUcontext contexts[2];
	CUuuid uuids[2];
	CUdeviceptr at[2];
	uint32_t word;

	setenv("SIMCUDA_DEVICES", "2", 1);
	OK(cuInit(0));
	for (int i = 0; i < 2; i++) {
		OK(cuCtxCreate_v2(&contexts[i], 0, i));
		OK(cuDeviceGetUuid_v2(&uuids[i], i));
		OK(cuMemAlloc_v2(&at[i], PAGE));
		CHECK(used() == PAGE);
	}
	CHECK(memcmp(&uuids[0], &uuids[1], sizeof(uuids[0])));
	OK(cuCtxSetCurrent(contexts[0]));
	OK(cuMemsetD32_v2(at[0], 8, 1));
	OK(cuMemcpyPeer(at[1], contexts[1], at[0], contexts[0], 4));
	OK(cuMemcpyDtoH_v2(&word, at[1], 4));
	CHECK(word == 8);
	OK(cuCtxDestroy_v2(contexts[1]));
	OK(cuCtxSetCurrent(contexts[0]));
	CHECK(used() == PAGE);
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
		FACT(a_killed_process_gives_all_its_memory_back),
		FACT(an_exported_page_lives_as_long_as_anybody_has_its_fd),
		FACT(a_page_that_only_a_mapping_keeps_is_not_handed_out_again),
		FACT(kills_in_the_middle_of_allocating_leave_nothing_and_block_nobody),
		FACT(freed_memory_gives_the_hosts_storage_back),
		FACT(a_forked_child_is_not_initialised_and_does_not_hang),
		FACT(memory_of_a_killed_parent_is_free_while_its_forked_child_lives),
		FACT(no_descriptors_are_left_when_everything_is_released),
		FACT(a_full_descriptor_table_is_an_error_and_not_a_crash),
		FACT(two_devices_have_separate_memory_and_names),
		FACT(the_device_keeps_its_identity_from_process_to_process),
	};

	return run_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
