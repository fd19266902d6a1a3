/* SPDX-License-Identifier: Apache-2.0 */
#include "driver_path.h"

#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#define LIBRARY "libcuda.so.1"
#define CACHE "/etc/ld.so.cache"

/* The loader's cache: glibc's elf/cache.c. Before 2.32 the new format stands behind
 * the old one in the same file. */
#define OLD_MAGIC "ld.so-1.7.0"
#define NEW_MAGIC "glibc-ld.so.cache1.1"
#define CACHE_X86_64 0x0300u /* of flags: which ABI */
#define CACHE_ABI_MASK 0xff00u

struct old_head {
	char magic[sizeof(OLD_MAGIC) - 1];
	uint32_t libraries;
};

struct new_head {
	char magic[sizeof(NEW_MAGIC) - 1];
	uint32_t libraries;
	uint32_t string_bytes;
	uint8_t flags;
	uint8_t reserved[3];
	uint32_t extension_offset;
	uint32_t unused[3];
};

struct new_entry {
	int32_t flags;
	uint32_t name; /* offsets from new_head */
	uint32_t path;
	uint32_t os_version;
	uint64_t hwcap;
};

struct search {
	bool (*try_path)(const char *path, void *user);
	void *user;
};

static bool try_in_directory(const struct search *search, const char *directory, size_t length)
{
	char path[GKSM_PATH_MAX];

	if (length == 0 || length + sizeof("/" LIBRARY) > sizeof(path))
		return false;
	snprintf(path, sizeof(path), "%.*s/" LIBRARY, (int)length, directory);
	return access(path, R_OK) == 0 && search->try_path(path, search->user);
}

static bool try_library_path(const struct search *search, const char *list)
{
	while (*list) {
		size_t length = strcspn(list, ":;");

		if (try_in_directory(search, list, length))
			return true;
		list += length;
		list += *list != '\0';
	}
	return false;
}

/* A string of the cache that is known to end inside it; NULL: damaged. */
static const char *cache_string(const char *head, size_t bytes, uint32_t offset)
{
	if (offset >= bytes || !memchr(head + offset, '\0', bytes - offset))
		return NULL;
	return head + offset;
}

static bool try_cache_entries(const struct search *search, const char *file, size_t bytes)
{
	const struct new_head *head = (const struct new_head *)file;
	const struct new_entry *entries = (const struct new_entry *)(head + 1);

	if (bytes < sizeof(*head) || memcmp(head->magic, NEW_MAGIC, sizeof(head->magic)) != 0 ||
	    head->libraries > (bytes - sizeof(*head)) / sizeof(*entries))
		return false;
	for (uint32_t i = 0; i < head->libraries; i++) {
		const char *name = cache_string(file, bytes, entries[i].name);
		const char *path = cache_string(file, bytes, entries[i].path);

		if (name && path && ((uint32_t)entries[i].flags & CACHE_ABI_MASK) == CACHE_X86_64 &&
		    strcmp(name, LIBRARY) == 0 && access(path, R_OK) == 0 &&
		    search->try_path(path, search->user))
			return true;
	}
	return false;
}

static bool try_cache(const struct search *search)
{
	int fd = open(CACHE, O_RDONLY | O_CLOEXEC);
	bool found = false;
	off_t bytes;
	char *file;

	if (fd < 0)
		return false;
	bytes = lseek(fd, 0, SEEK_END);
	file = bytes > 0 ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
	close(fd);
	if (file == MAP_FAILED)
		return false;
	if ((size_t)bytes > sizeof(struct old_head) &&
	    memcmp(file, OLD_MAGIC, sizeof(OLD_MAGIC) - 1) == 0) {
		const struct old_head *old = (const struct old_head *)file;
		/* each old entry: flags, name, path */
		uint64_t skip = sizeof(*old) + (uint64_t)old->libraries * 12;

		skip = (skip + _Alignof(struct new_entry) - 1) & ~(_Alignof(struct new_entry) - 1);
		if (skip < (uint64_t)bytes)
			found = try_cache_entries(search, file + skip, (size_t)bytes - skip);
	} else {
		found = try_cache_entries(search, file, (size_t)bytes);
	}
	munmap(file, (size_t)bytes);
	return found;
}

void gksm_driver_candidates(bool (*try_path)(const char *path, void *user), void *user)
{
	static const char *const directories[] = {
		"/lib/x86_64-linux-gnu",
		"/usr/lib/x86_64-linux-gnu",
		"/lib64",
		"/usr/lib64",
		"/lib",
		"/usr/lib",
	};
	const struct search search = {.try_path = try_path, .user = user};
	bool trusted = getauxval(AT_SECURE) == 0;
	const char *named = trusted ? getenv("GKSM_DRIVER") : NULL;
	const char *library_path = trusted ? getenv("LD_LIBRARY_PATH") : NULL;

	if (named && *named) {
		try_path(named, user);
		return;
	}
	if (library_path && try_library_path(&search, library_path))
		return;
	if (try_cache(&search))
		return;
	for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++)
		if (try_in_directory(&search, directories[i], strlen(directories[i])))
			return;
}
