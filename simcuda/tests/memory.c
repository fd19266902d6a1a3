/* SPDX-License-Identifier: Apache-2.0 */
/* Handles, mappings and allocations: the facts measured on a real GPU. */
#include "harness.h"

#include <unistd.h>

static void check_bytes(CUdeviceptr at, size_t bytes, unsigned char value)
{
	unsigned char *copy = malloc(bytes);

	OK(cuMemcpyDtoH_v2(copy, at, bytes));
	for (size_t i = 0; i < bytes; i++)
		CHECK(copy[i] == value);
	free(copy);
}

static void new_handles_are_zero_after_others_were_dirtied(void)
{
	begin();
	for (int round = 0; round < 20; round++) {
		CUmemGenericAllocationHandle handle;
		CUdeviceptr at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &handle);

		check_bytes(at, PAGE, 0);
		OK(cuMemsetD8_v2(at, 0xa5, PAGE));
		check_bytes(at, PAGE, 0xa5);
		OK(cuMemUnmap(at, PAGE));
		OK(cuMemRelease(handle));
		OK(cuMemAddressFree(at, PAGE));
	}
	CHECK(used() == 0);
}

static void parts_of_handles_and_mappings_are_refused(void)
{
	CUmemAccessDesc desc = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READ,
	};

	begin();
	CUmemGenericAllocationHandle handle = handle_new(2 * PAGE);
	CUdeviceptr at = reserve(4 * PAGE);

	IS(cuMemMap(at, PAGE, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
	IS(cuMemMap(at, PAGE, PAGE, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
	OK(cuMemMap(at, 2 * PAGE, 0, handle, 0));
	IS(cuMemMap(at + PAGE, 2 * PAGE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemSetAccess(at, PAGE, &desc, 1), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemUnmap(at, PAGE), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemUnmap(at + PAGE, PAGE), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemSetAccess(at, 2 * PAGE, &desc, 1));
	IS(cuMemSetAccess(at, 3 * PAGE, &desc, 1), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAddressFree(at, 4 * PAGE), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(at, 2 * PAGE));
	IS(cuMemUnmap(at, 2 * PAGE), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAddressFree(at, 4 * PAGE));
	OK(cuMemRelease(handle));
	IS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

static void read_only_and_writable_aliases_are_coherent(void)
{
	CUmemGenericAllocationHandle handle;

	begin();
	CUdeviceptr writable = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &handle);
	CUdeviceptr readable = reserve(PAGE);

	OK(cuMemMap(readable, PAGE, 0, handle, 0));
	access_set(readable, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ);
	OK(cuMemsetD8_v2(writable, 7, PAGE));
	check_bytes(readable, PAGE, 7);
	CHECK(used() == PAGE);
}

static void api_writes_to_read_only_pages_are_refused_and_harm_nothing(void)
{
	static unsigned char bytes[4096];
	CUDA_MEMCPY2D box = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = bytes,
		.srcPitch = 64,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstPitch = 64,
		.WidthInBytes = 64,
		.Height = 64,
	};

	begin();
	CUdeviceptr readable = page_new(CU_MEM_ACCESS_FLAGS_PROT_READ, NULL);
	CUdeviceptr writable = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);

	box.dstDevice = readable;
	IS(cuMemcpyHtoD_v2(readable, bytes, 64), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemcpyHtoDAsync_v2(readable, bytes, 64, CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemcpyDtoD_v2(readable, writable, 64), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemcpy2D_v2(&box), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemsetD32_v2(readable, 1, 16), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemsetD8Async(readable + PAGE - 1, 1, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	IS(cuStreamWriteValue32_v2(NULL, readable, 1, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemcpyDtoD_v2(writable, readable, 64));
	OK(cuCtxSynchronize());
	check_bytes(readable, PAGE, 0);
}

static void calls_on_addresses_without_memory_are_refused(void)
{
	unsigned char bytes[64];

	begin();
	CUdeviceptr hole = reserve(PAGE);

	IS(cuMemcpyHtoD_v2(hole, bytes, 64), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemcpyDtoH_v2(bytes, hole, 64), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemsetD8_v2(hole, 0, 64), CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxSynchronize());
}

static void imported_handles_are_not_exported_again(void)
{
	CUmemGenericAllocationHandle handle, imported;
	int fd, again;

	begin();
	page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &handle);
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	IS(cuMemExportToShareableHandle(&again, imported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					0),
	   CUDA_ERROR_INVALID_VALUE);
	IS(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)STDERR_FILENO,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	   CUDA_ERROR_INVALID_VALUE);
}

static void a_mapping_keeps_its_memory_when_fd_and_handle_are_gone(void)
{
	CUmemGenericAllocationHandle handle, imported;
	int fd;

	begin();
	CUdeviceptr first = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &handle);
	CUdeviceptr second = reserve(PAGE);

	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(cuMemMap(second, PAGE, 0, imported, 0));
	OK(cuMemRelease(imported));
	access_set(second, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemsetD8_v2(first, 3, PAGE));
	OK(cuCtxSynchronize());
	OK(cuMemRelease(handle));
	OK(cuMemUnmap(first, PAGE));
	check_bytes(second, PAGE, 3);
	CHECK(used() == PAGE);

	CUmemGenericAllocationHandle retained;

	OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)second));
	OK(cuMemUnmap(second, PAGE));
	CHECK(used() == PAGE);
	OK(cuMemMap(first, PAGE, 0, retained, 0));
	access_set(first, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ);
	check_bytes(first, PAGE, 3);
	OK(cuMemUnmap(first, PAGE));
	OK(cuMemRelease(retained));
	CHECK(used() == 0);
}

