/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of ours that others may open. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "access.h"
#include "gpu.h"
#include "ipc_state.h"
#include "link.h"
#include "report.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

bool ipc_export_alive(const struct ipc_export *export)
{
	struct gksm_gpu *gpu = export->gpu;
	uint32_t slot;
	bool alive;

	gksm_mutex_lock(&gpu->range_lock);
	slot = gpu->pages[export->first_page].allocation;
	alive = slot && gpu->allocations[slot - 1].buffer_id == export->buffer_id &&
		!gpu->allocations[slot - 1].dying;
	gksm_mutex_unlock(&gpu->range_lock);
	return alive;
}

static struct ipc_export *find(struct gksm_ipc *ipc, uint64_t buffer_id)
{
	struct ipc_export *export = ipc->exports;

	while (export && export->buffer_id != buffer_id)
		export = export->next;
	return export;
}

/* Takes it out of the list; the caller frees it. */
static struct ipc_export *take(struct gksm_ipc *ipc, uint64_t buffer_id)
{
	struct ipc_export **link = &ipc->exports;
	struct ipc_export *export;

	while (*link && (*link)->buffer_id != buffer_id)
		link = &(*link)->next;
	export = *link;
	if (export)
		*link = export->next;
	return export;
}

/* Every page has memory of its own now, and `explain` is told why. false: one has not,
 * since its context is dead. */
static bool note_pinned(struct ipc_export *export)
{
	struct gksm_gpu *gpu = export->gpu;

	for (uint64_t i = 0; i < export->pages; i++) {
		struct gksm_page *page = &gpu->pages[export->first_page + i];
		enum gksm_page_state state = gksm_page_state(gpu, export->first_page + i);
		uint8_t before;

		if (state != GKSM_PAGE_PRIVATE && state != GKSM_PAGE_RELOAD)
			return false;
		before = atomic_exchange(&page->unshared, GKSM_UNSHARED_PINNED);
		atomic_fetch_sub(&gpu->counters.unshared[before], 1);
		atomic_fetch_add(&gpu->counters.unshared[GKSM_UNSHARED_PINNED], 1);
	}
	return true;
}

static struct gksm_span span_of(const struct ipc_export *export)
{
	return (struct gksm_span){.address = gksm_page_address(export->gpu, export->first_page),
				  .bytes = export->pages * PAGE,
				  .flags = GKSM_SPAN_WRITE};
}

static struct ipc_export *describe(struct gksm *process, const struct gksm_allocation_info *info)
{
	struct ipc_export *export = calloc(1, sizeof(*export));

	if (!export)
		return NULL;
	export->gpu = gksm_gpu_of(process, info->base, &export->first_page);
	export->pages = (info->bytes + PAGE - 1) / PAGE;
	export->bytes = info->bytes;
	export->buffer_id = info->buffer_id;
	if (export->gpu && !ipc_ticket_make(&export->ticket))
		return export;
	free(export);
	return NULL;
}

/* Pins the allocation and puts it into the list. ipc->export_lock is held. */
static CUresult add(struct gksm *process, struct gksm_ipc *ipc,
		    const struct gksm_allocation_info *info)
{
	struct ipc_export *export = describe(process, info);
	struct gksm_span span;
	CUresult result;
	bool pinned = false;

	if (!export)
		return CUDA_ERROR_OUT_OF_MEMORY;
	span = span_of(export);
	result = gksm_pin(process, &span, 1);
	if (result == CUDA_SUCCESS) {
		gksm_mutex_lock(&ipc->lock);
		pinned = ipc_export_alive(export) && note_pinned(export);
		if (pinned) {
			export->next = ipc->exports;
			ipc->exports = export;
		}
		gksm_mutex_unlock(&ipc->lock);
		/* The context's own error, if that is it. */
		if (!pinned)
			result = process->driver.cuCtxSynchronize();
		if (!pinned && result == CUDA_SUCCESS)
			result = CUDA_ERROR_INVALID_VALUE;
	}
	if (!pinned)
		free(export);
	return result;
}

