/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations: first fit in the pages of their context. */
#include "alloc.h"

#define UNITS (SIM_PAGE / SIM_UNIT)

/* Puts the block into the first gap that is wide enough. */
static bool place(struct sim_mapping *mapping, struct sim_block *block)
{
	struct sim_block **link = &mapping->blocks;
	unsigned at = 0;

	for (; *link; link = &(*link)->next) {
		if ((*link)->first - at >= block->units)
			break;
		at = (*link)->first + (*link)->units;
	}
	if (!*link && UNITS - at < block->units)
		return false;
	block->first = at;
	block->next = *link;
	*link = block;
	return true;
}

CUdeviceptr sim_heap_take(struct sim_context *context, size_t bytes, struct sim_block *block)
{
	block->bytes = bytes;
	block->units = (unsigned)((bytes + SIM_UNIT - 1) / SIM_UNIT);
	for (struct sim_mapping *mapping = context->heap; mapping; mapping = mapping->heap_next)
		if (place(mapping, block))
			return mapping->base + (CUdeviceptr)block->first * SIM_UNIT;
	return 0;
}

bool sim_heap_give(struct sim_mapping *mapping, struct sim_block *block)
{
	struct sim_block **link = &mapping->blocks;
	struct sim_mapping **page = &mapping->context->heap;

	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	if (mapping->blocks)
		return false;
	while (*page != mapping)
		page = &(*page)->heap_next;
	*page = mapping->heap_next;
	return true;
}
