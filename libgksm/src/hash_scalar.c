/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3's accumulation in plain C.
 */
#include <string.h>

#include "hash_paths.h"

static inline uint64_t load64(const uint8_t *from)
{
	uint64_t value;

	memcpy(&value, from, sizeof(value));
	return value;
}

static inline void stripe(uint64_t acc[8], const uint8_t *input, const uint8_t *secret,
			  uint8_t *copy)
{
	for (size_t i = 0; i < 8; i++) {
		uint64_t data = load64(input + 8 * i);
		uint64_t key;

		/* Opaque from here on, so that no compiler loads it a second time. */
		__asm__("" : "+r"(data));
		if (copy)
			memcpy(copy + 8 * i, &data, sizeof(data));
		key = data ^ load64(secret + 8 * i);
		acc[i ^ 1] += data;
		acc[i] += (key & 0xffffffffu) * (key >> 32);
	}
}

static inline void scramble(uint64_t acc[8])
{
	for (size_t i = 0; i < 8; i++) {
		acc[i] ^= acc[i] >> 47;
		acc[i] ^= load64(gksm_xxh3_secret + GKSM_XXH3_SCRAMBLE + 8 * i);
		acc[i] *= GKSM_XXH3_PRIME32_1;
	}
}

static inline __attribute__((always_inline)) void run(uint64_t acc[8], const uint8_t *page,
						      uint8_t *copy, bool copying)
{
	for (size_t block = 0; block < GKSM_XXH3_BLOCKS; block++) {
		bool last = block == GKSM_XXH3_BLOCKS - 1;

		for (size_t i = 0; i < GKSM_XXH3_STRIPES; i++) {
			size_t at = block * GKSM_XXH3_BLOCK + i * GKSM_XXH3_STRIPE;
			size_t key = last && i == GKSM_XXH3_STRIPES - 1 ? GKSM_XXH3_LAST : 8 * i;

			stripe(acc, page + at, gksm_xxh3_secret + key, copying ? copy + at : NULL);
		}
		if (!last)
			scramble(acc);
	}
}

static void scalar_page(uint64_t acc[8], const uint8_t *page, uint8_t *copy)
{
	if (copy)
		run(acc, page, copy, true);
	else
		run(acc, page, NULL, false);
}

static bool always(void)
{
	return true;
}

const struct gksm_hash_path gksm_hash_scalar = {"scalar", always, scalar_page};
