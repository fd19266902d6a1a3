/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of legacy IPC. They are about tickets; only an export names a GPU. */
#include <errno.h>
#include <unistd.h>

#include "link_state.h"

/* gksmd's own bound is 5 s; its answer, that it was not answered, is worth hearing. */
#define IPC_OPEN_NS (7000 * LINK_MS)

/* An older gksmd would take the message for a broken peer. */
static int may_ask(struct gksm_link *link)
{
	bool up, known;

	if (!link)
		return -ENOTCONN;
	gksm_mutex_lock(&link->lock);
	up = link->state == LINK_UP;
	known = link->welcome.features & GKSM_FEATURE_IPC;
	gksm_mutex_unlock(&link->lock);
	return !up ? -ENOTCONN : known ? 0 : -EOPNOTSUPP;
}

int gksm_link_ipc_export(struct gksm_link *link, unsigned gpu, const struct gksm_ipc_export *head)
{
	struct gksm_request request = {
		.type = GKSM_IPC_EXPORT, .reply_type = GKSM_IPC_EXPORTED, .gpu = gpu};
	int error = gpu < LINK_GPUS ? may_ask(link) : -EINVAL;

	return error ? error
		     : link_ask(link, &request,
				gksm_packet_new(GKSM_IPC_EXPORT, head, sizeof(*head), 0, 0),
				LINK_REQUEST_NS);
}

void gksm_link_ipc_drop(struct gksm_link *link, const struct gksm_ipc_ref *head)
{
	if (!may_ask(link))
		link_tell_head(link, GKSM_IPC_DROP, -1, head, sizeof(*head));
}

int gksm_link_ipc_open(struct gksm_link *link, const struct gksm_ipc_open *head,
		       struct gksm_ipc_opened *opened, int *fds)
{
	struct gksm_request request = {.type = GKSM_IPC_OPEN,
				       .reply_type = GKSM_IPC_OPENED,
				       .no_gpu = true,
				       .ipc = opened,
				       .ipc_fds = fds};
	int error = may_ask(link);

	if (!error)
		error = link_ask(link, &request,
				 gksm_packet_new(GKSM_IPC_OPEN, head, sizeof(*head), 0, 0),
				 IPC_OPEN_NS);
	return error ? error : (int)request.ipc_fd_count;
}

int gksm_link_ipc_pages(struct gksm_link *link, const struct gksm_ipc_pages *head, const int *fds,
			size_t count)
{
	struct gksm_request request = {
		.type = GKSM_IPC_PAGES, .reply_type = GKSM_IPC_TAKEN, .no_gpu = true};
	struct gksm_packet *packet;
	int error = may_ask(link);

	if (error)
		return error;
	packet = gksm_packet_new(GKSM_IPC_PAGES, head, sizeof(*head), 0, 0);
	if (packet) {
		packet->header.fd_count = (uint32_t)count;
		packet->fds = fds;
	}
	return link_ask(link, &request, packet, LINK_REQUEST_NS);
}
