/* SPDX-License-Identifier: Apache-2.0 */
#include "extents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int reserve(struct gksm_extents *extents, size_t room)
{
	struct gksm_extent *list;

	if (room <= extents->room)
		return 0;
	room += room / 2 + 16;
	list = realloc(extents->list, room * sizeof(*list));
	if (!list)
		return -ENOMEM;
	extents->list = list;
	extents->room = room;
	return 0;
}

int gksm_extents_init(struct gksm_extents *extents, uint64_t count)
{
	int error;

	memset(extents, 0, sizeof(*extents));
	error = reserve(extents, 64);
	if (error)
		return error;
	extents->list[0] = (struct gksm_extent){0, count};
	extents->used = 1;
	return 0;
}

int gksm_extents_take(struct gksm_extents *extents, uint64_t count, uint64_t *first)
{
	int error;
	size_t i;

	/*
	 * Between n allocations lie at most n + 1 free extents: with room for those
	 * kept ahead, giving pages back needs no memory.
	 */
	error = reserve(extents, extents->live + 2);
	if (error)
		return error;
	for (i = 0; i < extents->used; i++) {
		struct gksm_extent *extent = &extents->list[i];

		if (extent->count < count)
			continue;
		*first = extent->first;
		extent->first += count;
		extent->count -= count;
		extents->live++;
		if (extent->count == 0) {
			extents->used--;
			memmove(extent, extent + 1, (extents->used - i) * sizeof(*extent));
		}
		return 0;
	}
	return -ENOSPC;
}

void gksm_extents_give(struct gksm_extents *extents, uint64_t first, uint64_t count)
{
	struct gksm_extent *list = extents->list;
	size_t i = 0;

	extents->live--;
	while (i < extents->used && list[i].first < first)
		i++;
	if (i > 0 && list[i - 1].first + list[i - 1].count == first) {
		list[i - 1].count += count;
		if (i < extents->used && first + count == list[i].first) {
			list[i - 1].count += list[i].count;
			extents->used--;
			memmove(&list[i], &list[i + 1], (extents->used - i) * sizeof(*list));
		}
		return;
	}
	if (i < extents->used && first + count == list[i].first) {
		list[i].first = first;
		list[i].count += count;
		return;
	}
	memmove(&list[i + 1], &list[i], (extents->used - i) * sizeof(*list));
	list[i] = (struct gksm_extent){first, count};
	extents->used++;
}
