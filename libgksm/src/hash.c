/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3-128 (seed 0, default secret) of one 2 MiB page. A page is a whole number of
 * blocks, so the long form needs none of the general one's tails: the last stripe
 * is the last block's sixteenth, under a secret of its own and without a scramble.
 */
#include "hash.h"

#include <stdatomic.h>
#include <string.h>

#include "hash_paths.h"

#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME64_2 0xC2B2AE3D27D4EB4Full
#define PRIME64_3 0x165667B19E3779F9ull
#define PRIME64_4 0x85EBCA77C2B2AE63ull
#define PRIME64_5 0x27D4EB2F165667C5ull
#define AVALANCHE 0x165667919E3779F9ull

#define MERGE_START 11 /* where in the secret the final merges begin, from either end */

/* The default secret of the XXH3 specification. */
_Alignas(64) const uint8_t gksm_xxh3_secret[GKSM_XXH3_SECRET] = {
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad,
	0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3,
	0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc,
	0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
	0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65,
	0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
	0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9,
	0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
	0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb,
	0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0,
	0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d,
	0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
	0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

const struct gksm_hash_path *const gksm_hash_paths[] = {
#ifdef __x86_64__
	&gksm_hash_avx512,
	&gksm_hash_avx2,
#endif
	&gksm_hash_scalar,
};
const size_t gksm_hash_path_count = sizeof(gksm_hash_paths) / sizeof(gksm_hash_paths[0]);

const struct gksm_hash_path *gksm_hash_path(void)
{
	/* Threads that come here together find the same one; asking costs a CPUID. */
	static _Atomic(const struct gksm_hash_path *) chosen;
	const struct gksm_hash_path *path = atomic_load_explicit(&chosen, memory_order_relaxed);

	for (size_t i = 0; !path; i++)
		if (gksm_hash_paths[i]->supported())
			path = gksm_hash_paths[i];
	atomic_store_explicit(&chosen, path, memory_order_relaxed);
	return path;
}

static uint64_t secret64(size_t offset)
{
	uint64_t value;

	memcpy(&value, gksm_xxh3_secret + offset, sizeof(value));
	return value;
}

static uint64_t merge(const uint64_t acc[8], size_t offset, uint64_t start)
{
	uint64_t hash = start;

	for (size_t i = 0; i < 8; i += 2) {
		unsigned __int128 product = (unsigned __int128)(acc[i] ^ secret64(offset + 8 * i)) *
					    (acc[i + 1] ^ secret64(offset + 8 * i + 8));

		hash += (uint64_t)product ^ (uint64_t)(product >> 64);
	}
	hash ^= hash >> 37;
	hash *= AVALANCHE;
	return hash ^ (hash >> 32);
}

struct gksm_hash128 gksm_hash_by(const struct gksm_hash_path *path, const void *page, void *copy)
{
	_Alignas(64) uint64_t acc[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
					PRIME64_4, PRIME32_2, PRIME64_5, GKSM_XXH3_PRIME32_1};
	struct gksm_hash128 hash;

	path->page(acc, page, copy);
	hash.low = merge(acc, MERGE_START, GKSM_PAGE_SIZE * PRIME64_1);
	hash.high = merge(acc, GKSM_XXH3_SECRET - GKSM_XXH3_STRIPE - MERGE_START,
			  ~(GKSM_PAGE_SIZE * PRIME64_2));
	return hash;
}

struct gksm_hash128 gksm_hash_page(const void *page)
{
	return gksm_hash_by(gksm_hash_path(), page, NULL);
}

bool gksm_all_zero(const void *page)
{
	const char *bytes = page;

	return !bytes[0] && memcmp(bytes, bytes + 1, GKSM_PAGE_SIZE - 1) == 0;
}
