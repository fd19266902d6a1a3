/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of link_client that ask or tell gksmd something. */
#include "link_client.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int page_fd(uint64_t id)
{
	int fd = memfd_create("page", MFD_CLOEXEC);

	if (fd < 0 || pwrite(fd, &id, sizeof(id), 0) != sizeof(id)) {
		perror("memfd_create");
		exit(1);
	}
	return fd;
}

/* Prints outcome:page id or token:what the descriptor contains. */
static void print_replies(struct gksm_lookup_reply *replies, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct gksm_lookup_result *result = &replies[i].result;
		uint64_t content = 0;
		uint64_t id = result->outcome == GKSM_LOOKUP_HIT ? result->page_id : result->token;

		if (replies[i].fd >= 0) {
			if (pread(replies[i].fd, &content, sizeof(content), 0) != sizeof(content))
				content = UINT64_MAX;
			close(replies[i].fd);
		}
		printf(" %u:%lu:%lu", result->outcome, (unsigned long)id, (unsigned long)content);
	}
	putchar('\n');
}

void do_wait(void)
{
	struct gksm_welcome welcome = {0};
	int result = gksm_link_wait(client.link, (int)number(), &welcome);

	printf("%d %s\n", result, welcome.domain);
}

void do_up(void)
{
	printf("%d\n", gksm_link_is_up(client.link));
}

void do_events(void)
{
	gksm_mutex_lock(&client.lock);
	printf("%.*s\n", (int)client.event_bytes, client.events);
	client.event_bytes = 0;
	gksm_mutex_unlock(&client.lock);
}

void do_open(void)
{
	unsigned gpu = (unsigned)number();
	struct gksm_gpu_open open = {.total_bytes = 1u << 30, .arena_pages = PAGES_MAX};
	struct gksm_gpu_opened opened = {0};
	int result;

	open.uuid[0] = (uint8_t)(gpu + 1);
	result = gksm_link_gpu_open(client.link, gpu, &open, &opened);
	printf("%d %u %u\n", result, opened.gpu, opened.load_wait_ms);
}

void do_commit(void)
{
	unsigned gpu = (unsigned)number();
	struct gksm_commit commit = {.pages = number(), .free_bytes = 1u << 30};

	printf("%d\n", gksm_link_commit(client.link, gpu, &commit, NULL));
}

void do_held(void)
{
	unsigned gpu = (unsigned)number();
	struct gksm_commit commit = {.free_bytes = 1u << 30};
	struct gksm_committed committed;
	int result = gksm_link_commit(client.link, gpu, &commit, &committed);

	printf("%d %llu\n", result, (unsigned long long)committed.held_bytes);
}

void do_reclaim(void)
{
	unsigned gpu = (unsigned)number(), timeout = (unsigned)number();
	uint64_t bytes = number(), freed;
	int result = gksm_link_reclaim(client.link, gpu, bytes, timeout, &freed);

	printf("%d %llu\n", result, (unsigned long long)freed);
}

void do_lookup(void)
{
	static struct gksm_lookup_reply replies[PAGES_MAX];
	static struct gksm_hash128 hashes[PAGES_MAX];
	unsigned gpu = (unsigned)number();
	uint64_t first = number();
	size_t count = number();
	int result;

	for (size_t i = 0; i < count; i++)
		hashes[i] = (struct gksm_hash128){.low = first + i, .high = ~(first + i)};
	result = gksm_link_lookup(client.link, gpu, GKSM_KIND_WEIGHTS, hashes, count, replies);
	printf("%d", result);
	print_replies(replies, result ? 0 : count);
}

void do_tickets(void)
{
	static struct gksm_lookup_reply replies[GKSM_BATCH_MAX];
	unsigned gpu = (unsigned)number(), timeout = (unsigned)number();
	uint64_t tickets[GKSM_BATCH_MAX];
	size_t count = numbers(tickets, GKSM_BATCH_MAX);
	int result = gksm_link_wait_tickets(client.link, gpu, tickets, count, timeout, replies);

	printf("%d", result);
	print_replies(replies, result ? 0 : count);
}

