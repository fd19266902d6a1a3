/* SPDX-License-Identifier: Apache-2.0 */
#include "assembly.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gksm/protocol.h"

struct gksm_assembly *gksm_assembly_new(void)
{
	struct gksm_assembly *assembly = calloc(1, sizeof(*assembly));

	if (!assembly)
		return NULL;
	/* mmap, not malloc: given back to the system the moment the page is whole. */
	assembly->bytes = mmap(NULL, GKSM_PAGE_SIZE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (assembly->bytes == MAP_FAILED) {
		free(assembly);
		return NULL;
	}
	return assembly;
}

void gksm_assembly_free(struct gksm_assembly *assembly)
{
	if (!assembly)
		return;
	munmap(assembly->bytes, GKSM_PAGE_SIZE);
	free(assembly);
}

int gksm_assembly_add(struct gksm_assembly *assembly, size_t offset, const void *source,
		      size_t bytes)
{
	struct gksm_piece *piece = assembly->piece;
	uint32_t start = (uint32_t)offset;
	uint32_t end = (uint32_t)(offset + bytes);
	unsigned first = 0;
	unsigned last;

	while (first < assembly->pieces && piece[first].end < start)
		first++;
	last = first; /* [first, last) touch the new piece and melt into it */
	while (last < assembly->pieces && piece[last].start <= end)
		last++;
	if (first == last && assembly->pieces == GKSM_PIECES_MAX)
		return -ENOSPC;
	memcpy((char *)assembly->bytes + offset, source, bytes);
	if (first < last) {
		if (piece[first].start < start)
			start = piece[first].start;
		if (piece[last - 1].end > end)
			end = piece[last - 1].end;
	}
	memmove(&piece[first + 1], &piece[last], (assembly->pieces - last) * sizeof(*piece));
	assembly->pieces = assembly->pieces - (last - first) + 1;
	piece[first].start = start;
	piece[first].end = end;
	return start == 0 && end == GKSM_PAGE_SIZE;
}
