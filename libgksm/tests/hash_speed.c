/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast this machine hashes, snapshots, compares and copies pages, on 1 .. n
 * threads. One JSON object a line, GB/s of pages worked on (each page counted once).
 *
 *   hash_speed THREADS PAGES ROUNDS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "hash_paths.h"
#include "sync.h"

struct work {
	struct gksm_pool *pool;
	const void **sources;
	const void **nothing; /* hash what is there already */
	void **copies;
	struct gksm_hash128 *hashes;
	bool *equal;
	size_t pages;
};

static void hash(const struct work *work)
{
	gksm_pool_snapshot(work->pool, work->nothing, work->copies, work->hashes, work->pages);
}

static void snapshot(const struct work *work)
{
	gksm_pool_snapshot(work->pool, work->sources, work->copies, work->hashes, work->pages);
}

static void compare(const struct work *work)
{
	gksm_pool_compare(work->pool, work->sources, (const void *const *)work->copies, work->equal,
			  work->pages);
}

static void copy(const struct work *work)
{
	gksm_pool_copy(work->pool, work->copies, work->sources, work->pages);
}

static const struct {
	const char *name;
	void (*run)(const struct work *work);
} kinds[] = {{"copy", copy}, {"snapshot", snapshot}, {"hash", hash}, {"compare", compare}};

static void *allocate(size_t bytes)
{
	void *memory = aligned_alloc(4096, (bytes + 4095) & ~4095ul);

	if (!memory) {
		fputs("out of memory\n", stderr);
		exit(1);
	}
	memset(memory, 0, bytes);
	return memory;
}

/* The best of the rounds: what others on the machine do only ever makes it slower. */
static double speed(const struct work *work, void (*run)(const struct work *), unsigned rounds)
{
	uint64_t best = UINT64_MAX;

	for (unsigned i = 0; i < rounds; i++) {
		uint64_t start = gksm_now_ns(), took;

		run(work);
		took = gksm_now_ns() - start;
		if (took < best)
			best = took;
	}
	return (double)(work->pages * GKSM_PAGE_SIZE) / (double)best;
}

int main(int argc, char **argv)
{
	struct work work;
	unsigned threads, rounds;
	uint8_t *from, *to;

	if (argc != 4) {
		fputs("usage: hash_speed THREADS PAGES ROUNDS\n", stderr);
		return 2;
	}
	threads = (unsigned)atoi(argv[1]);
	work.pages = (size_t)atol(argv[2]);
	rounds = (unsigned)atoi(argv[3]);
	from = allocate(work.pages * GKSM_PAGE_SIZE);
	to = allocate(work.pages * GKSM_PAGE_SIZE);
	work.sources = allocate(work.pages * sizeof(void *));
	work.nothing = allocate(work.pages * sizeof(void *));
	work.copies = allocate(work.pages * sizeof(void *));
	work.hashes = allocate(work.pages * sizeof(*work.hashes));
	work.equal = allocate(work.pages * sizeof(bool));
	for (size_t i = 0; i < work.pages * GKSM_PAGE_SIZE / 8; i++)
		((uint64_t *)from)[i] = i * 0x9E3779B97F4A7C15ull;
	for (size_t i = 0; i < work.pages; i++) {
		work.sources[i] = from + i * GKSM_PAGE_SIZE;
		work.copies[i] = to + i * GKSM_PAGE_SIZE;
	}

	for (unsigned n = 1; n <= threads; n++) {
		/* One thread is the caller alone. */
		work.pool = n > 1 ? gksm_pool_start(n) : NULL;
		if (n > 1 && !work.pool) {
			fputs("no threads\n", stderr);
			return 1;
		}
		for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
			printf("{\"threads\": %u, \"path\": \"%s\", \"what\": \"%s\", "
			       "\"gb_per_s\": %.2f}\n",
			       n, gksm_hash_path()->name, kinds[i].name,
			       speed(&work, kinds[i].run, rounds));
	}
	return 0;
}
