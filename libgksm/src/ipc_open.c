/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of others, opened here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "ipc_state.h"
#include "link.h"
#include "peers.h"
#include "report.h"
#include "streams.h"
#include "wrap.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)
#define OPEN_NS 5000000000ull
#define PAUSE_NS 5000000ull

/* While it comes about. */
struct opening {
	struct gksm *process;
	const struct ipc_ticket *ticket;
	uint64_t until_ns;
	struct gksm_ipc_opened about;
	CUdeviceptr base; /* 0: no addresses yet */
	uint64_t pages;
	uint64_t mapped; /* of them */
};

static struct ipc_opened *holding(struct gksm_ipc *ipc, CUdeviceptr address)
{
	struct ipc_opened *opened = ipc->opened;

	while (opened && address - opened->info.base >= opened->pages * PAGE)
		opened = opened->next;
	return opened;
}

/* Under opened_lock. Opening again what the context has open gives the same address. */
static struct ipc_opened *open_already(struct gksm_ipc *ipc, const struct ipc_ticket *ticket,
				       CUcontext context)
{
	struct ipc_opened *opened = ipc->opened;

	while (opened &&
	       (opened->info.context != context || !ipc_ticket_equal(&opened->ticket, ticket)))
		opened = opened->next;
	return opened;
}

