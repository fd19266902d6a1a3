/* SPDX-License-Identifier: Apache-2.0 */
/* The 8-byte words in a kernel's parameters: what may be addresses. */
#ifndef GKSM_LAUNCH_WORDS_H
#define GKSM_LAUNCH_WORDS_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#define GKSM_WORDS_INLINE 64

struct gksm_words {
	uint64_t *items; /* NULL: the parameters cannot be read */
	size_t count;
	size_t capacity;
	uint64_t inline_items[GKSM_WORDS_INLINE];
};

void gksm_words_init(struct gksm_words *words);
void gksm_words_free(struct gksm_words *words);

/* The kernel may touch anything. */
void gksm_words_unknown(struct gksm_words *words);

/* The parameters of a launch, in either of the two ways the driver takes them. The
 * sizes of `parameters` are asked of the driver at each launch: a cache by function
 * would outlive unloading, and a wrong size reads beyond the caller's memory. */
void gksm_words_kernel(struct gksm_words *words, CUfunction function, void **parameters,
		       void **extra);

#endif
