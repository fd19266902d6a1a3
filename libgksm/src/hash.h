/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash and compare 2 MiB pages on the host, alone or many at once.
 */
#ifndef GKSM_HASH_H
#define GKSM_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gksm/protocol.h"

/* XXH3-128, seed 0, of exactly GKSM_PAGE_SIZE bytes: equal to the xxhash package's
 * xxh3_128 (low and high 64 bits). Scalar, AVX2 or AVX-512, chosen at run time. */
struct gksm_hash128 gksm_hash_page(const void *page);

/* true: every byte of the page is 0. Cheap for pages that start otherwise. */
bool gksm_all_zero(const void *page);

struct gksm_pool;

/* A small pool of threads for copying, hashing and comparing; threads 0: as many
 * as the process may use, at most 8. NULL: no memory or no threads to be had; every
 * function below then works on the calling thread. */
struct gksm_pool *gksm_pool_start(unsigned threads);

/* For each i: copies sources[i] (GKSM_PAGE_SIZE bytes) to snapshots[i], reading
 * every source byte exactly once, and hashes the snapshot into hashes[i]. A NULL
 * source: the snapshot is there already, hash it only. */
void gksm_pool_snapshot(struct gksm_pool *pool, const void *const *sources, void *const *snapshots,
			struct gksm_hash128 *hashes, size_t count);

/* equal[i] = the two pages have the same bytes. */
void gksm_pool_compare(struct gksm_pool *pool, const void *const *left, const void *const *right,
		       bool *equal, size_t count);

/* Plain page copies, in parallel. */
void gksm_pool_copy(struct gksm_pool *pool, void *const *destinations, const void *const *sources,
		    size_t count);

#endif