static void publish(unsigned gpu, uint64_t first, const uint64_t *tokens, size_t count)
{
	static struct gksm_publish_entry entries[PAGES_MAX];
	static struct gksm_publish_result results[PAGES_MAX];
	static int fds[PAGES_MAX];
	int result;

	for (size_t i = 0; i < count; i++) {
		entries[i] = (struct gksm_publish_entry){
			.token = tokens ? tokens[i] : first + i,
			.hash = {.low = first + i, .high = ~(first + i)}};
		fds[i] = page_fd(first + i);
	}
	result = gksm_link_publish(client.link, gpu, GKSM_KIND_WEIGHTS, entries, fds, count,
				   results);
	printf("%d", result);
	for (size_t i = 0; i < count; i++) {
		close(fds[i]);
		printf(" %d:%lu", results[i].status, (unsigned long)results[i].page_id);
	}
	putchar('\n');
}

/* GPU FIRST COUNT: the tokens are the pages' numbers. */
void do_publish(void)
{
	unsigned gpu = (unsigned)number();
	uint64_t first = number();

	publish(gpu, first, NULL, number());
}

/* GPU FIRST TOKEN ... */
void do_publish_leased(void)
{
	unsigned gpu = (unsigned)number();
	uint64_t first = number(), tokens[GKSM_BATCH_MAX];

	publish(gpu, first, tokens, numbers(tokens, GKSM_BATCH_MAX));
}

/* A descriptor that is closed already. */
void do_publish_bad(void)
{
	struct gksm_publish_entry entry = {.token = 1};
	struct gksm_publish_result result;
	unsigned gpu = (unsigned)number();
	int fd = page_fd(1);

	close(fd);
	printf("%d\n",
	       gksm_link_publish(client.link, gpu, GKSM_KIND_WEIGHTS, &entry, &fd, 1, &result));
}

void do_attached(void)
{
	unsigned gpu = (unsigned)number();
	uint64_t ids[PAGES_MAX];

	gksm_link_attached(client.link, gpu, ids, numbers(ids, PAGES_MAX));
	puts("0");
}

void do_detached(void)
{
	unsigned gpu = (unsigned)number(), reason = (unsigned)number();
	uint64_t ids[PAGES_MAX];

	gksm_link_detached(client.link, gpu, reason, ids, numbers(ids, PAGES_MAX));
	puts("0");
}

/* Many DETACHED, one page each, as a COW storm makes them. */
void do_storm(void)
{
	unsigned gpu = (unsigned)number();
	unsigned long count = number();

	for (uint64_t id = 1; id <= count; id++)
		gksm_link_detached(client.link, gpu, GKSM_DETACH_COW, &id, 1);
	puts("0");
}

void do_drop(void)
{
	unsigned gpu = (unsigned)number();
	uint64_t tokens[PAGES_MAX];

	gksm_link_lease_drop(client.link, gpu, tokens, numbers(tokens, PAGES_MAX));
	puts("0");
}

static void print_segment(int result, const struct gksm_segment *segment, int fd)
{
	printf("%d %lu %lu %d\n", result, (unsigned long)segment->segment_id,
	       (unsigned long)segment->bytes, fd >= 0);
	if (fd >= 0)
		close(fd);
}

void do_segment(void)
{
	struct gksm_segment segment = {0};
	unsigned gpu = (unsigned)number(), pages = (unsigned)number();
	int fd, result = gksm_link_segment_get(client.link, gpu, pages, &segment, &fd);

	print_segment(result, &segment, fd);
}

void do_segment_open(void)
{
	struct gksm_segment segment = {0};
	unsigned gpu = (unsigned)number();
	int fd, result = gksm_link_segment_open(client.link, gpu, number(), &segment, &fd);

	print_segment(result, &segment, fd);
}

void do_seal(void)
{
	unsigned gpu = (unsigned)number();

	gksm_link_segment_seal(client.link, gpu, number());
	puts("0");
}

void do_ipc_export(void)
{
	unsigned gpu = (unsigned)number();
	struct gksm_ipc_export head = {.pages = number()};

	head.ticket[0] = (uint8_t)gpu + 1;
	printf("%d\n", gksm_link_ipc_export(client.link, gpu, &head));
}

