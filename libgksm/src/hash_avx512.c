/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3's accumulation with AVX-512: a stripe is one vector.
 */
#include "hash_paths.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f")))

static inline AVX512 __attribute__((always_inline)) __m512i accumulate(__m512i acc,
								       const uint8_t *input,
								       const uint8_t *secret,
								       uint8_t *copy)
{
	__m512i data = _mm512_loadu_si512(input);
	__m512i key, product;

	/* Opaque from here on, so that no compiler loads it a second time. */
	__asm__("" : "+v"(data));
	if (copy)
		_mm512_storeu_si512(copy, data);
	key = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
	product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
	acc = _mm512_add_epi64(acc, _mm512_shuffle_epi32(data, _MM_PERM_BADC));
	return _mm512_add_epi64(acc, product);
}

static inline AVX512 __attribute__((always_inline)) __m512i scramble(__m512i acc)
{
	const __m512i prime = _mm512_set1_epi32((int)GKSM_XXH3_PRIME32_1);
	__m512i low, high;

	acc = _mm512_xor_si512(acc, _mm512_srli_epi64(acc, 47));
	acc = _mm512_xor_si512(acc, _mm512_loadu_si512(gksm_xxh3_secret + GKSM_XXH3_SCRAMBLE));
	low = _mm512_mul_epu32(acc, prime);
	high = _mm512_mul_epu32(_mm512_srli_epi64(acc, 32), prime);
	return _mm512_add_epi64(low, _mm512_slli_epi64(high, 32));
}

static inline AVX512 __attribute__((always_inline)) void run(uint64_t acc[8], const uint8_t *page,
							     uint8_t *copy, bool copying)
{
	__m512i a = _mm512_loadu_si512(acc);

	for (size_t block = 0; block < GKSM_XXH3_BLOCKS; block++) {
		bool last = block == GKSM_XXH3_BLOCKS - 1;

		for (size_t i = 0; i < GKSM_XXH3_STRIPES; i++) {
			size_t at = block * GKSM_XXH3_BLOCK + i * GKSM_XXH3_STRIPE;
			size_t key = last && i == GKSM_XXH3_STRIPES - 1 ? GKSM_XXH3_LAST : 8 * i;

			_mm_prefetch((const char *)page + at + GKSM_XXH3_PREFETCH, _MM_HINT_T0);
			a = accumulate(a, page + at, gksm_xxh3_secret + key,
				       copying ? copy + at : NULL);
		}
		if (!last)
			a = scramble(a);
	}
	_mm512_storeu_si512(acc, a);
}

static AVX512 void avx512_page(uint64_t acc[8], const uint8_t *page, uint8_t *copy)
{
	if (copy)
		run(acc, page, copy, true);
	else
		run(acc, page, NULL, false);
}

static bool has_avx512(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx512f");
}

const struct gksm_hash_path gksm_hash_avx512 = {"avx512", has_avx512, avx512_page};
#endif
