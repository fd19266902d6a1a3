/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of others, opened here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "ipc_state.h"
#include "peers.h"
#include "report.h"
#include "streams.h"
#include "wrap.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

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

static CUresult refused(struct gksm *process, int error)
{
	const char *why;
	CUresult result = CUDA_ERROR_MAP_FAILED;

	switch (error) {
	case -ENOENT:
		why = "no process of this trust domain offers this memory: it is freed, its "
		      "owner has ended or is in another domain (gksmctl explain PID)";
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
		ipc_unmap(process, made->info.base, made->pages);
		free(made);
		return base;
	}
	/* A peer may have come in between. Nobody can be using it yet. */
	ipc_give_rights(process, made->device, base, made->pages);
	return base;
}

static CUresult open_new(struct gksm *process, struct gksm_ipc *ipc,
			 const struct ipc_ticket *ticket, CUcontext context, bool peer_wanted,
			 CUdeviceptr *address)
{
	struct ipc_opened *made = calloc(1, sizeof(*made));
	struct gksm_ipc_opened about;
	CUdeviceptr base;
	CUdevice current;
	CUdevice owner;
	int error;

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (process->driver.cuCtxGetDevice(&current)) {
		free(made);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	error = ipc_map(process, ticket, current, &base, &about);
	if (error) {
		free(made);
		return refused(process, error);
	}
	owner = device_of(process, about.gpu_uuid, current);
	if (owner != current && !peer_wanted && !gksm_peers_reach(process, current, owner)) {
		ipc_unmap(process, base, about.pages);
		free(made);
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	}
	*made = (struct ipc_opened){
		.ticket = *ticket,
		.info = {.base = base,
			 .bytes = about.bytes,
			 .context = context,
			 .device = owner,
			 .buffer_id = atomic_fetch_add(&process->next_buffer_id, 1) + 1},
		.device = current,
		.pages = about.pages,
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
	ipc_unmap(process, opened->info.base, opened->pages);
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

bool gksm_ipc_any_open(struct gksm *process)
{
	struct gksm_ipc *ipc = ipc_if_used(process);
	bool any;

	if (!ipc)
		return false;
	gksm_mutex_lock(&ipc->opened_lock);
	any = ipc->opened;
	gksm_mutex_unlock(&ipc->opened_lock);
	return any;
}

void gksm_ipc_open_to_peers(struct gksm *process, CUdevice device)
{
	struct gksm_ipc *ipc = ipc_if_used(process);
	struct ipc_opened *opened;

	if (!ipc)
		return;
	gksm_mutex_lock(&ipc->opened_lock);
	for (opened = ipc->opened; opened; opened = opened->next)
		if (opened->device == device)
			ipc_give_rights(process, device, opened->info.base, opened->pages);
	gksm_mutex_unlock(&ipc->opened_lock);
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
