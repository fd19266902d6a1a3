/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_XXH3_H
#define SIM_XXH3_H

#include <stdint.h>

/* XXH3-128 with seed 0 of a 2 MiB page, fed block by block: only this length's form. */
struct sim_xxh3 {
	uint64_t lanes[8];
};

#define SIM_XXH3_BLOCK 1024u

/* Device code: plain loads of the input, no libc. */
void sim_xxh3_start(struct sim_xxh3 *state);
/* One whole block of SIM_XXH3_BLOCK bytes that is not the page's last. */
void sim_xxh3_block(struct sim_xxh3 *state, const unsigned char *block);
/* The page's last block; out[0] is the low half. */
void sim_xxh3_finish(struct sim_xxh3 *state, const unsigned char *block, uint64_t out[2]);

#endif
