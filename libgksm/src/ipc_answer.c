/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that answers those who open our memory, so that neither the link thread nor
 * the program has to. It starts with the first export.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fork.h"
#include "gpu.h"
#include "ipc_state.h"
#include "link.h"
#include "map.h"

static void wake(struct gksm_ipc *ipc)
{
	atomic_fetch_add(&ipc->work, 1);
	gksm_futex_wake(&ipc->work, 1);
}

void gksm_ipc_wanted(struct gksm *process, const struct gksm_ipc_wanted *wanted)
{
	struct gksm_ipc *ipc = ipc_if_used(process);

	if (!ipc)
		return;
	gksm_mutex_lock(&ipc->wanted_lock);
	/* One too many is not answered: gksmd tells who waits for it when time is up. */
	if (ipc->wanted_count < IPC_WANTED_MAX)
		ipc->wanted[ipc->wanted_count++] = *wanted;
	gksm_mutex_unlock(&ipc->wanted_lock);
	wake(ipc);
}

void gksm_ipc_renew(struct gksm *process)
{
	struct gksm_ipc *ipc = ipc_if_used(process);

	if (!ipc)
		return;
	gksm_mutex_lock(&ipc->wanted_lock);
	ipc->renew = true;
	gksm_mutex_unlock(&ipc->wanted_lock);
	wake(ipc);
}

/* Descriptors of the pages that somebody wants. How many there are, or a negative
 * errno. With ipc->lock held: no page is freed now. */
static int export_pages(struct gksm_ipc *ipc, const struct gksm_ipc_wanted *wanted, int *fds)
{
	struct ipc_export *export = ipc->exports;
	uint64_t end = wanted->first_page + wanted->count;
	uint64_t page;
	int count = 0;
	int error = 0;

	while (export && memcmp(&export->ticket, wanted->ticket, sizeof(export->ticket)) != 0)
		export = export->next;
	if (!export || !ipc_export_alive(export))
		return -ESTALE;
	if (wanted->count > GKSM_FDS_MAX || end < wanted->first_page || end > export->pages)
		return -EINVAL;
	for (page = wanted->first_page; !error && page < end; page++) {
		uint64_t index = export->first_page + page;
		enum gksm_page_state state = gksm_page_state(export->gpu, index);
		CUmemGenericAllocationHandle handle = export->gpu->pages[index].handle;

		/* Pinned: it has memory of its own, unless its context died. */
		if ((state != GKSM_PAGE_PRIVATE && state != GKSM_PAGE_RELOAD) || !handle)
			error = -EIO;
		else
			error = gksm_handle_export(export->gpu, handle, &fds[count]);
		if (!error)
			gksm_fd_opened(fds[count++]);
	}
	if (!error)
		return count;
	while (count)
		gksm_fd_close(fds[--count]);
	return error;
}

static void answer(struct gksm *process, const struct gksm_ipc_wanted *wanted)
{
	struct gksm_ipc *ipc = process->ipc;
	struct gksm_ipc_pages head = {.request = wanted->request};
	int fds[GKSM_FDS_MAX];
	int count;

	gksm_mutex_lock(&ipc->lock);
	count = export_pages(ipc, wanted, fds);
	gksm_mutex_unlock(&ipc->lock);
	if (count < 0) {
		head.status = count;
		count = 0;
	}
	gksm_link_ipc_pages(process->link, &head, fds, (size_t)count);
	while (count)
		gksm_fd_close(fds[--count]);
}

/* One that nobody frees meanwhile, and is not told twice: those whose turn has been lie
 * behind `last` (0: none has), since new ones come in front. */
static bool next_export(struct gksm_ipc *ipc, uint64_t *last, struct ipc_export *copy)
{
	struct ipc_export *export, *chosen = NULL;

	gksm_mutex_lock(&ipc->lock);
	for (export = ipc->exports; export; export = export->next)
		if (export->buffer_id > *last && (!chosen || export->buffer_id < chosen->buffer_id))
			chosen = export;
	if (chosen) {
		*copy = *chosen;
		*last = chosen->buffer_id;
	}
	gksm_mutex_unlock(&ipc->lock);
	return chosen;
}

static void renew(struct gksm *process)
{
	struct gksm_ipc *ipc = process->ipc;
	struct ipc_export export;
	uint64_t last = 0;

	while (next_export(ipc, &last, &export)) {
		struct gksm_ipc_export head = {.pages = export.pages, .bytes = export.bytes};
		struct gksm_ipc_ref gone;

		memcpy(head.ticket, &export.ticket, sizeof(head.ticket));
		memcpy(gone.ticket, &export.ticket, sizeof(gone.ticket));
		if (gksm_link_ipc_export(process->link, (unsigned)export.gpu->device, &head))
			return; /* the next connection brings the next try */
		/* Freed while gksmd was told: what was said of that is undone. */
		gksm_mutex_lock(&ipc->lock);
		if (!ipc_export_alive(&export))
			gksm_link_ipc_drop(process->link, &gone);
		gksm_mutex_unlock(&ipc->lock);
	}
}

static void *run(void *argument)
{
	struct gksm *process = argument;
	struct gksm_ipc *ipc = process->ipc;

	for (;;) {
		uint32_t seen = atomic_load(&ipc->work);
		struct gksm_ipc_wanted wanted;
		bool some, again;

		gksm_mutex_lock(&ipc->wanted_lock);
		again = ipc->renew;
		ipc->renew = false;
		some = ipc->wanted_count;
		if (some) {
			wanted = ipc->wanted[0];
			ipc->wanted_count--;
			memmove(ipc->wanted, ipc->wanted + 1,
				ipc->wanted_count * sizeof(ipc->wanted[0]));
		}
		gksm_mutex_unlock(&ipc->wanted_lock);
		if (again)
			renew(process);
		if (some)
			answer(process, &wanted);
		if (!again && !some)
			gksm_futex_wait(&ipc->work, seen, -1);
	}
	return NULL;
}

int ipc_answer_start(struct gksm *process)
{
	struct gksm_ipc *ipc = process->ipc;

	if (!ipc->answering)
		ipc->answering = gksm_thread_start(run, process, "gksm-ipc") == 0;
	return ipc->answering ? 0 : -ENOMEM;
}
