/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process with a daemon link and nothing else. Reads commands, one a line, and
 * answers each with one line; see `commands` at the end. Pages are told apart by what
 * their descriptors contain: 8 bytes, the page's id.
 *
 *   link_client SOCKET
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fork.h"
#include "link_client.h"

struct client client;

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
	if (control->action == GKSM_CONTROL_PRESSURE)
		snprintf(text, sizeof(text), "pressure:%u:%u:%llu", control->level, control->gpu,
			 (unsigned long long)control->pages);
	else
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

static void on_ipc_wanted(void *user, const struct gksm_ipc_wanted *wanted)
{
	char text[64];

	(void)user;
	snprintf(text, sizeof(text), "wanted:%u", wanted->count);
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
	while (*cursor < client.mapped_count[gpu] && count < capacity)
		entries[count++] = client.mapped[gpu][(*cursor)++];
	gksm_mutex_unlock(&client.lock);
	if (leaving)
		gksm_link_detached(client.link, gpu, GKSM_DETACH_COW, &leaving, 1);
	return count;
}

static void on_turned_away(void *user, const char *reason)
{
	char text[160];

	(void)user;
	snprintf(text, sizeof(text), "away:%s", reason);
	note(text);
}

static const struct gksm_link_events events = {
	.up = on_up,
	.down = on_down,
	.control = on_control,
	.ipc_wanted = on_ipc_wanted,
	.gpu_opened = on_gpu_opened,
	.announce = on_announce,
	.turned_away = on_turned_away,
};

unsigned long number(void)
{
	const char *word = strtok(NULL, " \n");

	return word ? strtoul(word, NULL, 0) : 0;
}

size_t numbers(uint64_t *into, size_t capacity)
{
	const char *word;
	size_t count = 0;

	while (count < capacity && (word = strtok(NULL, " \n")))
		into[count++] = strtoull(word, NULL, 0);
	return count;
}

static struct gksm_page_entry mapping(uint64_t page_id, uint64_t hash)
{
	return (struct gksm_page_entry){
		.page_id = page_id, .hash = {.low = hash, .high = ~hash}, .mappings = 1};
}

static void map(size_t times)
{
	unsigned gpu = (unsigned)number();
	uint64_t first = number();
	size_t count = number();

	gksm_mutex_lock(&client.lock);
	for (size_t i = 0; i < count * times; i++)
		client.mapped[gpu][i] = mapping(first + i % count, first + i % count);
	client.mapped_count[gpu] = count * times;
	gksm_mutex_unlock(&client.lock);
	puts("0");
}

/* GPU FIRST COUNT: announce has these. */
static void do_map(void)
{
	map(1);
}

/* GPU FIRST ID ...: pages with the hashes of FIRST and so on. */
static void do_map_ids(void)
{
	unsigned gpu = (unsigned)number();
	uint64_t first = number(), ids[GKSM_BATCH_MAX];
	size_t count = numbers(ids, GKSM_BATCH_MAX);

	gksm_mutex_lock(&client.lock);
	for (size_t i = 0; i < count; i++)
		client.mapped[gpu][i] = mapping(ids[i], first + i);
	client.mapped_count[gpu] = count;
	gksm_mutex_unlock(&client.lock);
	puts("0");
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

/* A child that only sleeps: what the other end notices of its parent's death depends on
 * what it has kept. Prints its pid and how many of its descriptors are ours. */
static void do_fork(void)
{
	char link[64], target[64];
	int kept = 0, ends[2];
	pid_t child;

	if (pipe(ends) < 0)
		exit(1);
	child = fork();
	if (child == 0) {
		for (int fd = 3; fd < 256; fd++) {
			ssize_t bytes;

			snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
			bytes = readlink(link, target, sizeof(target) - 1);
			target[bytes > 0 ? bytes : 0] = '\0';
			kept += strstr(target, "socket:") || strstr(target, "eventfd");
		}
		if (write(ends[1], &kept, sizeof(kept)) < 0)
			_exit(1);
		/* The test must not wait for this end of its pipe. */
		for (int fd = 0; fd < 256; fd++)
			if (fd != ends[1])
				close(fd);
		sleep(60);
		_exit(0);
	}
	close(ends[1]);
	if (read(ends[0], &kept, sizeof(kept)) != sizeof(kept))
		kept = -1;
	close(ends[0]);
	printf("%d %d\n", (int)child, kept);
}

/* As programs do that become daemons late. */
static void do_close_all(void)
{
	for (int fd = 3; fd < 256; fd++)
		close(fd);
	puts("0");
}

/* The link's own descriptors are an eventfd and a socket: this takes the first alone. */
static void do_close_events(void)
{
	for (int fd = 3; fd < 256; fd++) {
		char path[32], what[64] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, what, sizeof(what) - 1) > 0 && strstr(what, "[eventfd]"))
			close(fd);
	}
	puts("0");
}

static void do_limit(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = number();
	printf("%d\n", setrlimit(RLIMIT_NOFILE, &limit));
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
	{"ipc-export", do_ipc_export},
	{"ipc-open", do_ipc_open},
	{"ipc-pages", do_ipc_pages},
	{"ipc-drop", do_ipc_drop},
	{"held", do_held},
	{"reclaim", do_reclaim},
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
	{"fork", do_fork},
	{"close-all", do_close_all},
	{"close-events", do_close_events},
	{"publish-leased", do_publish_leased},
	{"map-ids", do_map_ids},
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
	gksm_fork_watch();
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
