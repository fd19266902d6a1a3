/* SPDX-License-Identifier: Apache-2.0 */
#include "packet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROUTE(name, head, entry) [GKSM_##name] = {true, head, entry}

/*
 * What a client may be sent, and how long heads and entries were in protocol 1. These
 * are numbers and not sizeof: structs grow, the oldest peer's do not.
 */
static const struct {
	bool known;
	uint16_t head_bytes;
	uint16_t entry_bytes;
} incoming[] = {
	ROUTE(WELCOME, 224, 0),	  ROUTE(GPU_OPENED, 40, 0),  ROUTE(COMMITTED, 0, 0),
	ROUTE(LOOKED_UP, 0, 48),  ROUTE(PUBLISHED, 0, 16),   ROUTE(SEGMENT, 16, 0),
	ROUTE(ANNOUNCED, 0, 16),  ROUTE(CONTROL, 136, 0),    ROUTE(RECLAIMED, 8, 0),
	ROUTE(SCAN_TERMS, 32, 0), ROUTE(IPC_EXPORTED, 0, 0), ROUTE(IPC_OPENED, 32, 0),
	ROUTE(IPC_WANTED, 40, 0), ROUTE(IPC_TAKEN, 0, 0),
};

_Static_assert(sizeof(struct gksm_welcome) >= 224, "fields are only appended");
_Static_assert(sizeof(struct gksm_gpu_opened) >= 40, "fields are only appended");
_Static_assert(sizeof(struct gksm_lookup_result) >= 48, "fields are only appended");
_Static_assert(sizeof(struct gksm_publish_result) >= 16, "fields are only appended");
_Static_assert(sizeof(struct gksm_segment) >= 16, "fields are only appended");
_Static_assert(sizeof(struct gksm_announce_result) >= 16, "fields are only appended");
_Static_assert(sizeof(struct gksm_control) >= 136, "fields are only appended");
_Static_assert(sizeof(struct gksm_committed) >= 16, "fields are only appended");
_Static_assert(sizeof(struct gksm_reclaimed) >= 8, "fields are only appended");
_Static_assert(sizeof(struct gksm_scan_terms) >= 32, "fields are only appended");
_Static_assert(sizeof(struct gksm_ipc_opened) >= 32, "fields are only appended");
_Static_assert(sizeof(struct gksm_ipc_wanted) >= 40, "fields are only appended");
_Static_assert(sizeof(struct gksm_header) == 32, "the header never changes");

struct gksm_packet *gksm_packet_new(enum gksm_message type, const void *head, size_t head_bytes,
				    size_t entry_bytes, size_t capacity)
{
	size_t body = head_bytes + entry_bytes * capacity;
	struct gksm_packet *packet;

	if (body > GKSM_PACKET_MAX - sizeof(packet->header))
		return NULL;
	packet = calloc(1, sizeof(*packet) + body);
	if (!packet)
		return NULL;
	packet->capacity = capacity;
	packet->header.magic = GKSM_MAGIC;
	packet->header.type = (uint16_t)type;
	packet->header.head_bytes = (uint32_t)head_bytes;
	packet->header.entry_bytes = (uint32_t)entry_bytes;
	packet->header.entry_count = (uint32_t)capacity;
	if (head_bytes)
		memcpy(packet->body, head, head_bytes);
	return packet;
}

void *gksm_packet_entry(struct gksm_packet *packet, size_t i)
{
	return packet->body + packet->header.head_bytes + i * packet->header.entry_bytes;
}

size_t gksm_packet_bytes(const struct gksm_packet *packet)
{
	return sizeof(packet->header) + packet->header.head_bytes +
	       (size_t)packet->header.entry_bytes * packet->header.entry_count;
}

