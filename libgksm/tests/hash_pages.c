/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the hash of every page of a file, high half first.
 *
 *   hash_pages PATH FILE          by one inner loop: scalar, avx2 or avx512
 *   hash_pages pool THREADS CALLERS FILE
 *                                 by as many callers at once through one pool
 *   hash_pages changing ROUNDS    while another thread writes to the page: each hash
 *                                 must be that of its snapshot
 *
 * Exit status 77: this processor does not have the instructions.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <pthread.h>
#include <unistd.h>

#include "hash.h"
#include "hash_paths.h"

struct pages {
	const uint8_t *bytes;
	size_t count;
};

struct caller {
	struct gksm_pool *pool;
	struct pages pages;
	struct gksm_hash128 *hashes;
	bool copies_equal;
};

static struct pages open_pages(const char *path)
{
	struct pages pages = {0};
	struct stat info;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &info) < 0) {
		perror(path);
		exit(1);
	}
	pages.count = (size_t)info.st_size / GKSM_PAGE_SIZE;
	pages.bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (pages.bytes == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	return pages;
}

static void *allocate(size_t bytes)
{
	void *memory = aligned_alloc(64, (bytes + 63) & ~63ul);

	if (!memory) {
		fputs("out of memory\n", stderr);
		exit(1);
	}
	return memory;
}

static void print(struct gksm_hash128 hash)
{
	printf("%016lx%016lx\n", (unsigned long)hash.high, (unsigned long)hash.low);
}

static bool same(struct gksm_hash128 a, struct gksm_hash128 b)
{
	return a.low == b.low && a.high == b.high;
}

static int by_path(const char *name, const char *file)
{
	struct pages pages = open_pages(file);
	/* One byte off: sources and snapshots need no alignment. */
	uint8_t *memory = allocate(GKSM_PAGE_SIZE + 64), *copy = memory + 1;

	const struct gksm_hash_path *path = NULL;
	int result = 0;

	for (size_t i = 0; i < gksm_hash_path_count; i++)
		if (strcmp(gksm_hash_paths[i]->name, name) == 0)
			path = gksm_hash_paths[i];
	if (!path) {
		fprintf(stderr, "no inner loop is called %s\n", name);
		result = 1;
	} else if (!path->supported()) {
		result = 77;
	}
	for (size_t page = 0; page < pages.count && !result; page++) {
		const uint8_t *bytes = pages.bytes + page * GKSM_PAGE_SIZE;
		struct gksm_hash128 hash = gksm_hash_by(path, bytes, NULL);

		memset(copy, 0x5a, GKSM_PAGE_SIZE);
		if (!same(hash, gksm_hash_by(path, bytes, copy)) ||
		    memcmp(copy, bytes, GKSM_PAGE_SIZE) != 0 ||
		    !same(hash, gksm_hash_by(path, copy, NULL))) {
			fprintf(stderr, "page %zu: the snapshot differs\n", page);
			result = 1;
		}
		print(hash);
	}
	free(memory);
	return result;
}

static void *call_pool(void *argument)
{
	struct caller *caller = argument;
	size_t count = caller->pages.count;
	const void **sources = allocate(count * sizeof(*sources));
	void **copies = allocate(count * sizeof(*copies));
	bool *equal = allocate(count * sizeof(*equal));
	struct gksm_hash128 *again = allocate(count * sizeof(*again));

	for (size_t i = 0; i < count; i++) {
		sources[i] = caller->pages.bytes + i * GKSM_PAGE_SIZE;
		copies[i] = allocate(GKSM_PAGE_SIZE);
	}
	gksm_pool_snapshot(caller->pool, sources, copies, caller->hashes, count);
	gksm_pool_compare(caller->pool, sources, (const void *const *)copies, equal, count);
	caller->copies_equal = true;
	for (size_t i = 0; i < count; i++) {
		caller->copies_equal &= equal[i];
		((uint8_t *)copies[i])[i] ^= 1;
	}
	/* One flipped bit must be seen, and copied pages be whole again. */
	gksm_pool_compare(caller->pool, sources, (const void *const *)copies, equal, count);
	for (size_t i = 0; i < count; i++)
		caller->copies_equal &= !equal[i];
	gksm_pool_copy(caller->pool, copies, sources, count);
	for (size_t i = 0; i < count; i++)
		sources[i] = NULL;
	gksm_pool_snapshot(caller->pool, sources, copies, again, count);
	for (size_t i = 0; i < count; i++) {
		caller->copies_equal &= same(again[i], caller->hashes[i]);
		free(copies[i]);
	}
	free(sources);
	free(copies);
	free(equal);
	free(again);
	return NULL;
}

static int by_pool(unsigned threads, unsigned count, const char *file)
{
	struct pages pages = open_pages(file);
	/* For the life of the process, like libgksm's. */
	static struct gksm_pool *pool;
	struct caller *callers = allocate(count * sizeof(*callers));
	pthread_t *ids = allocate(count * sizeof(*ids));
	int result = 0;

	pool = gksm_pool_start(threads);
	for (unsigned i = 0; i < count; i++) {
		callers[i] = (struct caller){
			.pool = pool,
			.pages = pages,
			.hashes = allocate(pages.count * sizeof(struct gksm_hash128))};
		pthread_create(&ids[i], NULL, call_pool, &callers[i]);
	}
	for (unsigned i = 0; i < count; i++)
		pthread_join(ids[i], NULL);
	for (unsigned i = 0; i < count; i++)
		if (!callers[i].copies_equal || memcmp(callers[i].hashes, callers[0].hashes,
						       pages.count * sizeof(*callers[0].hashes))) {
			fprintf(stderr, "caller %u found a page changed\n", i);
			result = 1;
		}
	for (size_t page = 0; page < pages.count; page++)
		print(callers[0].hashes[page]);
	for (unsigned i = 0; i < count; i++)
		free(callers[i].hashes);
	free(callers);
	free(ids);
	return result;
}

static _Atomic bool writing = true;

/* Races with the snapshot on purpose: this is what an application may do. */
__attribute__((no_sanitize("thread"))) static void *scribble(void *argument)
{
	volatile uint64_t *page = argument;

	for (uint64_t round = 1; writing; round++)
		for (size_t i = 0; i < GKSM_PAGE_SIZE / sizeof(*page); i += 97)
			page[i] = round * i;
	return NULL;
}

static int while_changing(unsigned rounds)
{
	uint8_t *page = allocate(GKSM_PAGE_SIZE), *copy = allocate(GKSM_PAGE_SIZE);
	const void *source = page;
	void *snapshot = copy;
	unsigned torn = 0;
	pthread_t writer;

	memset(page, 0, GKSM_PAGE_SIZE);
	pthread_create(&writer, NULL, scribble, page);
	for (unsigned i = 0; i < rounds; i++) {
		struct gksm_hash128 hash;

		gksm_pool_snapshot(NULL, &source, &snapshot, &hash, 1);
		torn += !same(hash, gksm_hash_page(snapshot));
	}
	writing = false;
	pthread_join(writer, NULL);
	free(page);
	free(copy);
	printf("%u\n", torn);
	return torn != 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "pool") == 0)
		return by_pool((unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]), argv[4]);
	if (argc == 3 && strcmp(argv[1], "changing") == 0)
		return while_changing((unsigned)atoi(argv[2]));
	if (argc == 3)
		return by_path(argv[1], argv[2]);
	fputs("usage: hash_pages PATH FILE | pool THREADS CALLERS FILE | changing ROUNDS\n",
	      stderr);
	return 2;
}
