/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

CUcontext begin(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	return context;
}

size_t used(void)
{
	size_t available, total;

	OK(cuMemGetInfo_v2(&available, &total));
	return total - available;
}

static CUmemLocation device_zero(void)
{
	return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
}

CUmemGenericAllocationHandle handle_new(size_t bytes)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = device_zero(),
	};
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, bytes, &prop, 0));
	return handle;
}

void access_set(CUdeviceptr at, size_t bytes, CUmemAccess_flags flags)
{
	CUmemAccessDesc desc = {.location = device_zero(), .flags = flags};

	OK(cuMemSetAccess(at, bytes, &desc, 1));
}

CUdeviceptr reserve(size_t bytes)
{
	CUdeviceptr at;

	OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
	return at;
}

CUdeviceptr page_new(CUmemAccess_flags flags, CUmemGenericAllocationHandle *handle)
{
	CUmemGenericAllocationHandle made = handle_new(PAGE);
	CUdeviceptr at = reserve(PAGE);

	OK(cuMemMap(at, PAGE, 0, made, 0));
	access_set(at, PAGE, flags);
	if (handle)
		*handle = made;
	else
		OK(cuMemRelease(made));
	return at;
}

/* Loaded once for each context: loading waits for the work that there is. */
CUfunction kernel(const char *name)
{
	static struct {
		CUcontext context;
		CUmodule module;
	} loaded[16];
	CUfunction function;
	CUcontext context;
	size_t i = 0;

	OK(cuCtxGetCurrent(&context));
	while (loaded[i].context && loaded[i].context != context)
		i++;
	if (!loaded[i].context) {
		OK(cuModuleLoadData(&loaded[i].module, SIMCUDA_BUILTIN_IMAGE));
		loaded[i].context = context;
	}
	OK(cuModuleGetFunction(&function, loaded[i].module, name));
	return function;
}

void launch_fill(CUstream stream, CUdeviceptr out, uint64_t count, uint32_t value)
{
	void *parameters[] = {&out, &count, &value};

	OK(cuLaunchKernel(kernel("fill"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

void launch_spin(CUstream stream, CUdeviceptr flag, uint32_t value)
{
	void *parameters[] = {&flag, &value};

	OK(cuLaunchKernel(kernel("spin_until"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

void launch_sum(CUstream stream, CUdeviceptr out, CUdeviceptr in, uint64_t count)
{
	void *parameters[] = {&out, &in, &count};

	OK(cuLaunchKernel(kernel("sum"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

struct child child_start(void (*body)(int channel))
{
	struct child child;
	int ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	child.pid = fork();
	CHECK(child.pid >= 0);
	if (!child.pid) {
		close(ends[0]);
		body(ends[1]);
		exit(0);
	}
	close(ends[1]);
	child.channel = ends[0];
	return child;
}

void child_end(struct child child)
{
	int status;

	CHECK(waitpid(child.pid, &status, 0) == child.pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	close(child.channel);
}

void child_kill(struct child child)
{
	int status;

	CHECK(!kill(child.pid, SIGKILL));
	CHECK(waitpid(child.pid, &status, 0) == child.pid);
	CHECK(WIFSIGNALED(status));
	close(child.channel);
}

void tell(int channel)
{
	CHECK(write(channel, "!", 1) == 1);
}

void wait_for(int channel)
{
	char byte;

	CHECK(read(channel, &byte, 1) == 1);
}

bool told_within(int channel, int milliseconds)
{
	struct pollfd wait = {.fd = channel, .events = POLLIN};

	return poll(&wait, 1, milliseconds) == 1;
}

void fd_send(int channel, int fd)
{
	char control[CMSG_SPACE(sizeof(fd))] = {0}, byte = '!';
	struct iovec data = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK(sendmsg(channel, &message, 0) == 1);
}

int fd_receive(int channel)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec data = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	CHECK(recvmsg(channel, &message, 0) == 1);
	CHECK(CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}
