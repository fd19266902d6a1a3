/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "fork.h"
#include "link_state.h"

struct gksm_link *gksm_link_start(const char *socket_path, const struct gksm_hello *hello,
				  const struct gksm_link_events *events, void *user)
{
	struct gksm_link *link;

	if (strlen(socket_path) >= sizeof(link->path))
		return NULL;
	link = calloc(1, sizeof(*link));
	if (!link)
		return NULL;
	link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (link->wake_fd < 0) {
		free(link);
		return NULL;
	}
	gksm_fd_opened(link->wake_fd);
	link->events = events;
	link->user = user;
	link->hello = *hello;
	strcpy(link->path, socket_path);
	link->socket = -1;
	if (gksm_thread_start(link_thread, link, "gksm-link") == 0)
		return link;
	gksm_fd_close(link->wake_fd);
	free(link);
	return NULL;
}

int gksm_link_wait(struct gksm_link *link, int timeout_ms, struct gksm_welcome *welcome)
{
	uint64_t deadline = gksm_now_ns() + (uint64_t)timeout_ms * LINK_MS;

	if (!link)
		return -ENOTCONN;
	for (;;) {
		uint32_t attempts = atomic_load(&link->attempts);
		bool welcomed, refused;
		uint64_t now;

		gksm_mutex_lock(&link->lock);
		welcomed = link->welcomed;
		refused = link->refused;
		if (welcomed)
			*welcome = link->welcome;
		gksm_mutex_unlock(&link->lock);
		if (welcomed)
			return 0;
		if (refused)
			return -ENOTCONN;
		now = gksm_now_ns();
		if (now >= deadline)
			return -ETIMEDOUT;
		gksm_futex_wait(&link->attempts, attempts, (int64_t)(deadline - now));
	}
}

bool gksm_link_is_up(const struct gksm_link *link)
{
	return link && atomic_load_explicit(&link->state, memory_order_acquire) == LINK_UP &&
	       !atomic_load_explicit(&link->stalled_ns, memory_order_relaxed);
}
