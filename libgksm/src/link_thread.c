/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link thread: connects, comes up step by step, sends what is queued, receives,
 * and starts over when the connection is lost.
 */
#include <errno.h>
#include <poll.h>
#include <limits.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fork.h"
#include "link_state.h"

#define RECEIVE_BURST 64 /* packets, before it is the senders' turn */
#define RETRY_NS (5 * LINK_MS)
#define SEND_BUFFER (1 << 20)

static int dial(struct gksm_link *link)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int buffer = SEND_BUFFER;
	int fd;

	strcpy(address.sun_path, link->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	gksm_fd_opened(fd);
	/* A wish: several packets should fit. */
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int error = -errno;

		gksm_fd_close(fd);
		return error;
	}
	return fd;
}

static void enter(struct gksm_link *link, enum link_state state)
{
	gksm_mutex_lock(&link->lock);
	link->state = state;
	gksm_mutex_unlock(&link->lock);
	link->deadline_ns = gksm_now_ns() + LINK_STATE_NS;
}

/* gksm_link_wait looks again. */
static void attempt_over(struct gksm_link *link, bool refused)
{
	gksm_mutex_lock(&link->lock);
	link->refused = refused;
	if (!refused)
		link->welcomed = true;
	gksm_mutex_unlock(&link->lock);
	atomic_fetch_add(&link->attempts, 1);
	gksm_futex_wake(&link->attempts, INT_MAX);
}

/* Queues a packet of the thread's own. false: no memory. */
static bool say(struct gksm_link *link, struct gksm_packet *packet, uint32_t *seq)
{
	if (!packet)
		return false;
	gksm_mutex_lock(&link->lock);
	*seq = link_next_seq(link);
	gksm_mutex_unlock(&link->lock);
	packet->header.seq = *seq;
	link_queue_append(&link->own, packet);
	return true;
}

static bool say_hello(struct gksm_link *link)
{
	link_announce_reset(link);
	link->blocked = false;
	link->retry_ns = 0;
	enter(link, LINK_GREETING);
	return say(link, gksm_packet_new(GKSM_HELLO, &link->hello, sizeof(link->hello), 0, 0),
		   &link->hello_seq);
}

/* Asks for every GPU that was not asked for on this connection. */
static bool open_gpus(struct gksm_link *link)
{
	for (struct link_gpu *gpu = link->gpus; gpu < link->gpus + LINK_GPUS; gpu++) {
		struct gksm_packet *packet;
		struct gksm_gpu_open request;
		bool ask;

		gksm_mutex_lock(&link->lock);
		ask = gpu->known && !gpu->asked;
		gpu->asked = gpu->known;
		request = gpu->request;
		gksm_mutex_unlock(&link->lock);
		if (!ask)
			continue;
		packet = link_gpu_open_packet(&request);
		if (!packet)
			return false;
		gksm_mutex_lock(&link->lock);
		gpu->open_seq = packet->header.seq = link_next_seq(link);
		gksm_mutex_unlock(&link->lock);
		link_queue_append(&link->own, packet);
	}
	return true;
}

static bool opens_pending(struct gksm_link *link)
{
	bool pending = false;

	gksm_mutex_lock(&link->lock);
	for (size_t i = 0; i < LINK_GPUS; i++)
		pending |= link->gpus[i].open_seq != 0;
	gksm_mutex_unlock(&link->lock);
	return pending;
}

static bool come_up(struct gksm_link *link)
{
	/* A GPU that a caller asked for since the others were opened: its answer need
	 * not be waited for, nothing is mapped on it yet. */
	if (!open_gpus(link))
		return false;
	gksm_mutex_lock(&link->lock);
	link->state = LINK_UP;
	for (size_t i = 0; i < LINK_GPUS; i++)
		link->gpus[i].usage_dirty = link->gpus[i].usage_known;
	gksm_mutex_unlock(&link->lock);
	link->up_since_ns = gksm_now_ns();
	link->was_up = true;
	link->events->up(link->user, &link->welcome);
	attempt_over(link, false);
	return true;
}

/* Takes the steps of coming up that can be taken now. false: drop the connection. */
static bool progress(struct gksm_link *link)
{
	int more;

	if (link->state == LINK_OPENING) {
		if (!open_gpus(link))
			return false;
		if (!opens_pending(link))
			enter(link, LINK_ANNOUNCING);
	}
	/* One packet at a time: the next is made when the socket has taken the last. */
	if (link->state == LINK_ANNOUNCING && !link->own.first) {
		more = link_announce(link);
		if (more < 0)
			return false;
		if (more)
			link->deadline_ns = gksm_now_ns() + LINK_STATE_NS;
		else
			return come_up(link);
	}
	return true;
}

