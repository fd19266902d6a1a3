/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops of the page hash, one for each instruction set.
 */
#ifndef GKSM_HASH_PATHS_H
#define GKSM_HASH_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gksm/protocol.h"

#define GKSM_XXH3_STRIPE 64u
#define GKSM_XXH3_STRIPES 16u /* in one block: (secret - stripe) / 8 */
#define GKSM_XXH3_BLOCK (GKSM_XXH3_STRIPE * GKSM_XXH3_STRIPES)
#define GKSM_XXH3_BLOCKS (GKSM_PAGE_SIZE / GKSM_XXH3_BLOCK)
#define GKSM_XXH3_SECRET 192u
#define GKSM_XXH3_SCRAMBLE (GKSM_XXH3_SECRET - GKSM_XXH3_STRIPE)
#define GKSM_XXH3_LAST (GKSM_XXH3_SECRET - GKSM_XXH3_STRIPE - 7u) /* secret of the last stripe */
#define GKSM_XXH3_PRIME32_1 0x9E3779B1u

/* Inputs come from DRAM; four stripes ahead of the hardware's own stream. */
#define GKSM_XXH3_PREFETCH 512u

extern const uint8_t gksm_xxh3_secret[GKSM_XXH3_SECRET];

struct gksm_hash_path {
	const char *name;
	bool (*supported)(void);
	/*
	 * Runs one page through the eight accumulators. copy not NULL: every vector that
	 * was loaded is also stored there; the hash is of the registers, so copy and hash
	 * agree whatever happens to the page meanwhile. Each byte is loaded once.
	 */
	void (*page)(uint64_t acc[8], const uint8_t *page, uint8_t *copy);
};

/* Best first; the last one runs anywhere. */
extern const struct gksm_hash_path gksm_hash_avx512;
extern const struct gksm_hash_path gksm_hash_avx2;
extern const struct gksm_hash_path gksm_hash_scalar;
extern const struct gksm_hash_path *const gksm_hash_paths[];
extern const size_t gksm_hash_path_count;

/* The first supported one. */
const struct gksm_hash_path *gksm_hash_path(void);

/* Hash of the page by the given path; copy as above. */
struct gksm_hash128 gksm_hash_by(const struct gksm_hash_path *path, const void *page, void *copy);

#endif
