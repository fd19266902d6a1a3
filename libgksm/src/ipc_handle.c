/* SPDX-License-Identifier: Apache-2.0 */
/* The 64 bytes that programs pass around. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc_state.h"
#include "process.h"

#define HANDLE_MAGIC "GKSMIPC"
#define HANDLE_VERSION 1

struct handle {
	char magic[8];
	uint32_t version;
	uint32_t reserved;
	struct ipc_ticket ticket;
	uint8_t unused[24];
	uint64_t checksum; /* FNV-1a of all before it */
};

_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "it travels as one");

static uint64_t checksum(const struct handle *handle)
{
	const unsigned char *bytes = (const unsigned char *)handle;
	uint64_t sum = 0xcbf29ce484222325u;

	for (size_t i = 0; i < offsetof(struct handle, checksum); i++)
		sum = (sum ^ bytes[i]) * 0x100000001b3u;
	return sum;
}

void ipc_handle_make(CUipcMemHandle *handle, const struct ipc_ticket *ticket)
{
	struct handle made = {.magic = HANDLE_MAGIC, .version = HANDLE_VERSION, .ticket = *ticket};

	made.checksum = checksum(&made);
	memcpy(handle, &made, sizeof(made));
}

bool ipc_handle_read(const CUipcMemHandle *handle, struct ipc_ticket *ticket)
{
	struct handle read;

	memcpy(&read, handle, sizeof(read));
	if (memcmp(read.magic, HANDLE_MAGIC, sizeof(read.magic)) != 0 ||
	    read.version != HANDLE_VERSION || read.checksum != checksum(&read))
		return false;
	*ticket = read.ticket;
	return true;
}

bool ipc_ticket_equal(const struct ipc_ticket *left, const struct ipc_ticket *right)
{
	return memcmp(left, right, sizeof(*left)) == 0;
}

/* Kernels before 3.17 have no such call, and glibc no function for it before 2.25. */
static bool from_kernel(void *bytes, size_t size)
{
#ifdef SYS_getrandom
	return syscall(SYS_getrandom, bytes, size, 0) == (long)size;
#else
	(void)bytes;
	(void)size;
	return false;
#endif
}

int ipc_ticket_make(struct ipc_ticket *ticket)
{
	int saved = errno;
	ssize_t got = -1;
	int fd;

	if (from_kernel(ticket, sizeof(*ticket)))
		return 0;
	fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, ticket, sizeof(*ticket));
		close(fd);
	}
	errno = saved;
	return got == (ssize_t)sizeof(*ticket) ? 0 : -EIO;
}

struct gksm_ipc *ipc_if_used(struct gksm *process)
{
	return __atomic_load_n(&process->ipc, __ATOMIC_ACQUIRE);
}

struct gksm_ipc *ipc_of(struct gksm *process)
{
	struct gksm_ipc *ipc = ipc_if_used(process);
	struct gksm_ipc *fresh;

	if (ipc)
		return ipc;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (__atomic_compare_exchange_n(&process->ipc, &ipc, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	free(fresh);
	return ipc;
}
