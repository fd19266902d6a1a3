/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process with a daemon link and nothing else. Reads commands, one a line, and
 * answers each with one line; see `commands` at the end. Pages are told apart by what
 * their descriptors contain: 8 bytes, the page's id.
 *
 *   link_client SOCKET
 */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "link.h"
#include "sync.h"

#define PAGES_MAX 4096
#define EVENTS_MAX 65536

struct client {
	struct gksm_link *link;
	struct gksm_mutex lock; /* of what the callbacks share with the commands */
	char events[EVENTS_MAX];
	size_t event_bytes;
	uint64_t mapped[2][PAGES_MAX]; /* by gpu: what announce tells */
	size_t mapped_count[2];
	uint64_t leaving;     /* a page that is left right after it was announced; 0: none */
	_Atomic bool jumping; /* the wall clock */
};

static struct client client;

static void note(const char *text)
{
	size_t bytes = strlen(text);

	gksm_mutex_lock(&client.lock);
	if (client.event_bytes + bytes + 2 < EVENTS_MAX) {
		memcpy(client.events + client.event_bytes, text, bytes);
		client.event_bytes += bytes;
		client.events[client.event_bytes++] = ' ';
	}
	gksm_mutex_unlock(&client.lock);
}

static void on_up(void *user, const struct gksm_welcome *welcome)
{
	char text[128];

	(void)user;
	snprintf(text, sizeof(text), "up:%s", welcome->domain);
	note(text);
}

static void on_down(void *user)
{
	(void)user;
	note("down");
}

static void on_control(void *user, const struct gksm_control *control)
{
	char text[192];

	(void)user;
	snprintf(text, sizeof(text), "control:%u:%s", control->action, control->reason);
	note(text);
}

static void on_gpu_opened(void *user, unsigned gpu, const struct gksm_gpu_opened *opened)
{
	char text[64];

	(void)user;
	snprintf(text, sizeof(text), "opened:%u:%u", gpu, opened->gpu);
	note(text);
}

static size_t on_announce(void *user, unsigned gpu, size_t *cursor, struct gksm_page_entry *entries,
			  size_t capacity)
{
	size_t count = 0;
	uint64_t leaving;

	(void)user;
	gksm_mutex_lock(&client.lock);
	leaving = client.leaving;
	client.leaving = 0;
	while (*cursor < client.mapped_count[gpu] && count < capacity) {
		uint64_t id = client.mapped[gpu][(*cursor)++];

		entries[count++] = (struct gksm_page_entry){
			.page_id = id, .hash = {.low = id, .high = ~id}, .mappings = 1};
	}
	gksm_mutex_unlock(&client.lock);
	if (leaving)
		gksm_link_detached(client.link, gpu, GKSM_DETACH_COW, &leaving, 1);
	return count;
}

static const struct gksm_link_events events = {
	.up = on_up,
	.down = on_down,
	.control = on_control,
	.gpu_opened = on_gpu_opened,
	.announce = on_announce,
};

static unsigned long number(void)
{
	const char *word = strtok(NULL, " \n");

	return word ? strtoul(word, NULL, 0) : 0;
}

static size_t numbers(uint64_t *into, size_t capacity)
{
	const char *word;
	size_t count = 0;

	while (count < capacity && (word = strtok(NULL, " \n")))
		into[count++] = strtoull(word, NULL, 0);
	return count;
}

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

static void do_wait(void)
{
	struct gksm_welcome welcome = {0};
	int result = gksm_link_wait(client.link, (int)number(), &welcome);

	printf("%d %s\n", result, welcome.domain);
}

static void do_up(void)
{
	printf("%d\n", gksm_link_is_up(client.link));
}

static void do_events(void)
{
	gksm_mutex_lock(&client.lock);
	printf("%.*s\n", (int)client.event_bytes, client.events);
	client.event_bytes = 0;
	gksm_mutex_unlock(&client.lock);
}

static void do_open(void)
{
	unsigned gpu = (unsigned)number();
	struct gksm_gpu_open open = {.total_bytes = 1u << 30, .arena_pages = PAGES_MAX};
	struct gksm_gpu_opened opened = {0};
	int result;

	open.uuid[0] = (uint8_t)(gpu + 1);
	result = gksm_link_gpu_open(client.link, gpu, &open, &opened);
	printf("%d %u %u\n", result, opened.gpu, opened.load_wait_ms);
}

static void do_commit(void)
{
	unsigned gpu = (unsigned)number();

	printf("%d\n", gksm_link_commit(client.link, gpu, number(), 1u << 30));
}

static void do_lookup(void)
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

static void do_tickets(void)
{
	static struct gksm_lookup_reply replies[GKSM_BATCH_MAX];
	unsigned gpu = (unsigned)number(), timeout = (unsigned)number();
	uint64_t tickets[GKSM_BATCH_MAX];
	size_t count = numbers(tickets, GKSM_BATCH_MAX);
	int result = gksm_link_wait_tickets(client.link, gpu, tickets, count, timeout, replies);

	printf("%d", result);
	print_replies(replies, result ? 0 : count);
}