static CUresult refused(struct gksm *process, int error)
{
	static const char *const start = "cuIpcGetMemHandle: memory cannot be handed to other "
					 "processes: ";

	switch (error) {
	case -EOPNOTSUPP:
		gksm_report(process, GKSM_WARNING,
			    "%sgksmd is too old for it; update it, or set GKSM_DISABLE=1", start);
		return CUDA_ERROR_NOT_SUPPORTED;
	case -EDQUOT:
		gksm_report(process, GKSM_WARNING,
			    "%sgksmd takes no more of them from this process; free some", start);
		return CUDA_ERROR_OUT_OF_MEMORY;
	default:
		gksm_report(process, GKSM_WARNING, "%sgksmd refused it (%d)", start, error);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/* Tells gksmd. While that is away the handle stands: it is told when it is back. */
static CUresult announce(struct gksm *process, const struct ipc_export *export)
{
	struct gksm_ipc_export head = {.pages = export->pages, .bytes = export->bytes};
	int error;

	memcpy(head.ticket, &export->ticket, sizeof(head.ticket));
	error = gksm_link_ipc_export(process->link, (unsigned)export->gpu->device, &head);
	return !error || error == -ENOTCONN || error == -ETIMEDOUT ? CUDA_SUCCESS
								   : refused(process, error);
}

/* gksmd will have none of it: it may be shared again. */
static void undo(struct gksm *process, struct gksm_ipc *ipc, uint64_t buffer_id)
{
	struct ipc_export *export;
	struct gksm_span span;

	gksm_mutex_lock(&ipc->lock);
	export = take(ipc, buffer_id);
	if (export && ipc_export_alive(export)) {
		span = span_of(export);
		gksm_unpin(process, &span, 1);
	}
	gksm_mutex_unlock(&ipc->lock);
	free(export);
}

CUresult gksm_ipc_export(struct gksm *process, CUdeviceptr address, CUipcMemHandle *handle)
{
	struct gksm_ipc *ipc = ipc_of(process);
	struct gksm_allocation_info info;
	struct ipc_export found = {0};
	CUresult result = CUDA_SUCCESS;
	bool known;

	if (!handle || !gksm_allocation_find(process, address, &info))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ipc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Over all of it: whoever asks second must find the pages pinned and gksmd told. */
	gksm_mutex_lock(&ipc->export_lock);
	gksm_mutex_lock(&ipc->lock);
	known = find(ipc, info.buffer_id);
	gksm_mutex_unlock(&ipc->lock);
	if (!known && ipc_answer_start(process))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!known && result == CUDA_SUCCESS)
		result = add(process, ipc, &info);
	if (result == CUDA_SUCCESS) {
		struct ipc_export *export;

		gksm_mutex_lock(&ipc->lock);
		export = find(ipc, info.buffer_id);
		if (export)
			found = *export;
		gksm_mutex_unlock(&ipc->lock);
		result = export ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	if (!known && result == CUDA_SUCCESS) {
		result = announce(process, &found);
		if (result != CUDA_SUCCESS)
			undo(process, ipc, info.buffer_id);
	}
	gksm_mutex_unlock(&ipc->export_lock);
	if (result == CUDA_SUCCESS)
		ipc_handle_make(handle, &found.ticket);
	return result;
}

void gksm_ipc_freed(struct gksm *process, uint64_t buffer_id)
{
	struct gksm_ipc *ipc = ipc_if_used(process);
	struct ipc_export *export;
	struct gksm_ipc_ref head;

	if (!ipc)
		return;
	gksm_mutex_lock(&ipc->lock);
	export = take(ipc, buffer_id);
	gksm_mutex_unlock(&ipc->lock);
	if (!export)
		return;
	memcpy(head.ticket, &export->ticket, sizeof(head.ticket));
	gksm_link_ipc_drop(process->link, &head);
	free(export);
}
