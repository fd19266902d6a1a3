/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that arrive in pieces. A page whose bytes come from several copies (tensors
 * rarely end at 2 MiB) is put together in host memory and treated as one full page
 * once every byte is there.
 */
#ifndef GKSM_ASSEMBLY_H
#define GKSM_ASSEMBLY_H

#include <stddef.h>
#include <stdint.h>

/* More pieces than this and the page is given up: it becomes private. */
#define GKSM_PIECES_MAX 4096

struct gksm_piece {
	uint32_t start;
	uint32_t end;
};

struct gksm_assembly {
	void *bytes; /* one page, zero where nothing came yet, as a new page would be */
	unsigned pieces;
	struct gksm_piece piece[GKSM_PIECES_MAX]; /* sorted, disjoint, not touching */
};

/* NULL: no memory. */
struct gksm_assembly *gksm_assembly_new(void);
void gksm_assembly_free(struct gksm_assembly *assembly);

/* Copies source over [offset, offset + bytes). 0; 1: the page is complete; -ENOSPC:
 * too many pieces, nothing was changed. */
int gksm_assembly_add(struct gksm_assembly *assembly, size_t offset, const void *source,
		      size_t bytes);

#endif