/* Prints how many descriptors came, or the error, and what they contain. */
void do_ipc_open(void)
{
	struct gksm_ipc_open head = {.ticket = {(uint8_t)number()}, .first_page = number()};
	struct gksm_ipc_opened opened = {0};
	int fds[GKSM_FDS_MAX];
	int count = gksm_link_ipc_open(client.link, &head, &opened, fds);

	printf("%d", count);
	for (int i = 0; i < count; i++) {
		uint64_t content = 0;

		if (pread(fds[i], &content, sizeof(content), 0) != sizeof(content))
			content = UINT64_MAX;
		close(fds[i]);
		printf(" %lu", (unsigned long)content);
	}
	putchar('\n');
}

void do_ipc_pages(void)
{
	struct gksm_ipc_pages head = {.request = number()};
	int fds[GKSM_FDS_MAX];
	size_t count = number();

	for (size_t i = 0; i < count; i++)
		fds[i] = page_fd(i);
	printf("%d\n", gksm_link_ipc_pages(client.link, &head, fds, count));
	while (count)
		close(fds[--count]);
}

void do_ipc_drop(void)
{
	struct gksm_ipc_ref head = {.ticket = {(uint8_t)number()}};

	gksm_link_ipc_drop(client.link, &head);
	puts("0");
}

/* As many updates as asked for, counting up to the last. */
void do_usage(void)
{
	unsigned gpu = (unsigned)number();
	unsigned long count = number();

	for (uint64_t i = 1; i <= count; i++) {
		struct gksm_usage usage = {.gpu = 99, .virtual_pages = i};

		gksm_link_usage(client.link, gpu, &usage);
	}
	puts("0");
}

void do_report(void)
{
	unsigned long count = number();

	for (unsigned long i = 0; i < count; i++) {
		char text[1024];
		int bytes = snprintf(text, sizeof(text), "record %lu ", i);

		memset(text + bytes, '.', sizeof(text) - (size_t)bytes);
		text[sizeof(text) - 1] = '\0';
		gksm_link_report(client.link, GKSM_INFO, text);
	}
	puts("0");
}

struct hammer {
	unsigned gpu;
	unsigned long rounds;
	uint64_t base;
	unsigned long right, failed, wrong;
};

/* The peer answers with a page id equal to the hash: whoever gets another one has got
 * another thread's answer. */
static void *hammer(void *argument)
{
	struct hammer *work = argument;

	for (unsigned long round = 0; round < work->rounds; round++) {
		uint64_t id = work->base + round;
		struct gksm_hash128 hash = {.low = id, .high = ~id};
		struct gksm_usage usage = {.virtual_pages = round};
		struct gksm_lookup_reply reply;

		if (gksm_link_lookup(client.link, work->gpu, GKSM_KIND_WEIGHTS, &hash, 1, &reply)) {
			work->failed++;
			gksm_sleep_ns(1000000);
			continue;
		}
		if (reply.result.outcome == GKSM_LOOKUP_HIT && reply.result.page_id == id)
			work->right++;
		else if (reply.result.outcome != GKSM_LOOKUP_REFUSED)
			work->wrong++;
		if (reply.fd >= 0)
			close(reply.fd);
		gksm_link_attached(client.link, work->gpu, &id, 1);
		gksm_link_detached(client.link, work->gpu, GKSM_DETACH_FREE, &id, 1);
		gksm_link_usage(client.link, work->gpu, &usage);
		gksm_link_report(client.link, GKSM_DEBUG, "hammer");
	}
	return NULL;
}

void do_hammer(void)
{
	unsigned gpu = (unsigned)number();
	size_t threads = number();
	unsigned long rounds = number();
	struct hammer work[64];
	pthread_t ids[64];
	struct hammer sum = {0};

	for (size_t i = 0; i < threads && i < 64; i++) {
		work[i] = (struct hammer){.gpu = gpu, .rounds = rounds, .base = (i + 1) << 32};
		pthread_create(&ids[i], NULL, hammer, &work[i]);
	}
	for (size_t i = 0; i < threads && i < 64; i++) {
		pthread_join(ids[i], NULL);
		sum.right += work[i].right;
		sum.failed += work[i].failed;
		sum.wrong += work[i].wrong;
	}
	printf("%lu %lu %lu\n", sum.right, sum.failed, sum.wrong);
}
