/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host copies of published pages: segments of up to 64 MiB that gksmd allocates and is
 * charged for. The loader fills one while it is writable, lets go of its mapping, and
 * gksmd seals it; everybody else maps it read-only and compares against it.
 */
#ifndef GKSM_SEGMENTS_H
#define GKSM_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

struct gksm_gpu;
struct gksm_segments;

/* A segment being filled. id 0: gksmd gave none, pages are published without. */
struct gksm_segment_fill {
	uint64_t id;
	unsigned char *bytes;
	size_t size;
};

void gksm_segment_begin(struct gksm_gpu *gpu, size_t pages, struct gksm_segment_fill *fill);
/* The bytes are complete: unmaps them and has the segment sealed. */
void gksm_segment_end(struct gksm_gpu *gpu, struct gksm_segment_fill *fill);

/* The host copy of a page in a sealed segment, valid until the next call with the same
 * cache; NULL: there is none to be had. The cache keeps a few mappings. */
const void *gksm_segment_page(struct gksm_segments *cache, struct gksm_gpu *gpu,
			      uint64_t segment_id, uint64_t offset);

struct gksm_segments *gksm_segments_new(void);
void gksm_segments_free(struct gksm_segments *cache);

#endif