int gksm_packet_send(int socket, const struct gksm_packet *packet)
{
	union {
		char bytes[CMSG_SPACE(GKSM_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec data = {.iov_base = (void *)&packet->header,
			     .iov_len = gksm_packet_bytes(packet)};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
	size_t fd_bytes = packet->header.fd_count * sizeof(int);

	if (fd_bytes) {
		struct cmsghdr *rights;

		memset(&control, 0, sizeof(control));
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(fd_bytes);
		rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(fd_bytes);
		memcpy(CMSG_DATA(rights), packet->fds, fd_bytes);
	}
	while (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

/* Every descriptor that came, whatever else is wrong with the message. */
static void collect_fds(struct msghdr *message, struct gksm_received *received)
{
	for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
		size_t bytes;

		if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
			continue;
		bytes = at->cmsg_len - CMSG_LEN(0);
		memcpy(received->fds + received->fd_count, CMSG_DATA(at), bytes);
		received->fd_count += (unsigned)(bytes / sizeof(int));
	}
	received->fds_lost = message->msg_flags & MSG_CTRUNC;
}

static bool well_formed(const struct gksm_received *received, size_t bytes)
{
	const struct gksm_header *header = &received->header;
	uint64_t entries = (uint64_t)header->entry_bytes * header->entry_count;

	if (bytes < sizeof(*header) || header->magic != GKSM_MAGIC)
		return false;
	if (header->type >= sizeof(incoming) / sizeof(incoming[0]) || !incoming[header->type].known)
		return false;
	if (sizeof(*header) + header->head_bytes + entries != bytes)
		return false;
	if (header->fd_count != received->fd_count &&
	    !(received->fds_lost && header->fd_count > received->fd_count))
		return false;
	if (header->fd_count > GKSM_FDS_MAX || header->status > 0)
		return false;
	if (header->entry_count && header->entry_bytes < incoming[header->type].entry_bytes)
		return false;
	/* A refusal needs no head. */
	return header->status < 0 || header->head_bytes >= incoming[header->type].head_bytes;
}

int gksm_packet_receive(int socket, struct gksm_received *received)
{
	union {
		char bytes[CMSG_SPACE(GKSM_SCM_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec data = {.iov_base = received->bytes, .iov_len = sizeof(received->bytes)};
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes)};
	ssize_t bytes;

	received->fd_count = 0;
	received->fds_lost = false;
	do
		bytes = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (bytes < 0 && errno == EINTR);
	if (bytes < 0)
		return errno == EAGAIN || errno == EBADF || errno == ENOTSOCK ? -errno : -ENOTCONN;

	collect_fds(&message, received);
	/* Nobody sends empty packets: it is the end. */
	if (bytes == 0 && !received->fd_count)
		return -ENOTCONN;
	memset(&received->header, 0, sizeof(received->header));
	memcpy(&received->header, received->bytes,
	       (size_t)bytes < sizeof(received->header) ? (size_t)bytes : sizeof(received->header));
	if ((message.msg_flags & MSG_TRUNC) || !well_formed(received, (size_t)bytes)) {
		gksm_received_close_fds(received);
		return -EPROTO;
	}
	received->head = received->bytes + sizeof(received->header);
	received->entries = received->head + received->header.head_bytes;
	return 0;
}

static void extract(const uint8_t *from, size_t there, void *into, size_t wanted)
{
	memset(into, 0, wanted);
	memcpy(into, from, there < wanted ? there : wanted);
}

void gksm_received_head(const struct gksm_received *received, void *into, size_t bytes)
{
	extract(received->head, received->header.head_bytes, into, bytes);
}

void gksm_received_entry(const struct gksm_received *received, size_t i, void *into, size_t bytes)
{
	extract(received->entries + i * received->header.entry_bytes, received->header.entry_bytes,
		into, bytes);
}

int gksm_received_take_fd(struct gksm_received *received)
{
	for (unsigned i = 0; i < received->fd_count; i++) {
		int fd = received->fds[i];

		if (fd >= 0) {
			received->fds[i] = -1;
			return fd;
		}
	}
	return -1;
}

void gksm_received_close_fds(struct gksm_received *received)
{
	for (unsigned i = 0; i < received->fd_count; i++)
		if (received->fds[i] >= 0)
			close(received->fds[i]);
	received->fd_count = 0;
}