static void do_publish(void)
{
	static struct gksm_publish_entry entries[PAGES_MAX];
	static struct gksm_publish_result results[PAGES_MAX];
	static int fds[PAGES_MAX];
	unsigned gpu = (unsigned)number();
	uint64_t first = number();
	size_t count = number();
	int result;

	for (size_t i = 0; i < count; i++) {
		entries[i] = (struct gksm_publish_entry){.token = first + i};
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

/* A descriptor that is closed already. */
static void do_publish_bad(void)
{
	struct gksm_publish_entry entry = {.token = 1};
	struct gksm_publish_result result;
	unsigned gpu = (unsigned)number();
	int fd = page_fd(1);

	close(fd);
	printf("%d\n",
	       gksm_link_publish(client.link, gpu, GKSM_KIND_WEIGHTS, &entry, &fd, 1, &result));
}

static void do_attached(void)
{
	unsigned gpu = (unsigned)number();
	uint64_t ids[PAGES_MAX];

	gksm_link_attached(client.link, gpu, ids, numbers(ids, PAGES_MAX));
	puts("0");
}

static void do_detached(void)
{
	unsigned gpu = (unsigned)number(), reason = (unsigned)number();
	uint64_t ids[PAGES_MAX];

	gksm_link_detached(client.link, gpu, reason, ids, numbers(ids, PAGES_MAX));
	puts("0");
}

/* Many DETACHED, one page each, as a COW storm makes them. */
static void do_storm(void)
{
	unsigned gpu = (unsigned)number();
	unsigned long count = number();

	for (uint64_t id = 1; id <= count; id++)
		gksm_link_detached(client.link, gpu, GKSM_DETACH_COW, &id, 1);
	puts("0");
}

static void do_drop(void)
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

static void do_segment(void)
{
	struct gksm_segment segment = {0};
	unsigned gpu = (unsigned)number(), pages = (unsigned)number();
	int fd, result = gksm_link_segment_get(client.link, gpu, pages, &segment, &fd);

	print_segment(result, &segment, fd);
}

static void do_segment_open(void)
{
	struct gksm_segment segment = {0};
	unsigned gpu = (unsigned)number();
	int fd, result = gksm_link_segment_open(client.link, gpu, number(), &segment, &fd);

	print_segment(result, &segment, fd);
}

static void do_seal(void)
{
	unsigned gpu = (unsigned)number();

	gksm_link_segment_seal(client.link, gpu, number());
	puts("0");
}

/* As many updates as asked for, counting up to the last. */
static void do_usage(void)
{
	unsigned gpu = (unsigned)number();
	unsigned long count = number();

	for (uint64_t i = 1; i <= count; i++) {
		struct gksm_usage usage = {.gpu = 99, .virtual_pages = i};

		gksm_link_usage(client.link, gpu, &usage);
	}
	puts("0");
}

static void do_report(void)
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

static void map(size_t times)
{
	unsigned gpu = (unsigned)number();
	uint64_t first = number();
	size_t count = number();

	gksm_mutex_lock(&client.lock);
	for (size_t i = 0; i < count * times; i++)
		client.mapped[gpu][i] = first + i % count;
	client.mapped_count[gpu] = count * times;
	gksm_mutex_unlock(&client.lock);
	puts("0");
}

/* GPU FIRST COUNT: announce has these. */
static void do_map(void)
{
	map(1);
}

/* The same, each page at two addresses. */
static void do_map_twice(void)
{
	map(2);
}

static void do_leave(void)
{
	gksm_mutex_lock(&client.lock);
	client.leaving = number();
	gksm_mutex_unlock(&client.lock);
	puts("0");
}

/* The C library's, replaced: an administrator or NTP may set the wall clock. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	static _Atomic int step;
	int result = (int)syscall(SYS_clock_gettime, clock, now);

	if (clock == CLOCK_REALTIME && client.jumping)
		now->tv_sec += 86400 * (step++ % 2 ? 1000 : -1000);
	return result;
}

static void do_jump(void)
{
	client.jumping = true;
	puts("0");
}

static void do_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	printf("%d\n", count);
}

static void do_limit(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = number();
	printf("%d\n", setrlimit(RLIMIT_NOFILE, &limit));
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

static void do_hammer(void)
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

static const struct {
	const char *name;
	void (*run)(void);
} commands[] = {
	{"wait", do_wait},
	{"up", do_up},
	{"events", do_events},
	{"open", do_open},
	{"commit", do_commit},
	{"lookup", do_lookup},
	{"tickets", do_tickets},
	{"publish", do_publish},
	{"attached", do_attached},
	{"detached", do_detached},
	{"storm", do_storm},
	{"drop", do_drop},
	{"segment", do_segment},
	{"segment-open", do_segment_open},
	{"seal", do_seal},
	{"usage", do_usage},
	{"report", do_report},
	{"map", do_map},
	{"map-twice", do_map_twice},
	{"fds", do_fds},
	{"limit", do_limit},
	{"hammer", do_hammer},
	{"publish-bad", do_publish_bad},
	{"leave", do_leave},
	{"jump", do_jump},
};

static void run(char *line)
{
	const char *name = strtok(line, " \n");

	for (size_t i = 0; name && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, name) == 0) {
			commands[i].run();
			return;
		}
	}
	puts("what?");
}

int main(int argc, char **argv)
{
	struct gksm_hello hello = {.protocol_min = GKSM_PROTOCOL_MIN,
				   .protocol_max = GKSM_PROTOCOL_MAX,
				   .features = GKSM_FEATURE_COMMIT,
				   .guards = 1u << GKSM_GUARD_FAULT,
				   .build_id = "link_client",
				   .framework = "test"};
	static char line[1 << 16];

	if (argc != 2) {
		fputs("usage: link_client SOCKET\n", stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	client.link = gksm_link_start(argv[1], &hello, &events, &client);
	if (!client.link) {
		fputs("no link\n", stderr);
		return 1;
	}
	while (fgets(line, sizeof(line), stdin)) {
		run(line);
		fflush(stdout);
	}
	return 0;
}
