/* SPDX-License-Identifier: Apache-2.0 */
#include "segments.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"
#include "link.h"

/* A batch is looked up at once and rarely spans more than two loaders' segments; the
 * pages of one look-up must all stay mapped until they are compared. */
#define KEPT GKSM_SEGMENT_PAGES_MAX

struct kept_segment {
	uint64_t id;
	uint64_t last_use;
	void *bytes;
	size_t size;
};

struct gksm_segments {
	struct kept_segment kept[KEPT];
	uint64_t clock;
};

void gksm_segment_begin(struct gksm_gpu *gpu, size_t pages, struct gksm_segment_fill *fill)
{
	struct gksm_segment segment;
	void *bytes;
	int fd;

	memset(fill, 0, sizeof(*fill));
	if (gksm_link_segment_get(gpu->process->link, (unsigned)gpu->device, (unsigned)pages,
				  &segment, &fd))
		return;
	bytes = MAP_FAILED;
	if (segment.bytes >= pages * GKSM_PAGE_SIZE)
		bytes = mmap(NULL, segment.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	fill->id = segment.segment_id;
	if (bytes == MAP_FAILED) {
		/* Sealed empty: gksmd takes it back since no page refers to it. */
		gksm_segment_end(gpu, fill);
		return;
	}
	fill->bytes = bytes;
	fill->size = segment.bytes;
}

void gksm_segment_end(struct gksm_gpu *gpu, struct gksm_segment_fill *fill)
{
	if (fill->bytes)
		munmap(fill->bytes, fill->size);
	if (fill->id)
		gksm_link_segment_seal(gpu->process->link, (unsigned)gpu->device, fill->id);
	memset(fill, 0, sizeof(*fill));
}

static void drop(struct kept_segment *kept)
{
	if (kept->bytes)
		munmap(kept->bytes, kept->size);
	memset(kept, 0, sizeof(*kept));
}

static struct kept_segment *keep(struct gksm_segments *cache, struct gksm_gpu *gpu, uint64_t id)
{
	struct kept_segment *victim = &cache->kept[0];
	struct gksm_segment segment;
	void *bytes;
	size_t i;
	int fd;

	for (i = 0; i < KEPT; i++) {
		if (cache->kept[i].id == id)
			return &cache->kept[i];
		if (cache->kept[i].last_use < victim->last_use)
			victim = &cache->kept[i];
	}
	if (gksm_link_segment_open(gpu->process->link, (unsigned)gpu->device, id, &segment, &fd))
		return NULL;
	bytes = mmap(NULL, segment.bytes, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (bytes == MAP_FAILED)
		return NULL;
	drop(victim);
	victim->id = id;
	victim->bytes = bytes;
	victim->size = segment.bytes;
	return victim;
}

const void *gksm_segment_page(struct gksm_segments *cache, struct gksm_gpu *gpu,
			      uint64_t segment_id, uint64_t offset)
{
	struct kept_segment *kept;

	if (!cache || !segment_id)
		return NULL;
	kept = keep(cache, gpu, segment_id);
	if (!kept || offset > kept->size || kept->size - offset < GKSM_PAGE_SIZE)
		return NULL;
	kept->last_use = ++cache->clock;
	return (const char *)kept->bytes + offset;
}

struct gksm_segments *gksm_segments_new(void)
{
	return calloc(1, sizeof(struct gksm_segments));
}

void gksm_segments_free(struct gksm_segments *cache)
{
	size_t i;

	if (!cache)
		return;
	for (i = 0; i < KEPT; i++)
		drop(&cache->kept[i]);
	free(cache);
}
