/* SPDX-License-Identifier: Apache-2.0 */
#include "assembly.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "gksm/protocol.h"

#define BYTES (GKSM_PAGE_SIZE + sizeof(struct gksm_assembly))

/* One mapping for both, not malloc: the list of pieces takes memory only as it grows,
 * and all of it goes back to the system the moment the page is whole. */
struct gksm_assembly *gksm_assembly_new(void)
{
	struct gksm_assembly *assembly;
	char *bytes;

	bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bytes == MAP_FAILED)
		return NULL;
	assembly = (struct gksm_assembly *)(bytes + GKSM_PAGE_SIZE);
	assembly->bytes = bytes;
	return assembly;
}

void gksm_assembly_free(struct gksm_assembly *assembly)
{
	if (assembly)
		munmap(assembly->bytes, BYTES);
}

int gksm_assembly_add(struct gksm_assembly *assembly, size_t offset, const void *source,
		      size_t bytes)
{
	struct gksm_piece *piece = assembly->piece;
	uint32_t start = (uint32_t)offset;
	uint32_t end = (uint32_t)(offset + bytes);
	unsigned first = 0;
	unsigned last;

	for (last = assembly->pieces; first < last;) {
		unsigned middle = first + (last - first) / 2;

		if (piece[middle].end < start)
			first = middle + 1;
		else
			last = middle;
	}
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
