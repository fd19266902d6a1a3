/* SPDX-License-Identifier: Apache-2.0 */
#include "rivals.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libc_symbols.h"
#include "wrap.h"

#define PRELOAD_FILE "/etc/ld.so.preload"

struct search {
	char listed[4096]; /* names from the preload lists, separated as they were */
	void *driver_init;
	bool past_self;
	char *path;
	size_t bytes;
};

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static bool is_listed(const char *list, const char *path)
{
	const char *name = base_name(path);
	size_t name_length = strlen(name);

	for (;;) {
		const char *item, *slash;
		size_t length;

		list += strspn(list, " :\t\n");
		length = strcspn(list, " :\t\n");
		if (length == 0)
			return false;
		item = list;
		list += length;
		slash = memrchr(item, '/', length);
		if (slash) {
			length -= (size_t)(slash + 1 - item);
			item = slash + 1;
		}
		if (length == name_length && memcmp(item, name, length) == 0)
			return true;
	}
}

static bool visit(const struct gksm_object *object, void *user)
{
	struct search *search = user;
	void *init;

	/* The program itself comes first and is no preloaded library. */
	if (object->path[0] == '\0')
		return false;
	init = gksm_object_function(object, "cuInit");
	if (!init || init == search->driver_init)
		return false;
	if (init == (void *)cuInit) {
		search->past_self = true;
		return false;
	}
	/* Only preloaded libraries come before one; the lists tell of those behind. */
	if (search->past_self && !is_listed(search->listed, object->path))
		return false;
	snprintf(search->path, search->bytes, "%s", object->path);
	return true;
}

static void read_lists(char *list, size_t bytes)
{
	const char *variable = getenv("LD_PRELOAD");
	int fd = open(PRELOAD_FILE, O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t got;

	if (fd >= 0) {
		got = read(fd, list, bytes / 2);
		used = got > 0 ? (size_t)got : 0;
		close(fd);
	}
	snprintf(list + used, bytes - used, " %s", variable ? variable : "");
}

bool gksm_rival_find(char *path, size_t bytes)
{
	const struct gksm_driver *driver = gksm_driver();
	struct search search = {.path = path, .bytes = bytes};

	search.driver_init = driver ? (void *)driver->cuInit : NULL;
	path[0] = '\0';
	read_lists(search.listed, sizeof(search.listed));
	gksm_objects_each(visit, &search);
	return path[0] != '\0';
}
