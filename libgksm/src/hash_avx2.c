/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3's accumulation with AVX2: a stripe is two vectors.
 */
#include "hash_paths.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

static inline AVX2 __attribute__((always_inline)) __m256i load(const uint8_t *from)
{
	return _mm256_loadu_si256((const __m256i_u *)from);
}

static inline AVX2 __attribute__((always_inline)) __m256i accumulate(__m256i acc,
								     const uint8_t *input,
								     const uint8_t *secret,
								     uint8_t *copy)
{
	__m256i data = load(input);
	__m256i key, product;

	/* Opaque from here on, so that no compiler loads it a second time. */
	__asm__("" : "+x"(data));
	if (copy)
		_mm256_storeu_si256((__m256i_u *)copy, data);
	key = _mm256_xor_si256(data, load(secret));
	product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
	acc = _mm256_add_epi64(acc, _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2)));
	return _mm256_add_epi64(acc, product);
}

static inline AVX2 __attribute__((always_inline)) __m256i scramble(__m256i acc,
								   const uint8_t *secret)
{
	const __m256i prime = _mm256_set1_epi32((int)GKSM_XXH3_PRIME32_1);
	__m256i low, high;

	acc = _mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47));
	acc = _mm256_xor_si256(acc, load(secret));
	low = _mm256_mul_epu32(acc, prime);
	high = _mm256_mul_epu32(_mm256_srli_epi64(acc, 32), prime);
	return _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
}

static inline AVX2 __attribute__((always_inline)) void run(uint64_t acc[8], const uint8_t *page,
							   uint8_t *copy, bool copying)
{
	const uint8_t *secret = gksm_xxh3_secret;
	__m256i a = load((const uint8_t *)acc);
	__m256i b = load((const uint8_t *)(acc + 4));

	for (size_t block = 0; block < GKSM_XXH3_BLOCKS; block++) {
		bool last = block == GKSM_XXH3_BLOCKS - 1;

		for (size_t i = 0; i < GKSM_XXH3_STRIPES; i++) {
			size_t at = block * GKSM_XXH3_BLOCK + i * GKSM_XXH3_STRIPE;
			size_t key = last && i == GKSM_XXH3_STRIPES - 1 ? GKSM_XXH3_LAST : 8 * i;

			_mm_prefetch((const char *)page + at + GKSM_XXH3_PREFETCH, _MM_HINT_T0);
			a = accumulate(a, page + at, secret + key, copying ? copy + at : NULL);
			b = accumulate(b, page + at + 32, secret + key + 32,
				       copying ? copy + at + 32 : NULL);
		}
		if (!last) {
			a = scramble(a, secret + GKSM_XXH3_SCRAMBLE);
			b = scramble(b, secret + GKSM_XXH3_SCRAMBLE + 32);
		}
	}
	_mm256_storeu_si256((__m256i_u *)acc, a);
	_mm256_storeu_si256((__m256i_u *)(acc + 4), b);
}

static AVX2 void avx2_page(uint64_t acc[8], const uint8_t *page, uint8_t *copy)
{
	if (copy)
		run(acc, page, copy, true);
	else
		run(acc, page, NULL, false);
}

static bool has_avx2(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx2");
}

const struct gksm_hash_path gksm_hash_avx2 = {"avx2", has_avx2, avx2_page};
#endif