/* What is to be sent next. One from the queue is out of reach of its caller until
 * sent() or not_sent(). */
static struct gksm_packet *next_packet(struct gksm_link *link)
{
	struct gksm_packet *packet = link->own.first;

	if (packet || link->state != LINK_UP)
		return packet;
	gksm_mutex_lock(&link->lock);
	packet = link->queue.first;
	link->sending = packet;
	gksm_mutex_unlock(&link->lock);
	return packet;
}

static void not_sent(struct gksm_link *link)
{
	gksm_mutex_lock(&link->lock);
	link->sending = NULL;
	gksm_mutex_unlock(&link->lock);
}

/* error: the packet alone could not be sent; its request fails with it. */
static void sent(struct gksm_link *link, struct gksm_packet *packet, int error)
{
	gksm_mutex_lock(&link->lock);
	if (!link->sending) {
		link_queue_remove(&link->own, packet);
	} else {
		link_queue_remove(&link->queue, packet);
		link->sending = NULL;
		if (!packet->request)
			link->queue_bytes -= link_packet_cost(packet);
		else if (error)
			link_request_done(link, packet->request, error);
		else
			packet->request->packet = NULL;
	}
	gksm_mutex_unlock(&link->lock);
	packet->next = NULL;
	link_packets_free(packet);
}

static bool lost_peer(int error)
{
	return error == -EPIPE || error == -ECONNRESET || error == -ENOTCONN;
}

/* Sends until nothing is left or the socket is full. false: the connection is gone. */
static bool flush(struct gksm_link *link)
{
	struct gksm_packet *packet;

	link->blocked = false;
	if (link->retry_ns && gksm_now_ns() < link->retry_ns)
		return true;
	link->retry_ns = 0;
	while ((packet = next_packet(link))) {
		int result = gksm_packet_send(link->socket, packet);

		switch (result) {
		case -EAGAIN:
			link->blocked = true;
			not_sent(link);
			return true;
		case -ENOBUFS:
		case -ENOMEM:
		case -ETOOMANYREFS: /* fds that gksmd has not taken out yet */
			link->retry_ns = gksm_now_ns() + RETRY_NS;
			not_sent(link);
			return true;
		}
		/* EBADF is about the packet's own fds, if it has any. */
		link->robbed =
			result == -ENOTSOCK || (result == -EBADF && !packet->header.fd_count);
		if (result && (lost_peer(result) || link->robbed || !packet->request)) {
			not_sent(link);
			return false;
		}
		sent(link, packet, result);
	}
	return true;
}

/* false: the connection is gone, or what came made no sense. */
static bool receive(struct gksm_link *link)
{
	for (int i = 0; i < RECEIVE_BURST; i++) {
		int result = gksm_packet_receive(link->socket, &link->received);

		if (result == -EAGAIN)
			return true;
		link->robbed = result == -EBADF || result == -ENOTSOCK;
		if (result)
			return false;
		atomic_store(&link->heard_ns, gksm_now_ns());
		atomic_store(&link->stalled_ns, 0);
		if (link_dispatch(link, &link->received))
			return false;
	}
	return true;
}

static bool wants_drop(struct gksm_link *link, uint64_t now)
{
	uint64_t stalled = atomic_load(&link->stalled_ns);
	bool drop;

	gksm_mutex_lock(&link->lock);
	drop = link->drop;
	gksm_mutex_unlock(&link->lock);
	return drop || (stalled && now >= stalled + LINK_SILENCE_NS) ||
	       (link->state != LINK_UP && now >= link->deadline_ns);
}

static void until(uint64_t *wake_ns, uint64_t when)
{
	if (when && when < *wake_ns)
		*wake_ns = when;
}

/* Some programs close every descriptor they do not know. */
static void renew_wake_fd(struct gksm_link *link)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	gksm_fd_closed(link->wake_fd);
	if (fd < 0) {
		gksm_sleep_ns(RETRY_NS);
		return;
	}
	gksm_fd_opened(fd);
	atomic_store(&link->wake_fd, fd);
	atomic_store(&link->wake_pending, 0);
}

/*
 * Sleeps until there is something to do, at most until wake_ns. Never for long: a
 * descriptor that the application closes meanwhile does not end a poll.
 */
