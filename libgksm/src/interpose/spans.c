/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/spans.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

void gksm_spans_init(struct gksm_spans *spans)
{
	spans->items = spans->inline_items;
	spans->count = 0;
	spans->capacity = GKSM_SPANS_INLINE;
	spans->lost = false;
}

void gksm_spans_free(struct gksm_spans *spans)
{
	if (spans->items != spans->inline_items)
		free(spans->items);
	gksm_spans_init(spans);
}

static bool grow(struct gksm_spans *spans)
{
	size_t capacity = spans->capacity * 4;
	struct gksm_span *items = malloc(capacity * sizeof(*items));

	if (!items)
		return false;
	memcpy(items, spans->items, spans->count * sizeof(*items));
	if (spans->items != spans->inline_items)
		free(spans->items);
	spans->items = items;
	spans->capacity = capacity;
	return true;
}

void gksm_spans_add(struct gksm_spans *spans, CUdeviceptr address, size_t bytes, unsigned flags)
{
	if (!bytes)
		return;
	if (spans->count == spans->capacity && !grow(spans)) {
		spans->lost = true;
		return;
	}
	if (bytes > UINT64_MAX - address)
		bytes = UINT64_MAX - address;
	spans->items[spans->count++] =
		(struct gksm_span){.address = address, .bytes = bytes, .flags = flags};
}

/* Products and sums of sizes that the caller made up: they saturate, the driver will
 * refuse them. */
