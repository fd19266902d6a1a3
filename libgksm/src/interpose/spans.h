/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of the device a copy or set touches. Every function appends to a list
 * and none asks whether the bytes are ours: access.h does that.
 *
 * Both sides of a copy are taken as device addresses, also those the entry point
 * calls host memory: under unified addressing the driver follows the address, not
 * the name, and an arena never overlaps host memory.
 */
#ifndef GKSM_SPANS_H
#define GKSM_SPANS_H

#include <stdbool.h>
#include <stddef.h>

#include "access.h"
#include "cuda_abi.h"

#define GKSM_SPANS_INLINE 8

/* A list that is on the stack while it is short. */
struct gksm_spans {
	struct gksm_span *items;
	size_t count;
	size_t capacity;
	bool lost; /* no memory: the list is incomplete */
	struct gksm_span inline_items[GKSM_SPANS_INLINE];
};

void gksm_spans_init(struct gksm_spans *spans);
void gksm_spans_free(struct gksm_spans *spans);

/* Nothing is appended for 0 bytes. A span that would run over the end of the address
 * space is cut there. */
void gksm_spans_add(struct gksm_spans *spans, CUdeviceptr address, size_t bytes, unsigned flags);

/* rows of `width` bytes, `pitch` apart, in `layers` that are `height` rows apart:
 * one covering span. */
void gksm_spans_add_box(struct gksm_spans *spans, CUdeviceptr address, size_t width, size_t rows,
			size_t layers, size_t pitch, size_t height, unsigned flags);

void gksm_spans_copy_1d(struct gksm_spans *spans, CUdeviceptr destination, CUdeviceptr source,
			size_t bytes);
void gksm_spans_copy_2d(struct gksm_spans *spans, const CUDA_MEMCPY2D_v2 *copy);
void gksm_spans_copy_3d(struct gksm_spans *spans, const CUDA_MEMCPY3D_v2 *copy);
void gksm_spans_copy_3d_peer(struct gksm_spans *spans, const CUDA_MEMCPY3D_PEER_v1 *copy);
/* A copy between an array and a pointer counts in the array's elements (the driver is
 * asked how large they are), a pure pointer copy in bytes. */
void gksm_spans_copy_operand(struct gksm_spans *spans, const CUDA_MEMCPY3D_BATCH_OP_v1 *copy);
void gksm_spans_fabric(struct gksm_spans *spans, const CUDA_FABRIC_COPY_BATCH_OP_v1 *copy);
void gksm_spans_memset_2d(struct gksm_spans *spans, CUdeviceptr destination, size_t pitch,
			  size_t element_bytes, size_t width, size_t height);
void gksm_spans_memset_node(struct gksm_spans *spans, const CUDA_MEMSET_NODE_PARAMS_v1 *set);
void gksm_spans_wait_value(struct gksm_spans *spans, CUdeviceptr address, size_t bytes);
void gksm_spans_stream_ops(struct gksm_spans *spans, const CUstreamBatchMemOpParams *operations,
			   size_t count);

#endif
