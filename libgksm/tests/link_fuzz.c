/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throws random packets at what receives for the link, without a thread: requests of
 * every kind are outstanding, others were given up, and whatever comes must leave no
 * descriptor behind and touch no memory that is not its own (run it under a
 * sanitizer). The same seed makes the same packets.
 *
 *   link_fuzz SEED ROUNDS
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link_state.h"

#define FIRST_LOST 100
#define PACKETS_IN_A_ROUND 6

struct bench {
	struct gksm_link *link;
	int near, far, null;
	uint64_t random;
	struct gksm_request requests[16];
	size_t request_count;
	unsigned orders;
};

static const struct {
	uint16_t type, reply;
	size_t count;
} kinds[] = {
	{GKSM_LOOKUP, GKSM_LOOKED_UP, 1},    {GKSM_LOOKUP, GKSM_LOOKED_UP, 3},
	{GKSM_WAIT, GKSM_LOOKED_UP, 2},	     {GKSM_PUBLISH, GKSM_PUBLISHED, 2},
	{GKSM_SEGMENT_GET, GKSM_SEGMENT, 0}, {GKSM_SEGMENT_OPEN, GKSM_SEGMENT, 0},
	{GKSM_COMMIT, GKSM_COMMITTED, 0},    {GKSM_GPU_OPEN, GKSM_GPU_OPENED, 0},
	{GKSM_IPC_OPEN, GKSM_IPC_OPENED, 0}, {GKSM_IPC_PAGES, GKSM_IPC_TAKEN, 0},
	{GKSM_RECLAIM, GKSM_RECLAIMED, 0},
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static uint32_t chance(struct bench *bench, uint32_t below)
{
	bench->random = bench->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(bench->random >> 33) % below;
}

static bool rarely(struct bench *bench)
{
	return chance(bench, 40) == 0;
}

static void on_control(void *user, const struct gksm_control *control)
{
	((struct bench *)user)->orders += strlen(control->reason) < sizeof(control->reason);
}

static void on_gpu_opened(void *user, unsigned gpu, const struct gksm_gpu_opened *opened)
{
	((struct bench *)user)->orders += gpu + opened->gpu;
}

static void on_ipc_wanted(void *user, const struct gksm_ipc_wanted *wanted)
{
	((struct bench *)user)->orders += wanted->count;
}

static const struct gksm_link_events events = {
	.control = on_control,
	.ipc_wanted = on_ipc_wanted,
	.gpu_opened = on_gpu_opened,
};

static void *allocate(size_t bytes)
{
	void *memory = calloc(1, bytes ? bytes : 1);

	if (!memory)
		exit(1);
	return memory;
}

static int open_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	return count;
}

/* Answers go to memory of exactly the right size. */
static void outstanding(struct bench *bench)
{
	struct gksm_link *link = bench->link;

	link->state = LINK_UP;
	link->drop = false;
	link->seq = 0;
	link->announce_first = 50;
	link->announce_count = 3;
	link->gpus[0].open = true;
	link->gpus[1].open_seq = 40;
	for (size_t i = 0; i < KINDS; i++) {
		struct gksm_request *request = &bench->requests[i];

		*request = (struct gksm_request){.next = link->requests,
						 .seq = (uint32_t)i + 1,
						 .type = kinds[i].type,
						 .reply_type = kinds[i].reply,
						 .count = kinds[i].count,
						 .fd = -1};
		request->replies = allocate(kinds[i].count * sizeof(*request->replies));
		request->results = allocate(kinds[i].count * sizeof(*request->results));
		request->segment = allocate(sizeof(*request->segment));
		request->opened = allocate(sizeof(*request->opened));
		request->ipc = allocate(sizeof(*request->ipc));
		request->ipc_fds = allocate(GKSM_FDS_MAX * sizeof(*request->ipc_fds));
		request->committed = allocate(sizeof(*request->committed));
		request->freed = allocate(sizeof(*request->freed));
		for (size_t j = 0; j < kinds[i].count; j++) {
			request->replies[j].result.outcome = LINK_UNANSWERED;
			request->replies[j].fd = -1;
		}
		link->requests = request;
		link->lost[i] =
			(struct link_lost){.seq = FIRST_LOST + (uint32_t)i, .type = kinds[i].type};
	}
}

/* As callers and the end of a connection would. */
static void clear(struct bench *bench)
{
	struct gksm_link *link = bench->link;

	while (link->requests)
		link_request_done(link, link->requests, -ENOTCONN);
	for (size_t i = 0; i < KINDS; i++) {
		struct gksm_request *request = &bench->requests[i];

		for (size_t j = 0; j < request->count; j++)
			if (request->replies[j].fd >= 0)
				close(request->replies[j].fd);
		if (request->fd >= 0)
			close(request->fd);
		while (request->ipc_fd_count)
			close(request->ipc_fds[--request->ipc_fd_count]);
		free(request->ipc_fds);
		free(request->ipc);
		free(request->replies);
		free(request->results);
		free(request->segment);
		free(request->opened);
		free(request->committed);
		free(request->freed);
	}
	link_packets_free(link_queue_take_all(&link->queue));
	link->queue_bytes = 0;
	memset(link->lost, 0, sizeof(link->lost));
}

static uint32_t some_seq(struct bench *bench)
{
	switch (chance(bench, 8)) {
	case 0:
		return FIRST_LOST + chance(bench, KINDS + 1);
	case 1:
		return chance(bench, 60);
	default:
		return 1 + chance(bench, KINDS);
	}
}

