/* SPDX-License-Identifier: Apache-2.0 */
/* Another process's pages, fetched through gksmd and mapped side by side. */
#include <errno.h>
#include <string.h>

#include "fork.h"
#include "gpu.h"
#include "ipc_state.h"
#include "link.h"
#include "peers.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)
#define OPEN_NS 5000000000ull
#define PAUSE_NS 5000000ull

struct opening {
	struct gksm *process;
	const struct ipc_ticket *ticket;
	uint64_t until_ns;
	struct gksm_ipc_opened about;
	CUdeviceptr base; /* 0: no addresses yet */
	uint64_t pages;
	uint64_t mapped; /* of them */
};

/* Descriptors of the pages from `first` on; gksmd may be away for a moment. */
static int fetch(struct opening *opening, uint64_t first, int *fds)
{
	struct gksm_ipc_open head = {.first_page = first};
	int count;

	memcpy(head.ticket, opening->ticket, sizeof(head.ticket));
	for (;;) {
		count = gksm_link_ipc_open(opening->process->link, &head, &opening->about, fds);
		if ((count != -ENOTCONN && count != -EBUSY) || gksm_now_ns() >= opening->until_ns)
			return count;
		gksm_sleep_ns(PAUSE_NS);
	}
}

static int map_page(struct opening *opening, int fd)
{
	const struct gksm_driver *driver = &opening->process->driver;
	CUdeviceptr address = opening->base + opening->mapped * PAGE;
	CUmemGenericAllocationHandle handle;
	CUresult result;

	if (driver->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
						   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return -EIO;
	result = driver->cuMemMap(address, PAGE, 0, handle, 0);
	/* The mapping keeps the memory. */
	driver->cuMemRelease(handle);
	if (result)
		return -EIO;
	opening->mapped++;
	return 0;
}

/* The exporter is of our domain, and yet no more than a peer. */
static bool sensible(const struct gksm_ipc_opened *about)
{
	return about->pages && about->pages < UINT32_MAX && about->bytes &&
	       (about->bytes + PAGE - 1) / PAGE == about->pages;
}

static int reserve(struct opening *opening)
{
	opening->pages = opening->about.pages;
	return opening->process->driver.cuMemAddressReserve(&opening->base, opening->pages * PAGE,
							    PAGE, 0, 0)
		       ? -ENOMEM
		       : 0;
}

static int map_part(struct opening *opening)
{
	int fds[GKSM_FDS_MAX];
	int count = fetch(opening, opening->mapped, fds);
	int error = count < 0 ? count : 0;
	int i;

	if (!error && (!sensible(&opening->about) ||
		       (opening->base && opening->about.pages != opening->pages) ||
		       (uint64_t)count > opening->about.pages - opening->mapped))
		error = -EPROTO;
	if (!error && !opening->base)
		error = reserve(opening);
	for (i = 0; i < count; i++)
		gksm_fd_opened(fds[i]);
	for (i = 0; i < count; i++) {
		if (!error)
			error = map_page(opening, fds[i]);
		gksm_fd_close(fds[i]);
	}
	return error;
}

static void unmap(struct gksm *process, CUdeviceptr base, uint64_t mapped, uint64_t pages)
{
	uint64_t page;

	for (page = 0; page < mapped; page++)
		process->driver.cuMemUnmap(base + page * PAGE, PAGE);
	process->driver.cuMemAddressFree(base, pages * PAGE);
}

void ipc_unmap(struct gksm *process, CUdeviceptr base, uint64_t pages)
{
	unmap(process, base, pages, pages);
}

int ipc_give_rights(struct gksm *process, CUdevice device, CUdeviceptr base, uint64_t pages)
{
	CUmemAccessDesc access[GKSM_GPUS_MAX];
	size_t count =
		gksm_peers_access(process, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, access);

	return process->driver.cuMemSetAccess(base, pages * PAGE, access, count) ? -EIO : 0;
}

int ipc_map(struct gksm *process, const struct ipc_ticket *ticket, CUdevice device,
	    CUdeviceptr *base, struct gksm_ipc_opened *about)
{
	struct opening opening = {
		.process = process, .ticket = ticket, .until_ns = gksm_now_ns() + OPEN_NS};
	int error;

	do
		error = map_part(&opening);
	while (!error && opening.mapped < opening.pages);
	if (!error)
		error = ipc_give_rights(process, device, opening.base, opening.pages);
	if (error && opening.base)
		unmap(process, opening.base, opening.mapped, opening.pages);
	*base = opening.base;
	*about = opening.about;
	return error;
}