static bool is_own(struct gksm_ipc *ipc, const struct ipc_ticket *ticket)
{
	struct ipc_export *export;

	gksm_mutex_lock(&ipc->lock);
	export = ipc->exports;
	while (export && !ipc_ticket_equal(&export->ticket, ticket))
		export = export->next;
	gksm_mutex_unlock(&ipc->lock);
	return export;
}

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
	for (i = 0; i < count; i++) {
		if (!error)
			error = map_page(opening, fds[i]);
		close(fds[i]);
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

static int map_all(struct opening *opening, CUdevice device)
{
	CUmemAccessDesc access[GKSM_GPUS_MAX];
	size_t count;
	int error;

	do
		error = map_part(opening);
	while (!error && opening->mapped < opening->pages);
	if (!error) {
		count = gksm_peers_access(opening->process, device,
					  CU_MEM_ACCESS_FLAGS_PROT_READWRITE, access);
		if (opening->process->driver.cuMemSetAccess(opening->base, opening->pages * PAGE,
							    access, count))
			error = -EIO;
	}
	if (error && opening->base)
		unmap(opening->process, opening->base, opening->mapped, opening->pages);
	return error;
}

static CUresult refused(struct gksm *process, int error)
{
	const char *why;
	CUresult result = CUDA_ERROR_MAP_FAILED;

	switch (error) {
	case -ENOENT:
		why = "no process of this trust domain offers this memory: it is freed, its "
		      "owner has ended, or is of another domain (gksmctl explain PID names them)";
		result = CUDA_ERROR_INVALID_VALUE;
		break;
	case -ENOTCONN:
		why = "gksmd, which passes it on, does not run; start it";
		break;
	case -ETIMEDOUT:
		why = "the process that offers this memory does not answer; is it stopped?";
		break;
	case -EOPNOTSUPP:
		why = "gksmd is too old for it; update it";
		result = CUDA_ERROR_NOT_SUPPORTED;
		break;
	case -ENOMEM:
	case -EMFILE:
		why = "no descriptors, memory or addresses are left here or in gksmd; raise the "
		      "limit of open files";
		result = CUDA_ERROR_OUT_OF_MEMORY;
		break;
	case -EDQUOT:
		why = "too many were opened in a short time; see lookups_per_second of gksm.toml";
		break;
	default:
		why = "the pages that came cannot be mapped, or its owner's context is dead";
		break;
	}
	gksm_report(process, GKSM_WARNING, "cuIpcOpenMemHandle: %s", why);
	return result;
}

/* The ordinal here of the GPU whose memory it is; the current one if we cannot tell. */
static CUdevice device_of(struct gksm *process, const uint8_t *uuid, CUdevice current)
{
	int count = 0;

	GKSM_REAL(cuDeviceGetCount)(&count);
	for (CUdevice device = 0; device < count; device++) {
		CUuuid found;
		CUresult result = process->driver.cuDeviceGetUuid_v2
					  ? process->driver.cuDeviceGetUuid_v2(&found, device)
					  : process->driver.cuDeviceGetUuid(&found, device);

		if (result == CUDA_SUCCESS && memcmp(&found, uuid, sizeof(found)) == 0)
			return device;
	}
	return current;
}

/* Another thread may have opened the same meanwhile; one of the two has to go. */
static CUdeviceptr keep(struct gksm *process, struct gksm_ipc *ipc, struct ipc_opened *made)
{
	struct ipc_opened *other;
	CUdeviceptr base = made->info.base;

	gksm_mutex_lock(&ipc->opened_lock);
	other = open_already(ipc, &made->ticket, made->info.context);
	if (other) {
		other->users++;
		base = other->info.base;
	} else {
		made->next = ipc->opened;
		ipc->opened = made;
	}
	gksm_mutex_unlock(&ipc->opened_lock);
	if (other) {
		unmap(process, made->info.base, made->pages, made->pages);
		free(made);
	}
	return base;
}

static CUresult open_new(struct gksm *process, struct gksm_ipc *ipc,
			 const struct ipc_ticket *ticket, CUcontext context, bool peer_wanted,
			 CUdeviceptr *address)
{
	struct opening opening = {
		.process = process, .ticket = ticket, .until_ns = gksm_now_ns() + OPEN_NS};
	struct ipc_opened *made = calloc(1, sizeof(*made));
	CUdevice current;
	CUdevice owner;
	int error;

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (process->driver.cuCtxGetDevice(&current)) {
		free(made);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	error = map_all(&opening, current);
	if (error) {
		free(made);
		return refused(process, error);
	}
	owner = device_of(process, opening.about.gpu_uuid, current);
	if (owner != current && !peer_wanted && !gksm_peers_reach(process, current, owner)) {
		unmap(process, opening.base, opening.mapped, opening.pages);
		free(made);
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	}
	*made = (struct ipc_opened){
		.ticket = *ticket,
		.info = {.base = opening.base,
			 .bytes = opening.about.bytes,
			 .context = context,
			 .device = owner,
			 .buffer_id = atomic_fetch_add(&process->next_buffer_id, 1) + 1},
		.pages = opening.pages,
		.users = 1,
	};
	*address = keep(process, ipc, made);
	return CUDA_SUCCESS;
}

bool gksm_ipc_open(struct gksm *process, const CUipcMemHandle *handle, unsigned flags,
		   CUdeviceptr *address, CUresult *result)
{
	struct gksm_ipc *ipc;
	struct ipc_opened *opened;
	struct ipc_ticket ticket;
	CUcontext context = NULL;

	if (!ipc_handle_read(handle, &ticket))
		return false;
	*result = CUDA_ERROR_INVALID_VALUE;
	if (!address || flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return true;
	*result = CUDA_ERROR_INVALID_CONTEXT;
	if (process->driver.cuCtxGetCurrent(&context) || !context)
		return true;
	*result = CUDA_ERROR_OUT_OF_MEMORY;
	ipc = ipc_of(process);
	if (!ipc)
		return true;
	/* As the driver: the owner cannot open its own. */
	*result = CUDA_ERROR_INVALID_CONTEXT;
	if (is_own(ipc, &ticket))
		return true;
	gksm_mutex_lock(&ipc->opened_lock);
	opened = open_already(ipc, &ticket, context);
	if (opened) {
		opened->users++;
		*address = opened->info.base;
	}
	gksm_mutex_unlock(&ipc->opened_lock);
	*result = opened ? CUDA_SUCCESS
			 : open_new(process, ipc, &ticket, context,
				    flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, address);
	return true;
}

static void unlink_opened(struct gksm_ipc *ipc, const struct ipc_opened *opened)
{
	struct ipc_opened **link = &ipc->opened;

	while (*link != opened)
		link = &(*link)->next;
	*link = opened->next;
}

static void close_opened(struct gksm *process, struct ipc_opened *opened)
{
	unmap(process, opened->info.base, opened->pages, opened->pages);
	free(opened);
}

bool gksm_ipc_close(struct gksm *process, CUdeviceptr address, CUresult *result)
{
	struct gksm_ipc *ipc = ipc_if_used(process);
	struct ipc_opened *opened;
	bool ours;
	bool last = false;

	if (!ipc)
		return false;
	gksm_mutex_lock(&ipc->opened_lock);
	opened = holding(ipc, address);
	ours = opened;
	*result = opened && opened->info.base == address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (opened && *result == CUDA_SUCCESS && !--opened->users) {
		unlink_opened(ipc, opened);
		last = true;
	}
	gksm_mutex_unlock(&ipc->opened_lock);
	/* As the driver does, and as gksm_free: outside of it. */
	if (last && gksm_wait_idle(process, opened->info.context, -1) == -ENODEV)
		*result = process->driver.cuCtxSynchronize();
	if (last)
		close_opened(process, opened);
	return ours;
}

bool gksm_ipc_find(struct gksm *process, CUdeviceptr address, struct gksm_allocation_info *info)
{
	struct gksm_ipc *ipc = ipc_if_used(process);
	struct ipc_opened *opened;

	if (!ipc)
		return false;
	gksm_mutex_lock(&ipc->opened_lock);
	opened = holding(ipc, address);
	if (opened && info)
		*info = opened->info;
	gksm_mutex_unlock(&ipc->opened_lock);
	return opened;
}

void gksm_ipc_context_gone(struct gksm *process, CUcontext context)
{
	struct gksm_ipc *ipc = ipc_if_used(process);
	struct ipc_opened *opened;

	while (ipc) {
		gksm_mutex_lock(&ipc->opened_lock);
		opened = ipc->opened;
		while (opened && opened->info.context != context)
			opened = opened->next;
		if (opened)
			unlink_opened(ipc, opened);
		gksm_mutex_unlock(&ipc->opened_lock);
		if (!opened)
			return;
		gksm_wait_idle(process, context, -1);
		close_opened(process, opened);
	}
}