/* Right in most things, most of the time: only then does it get far. */
static void send_one(struct bench *bench)
{
	static uint8_t packet[GKSM_PACKET_MAX + 1024];
	static const uint32_t head_sizes[] = {[GKSM_WELCOME] = 224,   [GKSM_GPU_OPENED] = 40,
					      [GKSM_SEGMENT] = 16,    [GKSM_CONTROL] = 136,
					      [GKSM_RECLAIMED] = 8,   [GKSM_SCAN_TERMS] = 32,
					      [GKSM_IPC_OPENED] = 32, [GKSM_IPC_WANTED] = 40};
	static const uint32_t entry_sizes[] = {
		[GKSM_LOOKED_UP] = 48, [GKSM_PUBLISHED] = 16, [GKSM_ANNOUNCED] = 16};
	struct gksm_header header = {.magic = GKSM_MAGIC};
	char control[CMSG_SPACE(GKSM_SCM_FDS * sizeof(int))] = {0};
	int fds[GKSM_SCM_FDS];
	struct iovec data = {.iov_base = packet};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
	uint32_t hits = 0, seq = some_seq(bench), fd_count;
	struct cmsghdr *rights;

	header.seq = seq;
	header.type =
		seq >= 1 && seq <= KINDS ? kinds[seq - 1].reply : (uint16_t)(1 + chance(bench, 38));
	if (rarely(bench))
		header.type = (uint16_t)chance(bench, 80);
	if (header.type < sizeof(head_sizes) / sizeof(head_sizes[0]))
		header.head_bytes = head_sizes[header.type];
	if (header.type < sizeof(entry_sizes) / sizeof(entry_sizes[0]))
		header.entry_bytes = entry_sizes[header.type];
	header.entry_count = header.entry_bytes ? chance(bench, 4) : 0;
	header.flags = (uint16_t)chance(bench, 2);
	if (header.type == GKSM_CONTROL || header.type == GKSM_IPC_WANTED)
		header.seq = 0;

	memset(packet, 0, sizeof(packet));
	data.iov_len = sizeof(header) + header.head_bytes + header.entry_bytes * header.entry_count;
	for (size_t i = sizeof(header); i < data.iov_len; i += 1 + chance(bench, 9))
		packet[i] = (uint8_t)bench->random;
	for (uint32_t i = 0; header.type == GKSM_LOOKED_UP && i < header.entry_count; i++) {
		struct gksm_lookup_result result = {.index = chance(bench, 4),
						    .outcome = chance(bench, 5),
						    .page_id = bench->random};

		hits += result.outcome == GKSM_LOOKUP_HIT;
		memcpy(packet + sizeof(header) + i * sizeof(result), &result, sizeof(result));
	}
	fd_count = header.type == GKSM_SEGMENT ? 1 : hits;
	if (header.type == GKSM_IPC_OPENED)
		fd_count = 1 + chance(bench, GKSM_FDS_MAX);
	if (rarely(bench))
		fd_count = chance(bench, GKSM_SCM_FDS);
	header.fd_count = rarely(bench) ? chance(bench, 260) : fd_count;
	if (rarely(bench))
		header.status = -(int32_t)chance(bench, 40);
	if (rarely(bench))
		header.entry_bytes += chance(bench, 3) * 8;
	if (rarely(bench))
		data.iov_len = chance(bench, sizeof(packet));
	if (rarely(bench))
		((uint8_t *)&header)[chance(bench, sizeof(header))] ^= 1u << chance(bench, 8);
	memcpy(packet, &header, sizeof(header));

	if (fd_count) {
		for (uint32_t i = 0; i < fd_count; i++)
			fds[i] = bench->null;
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(rights), fds, fd_count * sizeof(int));
	}
	if (sendmsg(bench->far, &message, MSG_NOSIGNAL) < 0)
		exit(1);
}

int main(int argc, char **argv)
{
	struct bench bench = {0};
	unsigned long rounds, answered = 0, refused = 0;
	int sockets[2], before;

	if (argc != 3) {
		fputs("usage: link_fuzz SEED ROUNDS\n", stderr);
		return 2;
	}
	bench.random = strtoull(argv[1], NULL, 0) * 2 + 1;
	rounds = strtoul(argv[2], NULL, 0);
	bench.null = open("/dev/null", O_RDWR | O_CLOEXEC);
	bench.link = allocate(sizeof(*bench.link));
	bench.link->events = &events;
	bench.link->user = &bench;
	bench.link->hello.protocol_min = bench.link->hello.protocol_max = 1;
	bench.link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		return 1;
	bench.near = sockets[0];
	bench.far = sockets[1];

	before = open_fds();
	for (unsigned long round = 0; round < rounds; round++) {
		outstanding(&bench);
		for (unsigned i = 0; i < PACKETS_IN_A_ROUND; i++) {
			int result;

			send_one(&bench);
			result = gksm_packet_receive(bench.near, &bench.link->received);
			if (result == 0)
				result = link_dispatch(bench.link, &bench.link->received);
			answered += result == 0;
			refused += result != 0;
			if (result)
				break;
		}
		clear(&bench);
	}
	if (open_fds() != before) {
		fprintf(stderr, "%d descriptors were left\n", open_fds() - before);
		return 1;
	}
	/* Both must happen, or the packets test nothing. */
	if (answered < rounds / 10 || refused < rounds / 10) {
		fprintf(stderr, "%lu packets were taken and %lu refused\n", answered, refused);
		return 1;
	}
	free(bench.link);
	printf("%lu packets taken, %lu refused\n", answered, refused);
	return 0;
}