static size_t times(size_t a, size_t b)
{
	size_t product;

	return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

static size_t plus(size_t a, size_t b)
{
	size_t sum;

	return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

void gksm_spans_add_box(struct gksm_spans *spans, CUdeviceptr address, size_t width, size_t rows,
			size_t layers, size_t pitch, size_t height, unsigned flags)
{
	size_t bytes;

	if (!width || !rows || !layers)
		return;
	bytes = plus(plus(times(layers - 1, times(pitch, height)), times(rows - 1, pitch)), width);
	if (bytes == times(times(width, rows), layers) && (flags & GKSM_SPAN_WRITE))
		flags |= GKSM_SPAN_EVERY_BYTE;
	gksm_spans_add(spans, address, bytes, flags);
}

void gksm_spans_copy_1d(struct gksm_spans *spans, CUdeviceptr destination, CUdeviceptr source,
			size_t bytes)
{
	gksm_spans_add(spans, destination, bytes, GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE);
	gksm_spans_add(spans, source, bytes, 0);
}

/* Where a pitched side starts. type says which member of the pair counts; arrays lie
 * in memory of the driver's own. */
static CUdeviceptr side_base(CUmemorytype type, CUdeviceptr device, const void *host)
{
	switch (type) {
	case CU_MEMORYTYPE_HOST:
		return (CUdeviceptr)(uintptr_t)host;
	case CU_MEMORYTYPE_DEVICE:
	case CU_MEMORYTYPE_UNIFIED:
		return device;
	default:
		return 0;
	}
}

static CUdeviceptr offset(CUdeviceptr base, size_t x, size_t y, size_t z, size_t pitch,
			  size_t height)
{
	return base + x + y * pitch + z * pitch * height;
}

void gksm_spans_copy_2d(struct gksm_spans *spans, const CUDA_MEMCPY2D_v2 *copy)
{
	CUdeviceptr to, from;

	if (!copy)
		return;
	to = side_base(copy->dstMemoryType, copy->dstDevice, copy->dstHost);
	from = side_base(copy->srcMemoryType, copy->srcDevice, copy->srcHost);
	if (to)
		gksm_spans_add_box(
			spans, offset(to, copy->dstXInBytes, copy->dstY, 0, copy->dstPitch, 0),
			copy->WidthInBytes, copy->Height, 1, copy->dstPitch, 0, GKSM_SPAN_WRITE);
	if (from)
		gksm_spans_add_box(
			spans, offset(from, copy->srcXInBytes, copy->srcY, 0, copy->srcPitch, 0),
			copy->WidthInBytes, copy->Height, 1, copy->srcPitch, 0, 0);
}

/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER differ in fields that do not matter here. */
#define COPY_3D(spans, copy)                                                                      \
	do {                                                                                      \
		CUdeviceptr to =                                                                  \
			side_base((copy)->dstMemoryType, (copy)->dstDevice, (copy)->dstHost);     \
		CUdeviceptr from =                                                                \
			side_base((copy)->srcMemoryType, (copy)->srcDevice, (copy)->srcHost);     \
		if (to)                                                                           \
			gksm_spans_add_box(spans,                                                 \
					   offset(to, (copy)->dstXInBytes, (copy)->dstY,          \
						  (copy)->dstZ, (copy)->dstPitch,                 \
						  (copy)->dstHeight),                             \
					   (copy)->WidthInBytes, (copy)->Height, (copy)->Depth,   \
					   (copy)->dstPitch, (copy)->dstHeight, GKSM_SPAN_WRITE); \
		if (from)                                                                         \
			gksm_spans_add_box(spans,                                                 \
					   offset(from, (copy)->srcXInBytes, (copy)->srcY,        \
						  (copy)->srcZ, (copy)->srcPitch,                 \
						  (copy)->srcHeight),                             \
					   (copy)->WidthInBytes, (copy)->Height, (copy)->Depth,   \
					   (copy)->srcPitch, (copy)->srcHeight, 0);               \
	} while (0)

void gksm_spans_copy_3d(struct gksm_spans *spans, const CUDA_MEMCPY3D_v2 *copy)
{
	if (copy)
		COPY_3D(spans, copy);
}

void gksm_spans_copy_3d_peer(struct gksm_spans *spans, const CUDA_MEMCPY3D_PEER_v1 *copy)
{
	if (copy)
		COPY_3D(spans, copy);
}

static size_t element_bytes(const CUmemcpy3DOperand_v1 *operand)
{
	const struct gksm_driver *driver = gksm_driver();
	CUDA_ARRAY3D_DESCRIPTOR_v2 descriptor;
	size_t channel;

	if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return 1;
	if (!driver || !driver->cuArray3DGetDescriptor_v2 ||
	    driver->cuArray3DGetDescriptor_v2(&descriptor, operand->op.array.array) != CUDA_SUCCESS)
		return 1;
	switch (descriptor.Format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		channel = 1;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		channel = 2;
		break;
	default:
		/* 4 bytes, or a packed format of which nothing is wider than a texel of 16 */
		channel = 4;
		break;
	}
	return channel * (descriptor.NumChannels ? descriptor.NumChannels : 1);
}

static void add_operand(struct gksm_spans *spans, const CUmemcpy3DOperand_v1 *operand,
			const CUextent3D_v1 *extent, size_t element, unsigned flags)
{
	size_t row, height;

	if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER)
		return;
	/* 0 means packed, for both */
	row = operand->op.ptr.rowLength ? operand->op.ptr.rowLength : extent->width;
	height = operand->op.ptr.layerHeight ? operand->op.ptr.layerHeight : extent->height;
	gksm_spans_add_box(spans, operand->op.ptr.ptr, times(extent->width, element),
			   extent->height, extent->depth, times(row, element), height, flags);
}

void gksm_spans_copy_operand(struct gksm_spans *spans, const CUDA_MEMCPY3D_BATCH_OP_v1 *copy)
{
	size_t element;

	if (!copy)
		return;
	element = element_bytes(&copy->src);
	if (element == 1)
		element = element_bytes(&copy->dst);
	add_operand(spans, &copy->dst, &copy->extent, element, GKSM_SPAN_WRITE);
	add_operand(spans, &copy->src, &copy->extent, element, 0);
}

/* An operand at a logical endpoint is no address of this process. */
void gksm_spans_fabric(struct gksm_spans *spans, const CUDA_FABRIC_COPY_BATCH_OP_v1 *copy)
{
	if (copy->dst.type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER)
		gksm_spans_add(spans, copy->dst.op.ptr.ptr, copy->size,
			       GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE);
	if (copy->src.type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER)
		gksm_spans_add(spans, copy->src.op.ptr.ptr, copy->size, 0);
}

void gksm_spans_memset_2d(struct gksm_spans *spans, CUdeviceptr destination, size_t pitch,
			  size_t element, size_t width, size_t height)
{
	gksm_spans_add_box(spans, destination, times(width, element), height, 1, pitch, 0,
			   GKSM_SPAN_WRITE);
}

void gksm_spans_memset_node(struct gksm_spans *spans, const CUDA_MEMSET_NODE_PARAMS_v1 *set)
{
	if (set)
		gksm_spans_memset_2d(spans, set->dst, set->pitch, set->elementSize, set->width,
				     set->height);
}

void gksm_spans_wait_value(struct gksm_spans *spans, CUdeviceptr address, size_t bytes)
{
	/* The front end reads it again and again until somebody writes there. Taken as
	 * a write: a page that is private already does not change under the reader. */
	gksm_spans_add(spans, address, bytes, GKSM_SPAN_WRITE);
}

void gksm_spans_stream_ops(struct gksm_spans *spans, const CUstreamBatchMemOpParams *operations,
			   size_t count)
{
	if (!operations)
		return;
	for (size_t i = 0; i < count; i++) {
		const CUstreamBatchMemOpParams *operation = &operations[i];

		switch (operation->operation) {
		case CU_STREAM_MEM_OP_WRITE_VALUE_32:
			gksm_spans_add(spans, operation->writeValue.address, 4,
				       GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_64:
			gksm_spans_add(spans, operation->writeValue.address, 8,
				       GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE);
			break;
		case CU_STREAM_MEM_OP_WAIT_VALUE_32:
			gksm_spans_wait_value(spans, operation->waitValue.address, 4);
			break;
		case CU_STREAM_MEM_OP_WAIT_VALUE_64:
			gksm_spans_wait_value(spans, operation->waitValue.address, 8);
			break;
		case CU_STREAM_MEM_OP_ATOMIC_REDUCTION:
			gksm_spans_add(spans, operation->atomicReduction.address, 8,
				       GKSM_SPAN_WRITE);
			break;
		default:
			break;
		}
	}
}