static void idle(struct gksm_link *link, uint64_t wake_ns)
{
	struct pollfd fds[2] = {
		{.fd = link->socket, .events = POLLIN | (link->blocked ? POLLOUT : 0)},
		{.fd = link->wake_fd, .events = POLLIN},
	};
	uint64_t now = gksm_now_ns(), count, wait = LINK_LOOK_NS;

	if (wake_ns <= now)
		wait = 0;
	else if (wake_ns - now < wait)
		wait = wake_ns - now;
	poll(fds, 2, (int)((wait + LINK_MS - 1) / LINK_MS));
	if (fds[1].revents & POLLNVAL)
		renew_wake_fd(link);
	if (fds[1].revents & POLLIN) {
		if (read(link->wake_fd, &count, sizeof(count)) < 0)
			return;
		/* Before the queue is looked at: what comes later wakes again. */
		atomic_store(&link->wake_pending, 0);
	}
}

static void serve(struct gksm_link *link)
{
	for (;;) {
		uint64_t now = gksm_now_ns(), wake = UINT64_MAX, stalled;

		if (wants_drop(link, now) || !receive(link) || !progress(link))
			return;
		if (link->state == LINK_UP && !link->own.first)
			until(&wake, link_queue_due(link, now));
		if (!flush(link)) {
			/* Whoever is turned away cannot send, but is told why. */
			if (link->state == LINK_GREETING && !link->robbed)
				receive(link);
			return;
		}
		if (link->state == LINK_ANNOUNCING && !link->own.first)
			continue;
		stalled = atomic_load(&link->stalled_ns);
		until(&wake, link->retry_ns);
		until(&wake, stalled ? stalled + LINK_SILENCE_NS : 0);
		until(&wake, link->state != LINK_UP ? link->deadline_ns : 0);
		idle(link, wake);
	}
}

/* The connection is over: everybody who waits hears it, what is queued is void. */
static void hang_up(struct gksm_link *link)
{
	struct gksm_packet *queued;

	gksm_mutex_lock(&link->lock);
	link->state = LINK_DOWN;
	link->connection++;
	link->drop = false;
	link->stalled_ns = 0;
	while (link->requests)
		link_request_done(link, link->requests, -ENOTCONN);
	memset(link->lost, 0, sizeof(link->lost));
	for (size_t i = 0; i < LINK_GPUS; i++) {
		link->gpus[i].asked = false;
		link->gpus[i].open = false;
		link->gpus[i].open_seq = 0;
	}
	queued = link_queue_take_all(&link->queue);
	link->queue_bytes = 0;
	gksm_mutex_unlock(&link->lock);

	link_packets_free(queued);
	link_packets_free(link_queue_take_all(&link->own));
	if (link->robbed && link->socket != link->wake_fd)
		gksm_fd_closed(link->socket);
	else if (!link->robbed)
		gksm_fd_close(link->socket);
	link->socket = -1;
	if (link->was_up)
		link->events->down(link->user);
	else
		attempt_over(link, true);
}

/* Longer after each failure; not all processes of a host at the same moment. */
static void pause_before_retry(struct gksm_link *link)
{
	uint64_t jitter = (gksm_now_ns() ^ ((uint64_t)getpid() << 12)) % (link->pause_ns / 4);

	gksm_sleep_ns(link->pause_ns + jitter);
	link->pause_ns *= 2;
	if (link->pause_ns > LINK_PAUSE_MAX_NS)
		link->pause_ns = LINK_PAUSE_MAX_NS;
}

/*
 * A new socket that has the wake descriptor's number shows that the application closed
 * the latter. Read as an eventfd, the socket would lose gksmd's answers, and so would
 * each one after it, since all get the lowest free number. false: there is no other.
 */
static bool apart_from_wake_fd(struct gksm_link *link, int fd)
{
	if (fd != link->wake_fd)
		return true;
	renew_wake_fd(link);
	if (fd == link->wake_fd)
		return false;
	gksm_fd_opened(fd); /* renewing has taken the number off the list */
	return true;
}

void *link_thread(void *argument)
{
	struct gksm_link *link = argument;

	link->pause_ns = LINK_PAUSE_MIN_NS;
	gksm_mutex_lock(&link->lock);
	link->connection = 1;
	gksm_mutex_unlock(&link->lock);
	for (;;) {
		int fd = dial(link);

		if (fd >= 0 && !apart_from_wake_fd(link, fd)) {
			gksm_fd_close(fd);
		} else if (fd >= 0) {
			link->socket = fd;
			link->was_up = false;
			link->robbed = false;
			if (say_hello(link))
				serve(link);
			hang_up(link);
			/* One that welcomes and hangs up again is not asked ten times a second. */
			if (link->was_up && gksm_now_ns() - link->up_since_ns > LINK_PAUSE_MAX_NS)
				link->pause_ns = LINK_PAUSE_MIN_NS;
		} else if (fd != -EAGAIN) {
			attempt_over(link, true);
		}
		pause_before_retry(link);
	}
	return NULL;
}