static void a_handle_of_many_pages_is_exported_as_one_fd(void)
{
	CUmemGenericAllocationHandle handle, imported;
	size_t bytes = 5 * PAGE;
	int fd;

	begin();
	handle_new(PAGE);
	handle = handle_new(bytes);
	CUdeviceptr first = reserve(bytes), second = reserve(bytes);

	OK(cuMemMap(first, bytes, 0, handle, 0));
	access_set(first, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemsetD8_v2(first, 4, bytes));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	IS(cuMemMap(second, 4 * PAGE, 0, imported, 0), CUDA_ERROR_NOT_SUPPORTED);
	OK(cuMemMap(second, bytes, 0, imported, 0));
	access_set(second, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
	check_bytes(second, bytes, 4);
	CHECK(used() == 6 * PAGE);
}

static void a_page_is_mapped_at_thousands_of_addresses(void)
{
	CUmemGenericAllocationHandle handle;
	size_t count = 4096;

	begin();
	handle = handle_new(PAGE);
	CUdeviceptr at = reserve(count * PAGE);

	for (size_t i = 0; i < count; i++)
		OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
	access_set(at, count * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ);
	CHECK(used() == PAGE);
	check_bytes(at + (count - 1) * PAGE, PAGE, 0);
}

static void memory_beyond_the_device_is_refused_and_nothing_leaks(void)
{
	CUdeviceptr all, more;
	size_t available, total;

	begin();
	OK(cuMemGetInfo_v2(&available, &total));
	CHECK(available == total);
	IS(cuMemAlloc_v2(&more, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc_v2(&all, total));
	IS(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(used() == total);
	OK(cuMemFree_v2(all));
	OK(cuMemAlloc_v2(&more, 1));
	CHECK(used() == PAGE);
	OK(cuMemFree_v2(more));
	CHECK(used() == 0);
}

static void allocations_are_zero_sized_as_asked_and_freed_by_their_base_alone(void)
{
	CUdeviceptr small[3], large, base;
	size_t bytes;

	begin();
	for (int i = 0; i < 3; i++)
		OK(cuMemAlloc_v2(&small[i], 1000));
	OK(cuMemAlloc_v2(&large, 5 * MIB));
	CHECK(used() == PAGE + 3 * PAGE);
	check_bytes(large, 5 * MIB, 0);
	OK(cuMemGetAddressRange_v2(&base, &bytes, small[1] + 10));
	CHECK(base == small[1] && bytes == 1000);
	OK(cuMemGetAddressRange_v2(&base, &bytes, large + PAGE));
	CHECK(base == large && bytes == 5 * MIB);
	IS(cuMemFree_v2(large + PAGE), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemcpyHtoD_v2(small[0], "too long", 1001), CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < 3; i++)
		OK(cuMemFree_v2(small[i]));
	OK(cuMemFree_v2(large));
	IS(cuMemFree_v2(large), CUDA_ERROR_INVALID_VALUE);
	CHECK(used() == 0);
}

static void a_destroyed_context_frees_what_was_allocated_in_it(void)
{
	CUcontext watcher = begin(), context;
	CUdeviceptr at;
	void *host;

	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuMemAlloc_v2(&at, 10 * MIB));
	OK(cuMemAlloc_v2(&at, 10));
	OK(cuMemAllocHost_v2(&host, 4096));
	CHECK(used() == 6 * PAGE);
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(watcher));
	CHECK(used() == 0);
	IS(cuCtxSetCurrent(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static void a_mapped_page_answers_with_its_own_range_and_no_legacy_ipc(void)
{
	CUipcMemHandle ipc;
	CUdeviceptr base;
	size_t bytes;

	begin();
	CUdeviceptr at = page_new(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, NULL);

	OK(cuMemGetAddressRange_v2(&base, &bytes, at + 5));
	CHECK(base == at && bytes == PAGE);
	IS(cuIpcGetMemHandle(&ipc, at), CUDA_ERROR_INVALID_VALUE);
}

static void read_bytes_of_a_legacy_handle(int channel)
{
	CUipcMemHandle handle;
	CUdeviceptr at, twice;

	begin();
	CHECK(read(channel, &handle, sizeof(handle)) == sizeof(handle));
	OK(cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(cuIpcOpenMemHandle_v2(&twice, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(at == twice);
	tell(channel);
	wait_for(channel);
	check_bytes(at, 3 * MIB, 9);
	OK(cuIpcCloseMemHandle(at));
	OK(cuIpcCloseMemHandle(at));
	IS(cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
	tell(channel);
	wait_for(channel);
	IS(cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	   CUDA_ERROR_INVALID_VALUE);
}

static void legacy_ipc_memory_outlives_the_owners_free(void)
{
	struct child child = child_start(read_bytes_of_a_legacy_handle);
	CUipcMemHandle handle;
	CUdeviceptr at;

	begin();
	OK(cuMemAlloc_v2(&at, 3 * MIB));
	OK(cuMemsetD8_v2(at, 9, 3 * MIB));
	OK(cuIpcGetMemHandle(&handle, at));
	CHECK(write(child.channel, &handle, sizeof(handle)) == sizeof(handle));
	wait_for(child.channel);
	OK(cuMemFree_v2(at));
	CHECK(used() == 2 * PAGE);
	tell(child.channel);
	wait_for(child.channel);
	CHECK(used() == 0);
	OK(cuMemAlloc_v2(&at, 3 * MIB));
	tell(child.channel);
	child_end(child);
}

int main(int argc, char **argv)
{
	static const struct fact facts[] = {
		FACT(new_handles_are_zero_after_others_were_dirtied),
		FACT(parts_of_handles_and_mappings_are_refused),
		FACT(read_only_and_writable_aliases_are_coherent),
		FACT(api_writes_to_read_only_pages_are_refused_and_harm_nothing),
		FACT(calls_on_addresses_without_memory_are_refused),
		FACT(imported_handles_are_not_exported_again),
		FACT(a_mapping_keeps_its_memory_when_fd_and_handle_are_gone),
		FACT(a_handle_of_many_pages_is_exported_as_one_fd),
		FACT(a_page_is_mapped_at_thousands_of_addresses),
		FACT(memory_beyond_the_device_is_refused_and_nothing_leaks),
		FACT(allocations_are_zero_sized_as_asked_and_freed_by_their_base_alone),
		FACT(a_destroyed_context_frees_what_was_allocated_in_it),
		FACT(a_mapped_page_answers_with_its_own_range_and_no_legacy_ipc),
		FACT(legacy_ipc_memory_outlives_the_owners_free),
	};

	return run_facts(facts, sizeof(facts) / sizeof(*facts), argc, argv);
}
