/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many copies in one call. The entry points of 12.8 report the index of a failure,
 * those of 13.0 (_v2) do not: different argument lists under one name in the source.
 */
#include "alloc.h"
#include "interpose/call.h"

static void batch(struct gksm_spans *spans, const CUdeviceptr *destinations,
		  const CUdeviceptr *sources, const size_t *sizes, size_t count)
{
	if (!destinations || !sources || !sizes)
		return;
	for (size_t i = 0; i < count; i++)
		gksm_spans_copy_1d(spans, destinations[i], sources[i], sizes[i]);
}

static void batch_3d(struct gksm_spans *spans, const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count)
{
	for (size_t i = 0; copies && i < count; i++)
		gksm_spans_copy_operand(spans, &copies[i]);
}

static void batch_fabric(struct gksm_spans *spans, const CUDA_FABRIC_COPY_BATCH_OP *copies,
			 size_t count)
{
	for (size_t i = 0; copies && i < count; i++)
		gksm_spans_fabric(spans, &copies[i]);
}

/* How much comes out is only hinted at: a destination counts to the end of its
 * allocation when the hint is missing. */
static void batch_decompress(struct gksm *process, struct gksm_spans *spans,
			     const CUmemDecompressParams *pieces, size_t count)
{
	for (size_t i = 0; pieces && i < count; i++) {
		CUdeviceptr destination = GKSM_HOST(pieces[i].dst);
		struct gksm_allocation_info info;
		size_t bytes = pieces[i].dstNumBytes;

		if (gksm_allocation_find(process, destination, &info))
			bytes = info.base + info.bytes - destination;
		gksm_spans_add(spans, destination, bytes, GKSM_SPAN_WRITE);
		gksm_spans_add(spans, GKSM_HOST(pieces[i].dstActBytes), sizeof(cuuint32_t),
			       GKSM_SPAN_WRITE);
		gksm_spans_add(spans, GKSM_HOST(pieces[i].src), pieces[i].srcNumBytes, 0);
	}
}

static CUresult batch_12080(__typeof__(cuMemcpyBatchAsync) *real, CUdeviceptr *destinations,
			    CUdeviceptr *sources, size_t *sizes, size_t count,
			    CUmemcpyAttributes *attributes, size_t *attribute_indices,
			    size_t attribute_count, size_t *failed, CUstream stream,
			    CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destinations, sources, sizes, count, attributes, attribute_indices,
			    attribute_count, failed, stream);
	return GKSM_SPANS_CALL(process, batch(&spans, destinations, sources, sizes, count), ordered,
			       real(destinations, sources, sizes, count, attributes,
				    attribute_indices, attribute_count, failed, stream));
}

GKSM_WRAP(cuMemcpyBatchAsync)(CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes,
			      size_t count, CUmemcpyAttributes *attributes,
			      size_t *attribute_indices, size_t attribute_count, size_t *failed,
			      CUstream stream)
{
	return batch_12080(GKSM_REAL(cuMemcpyBatchAsync), destinations, sources, sizes, count,
			   attributes, attribute_indices, attribute_count, failed, stream,
			   gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyBatchAsync_ptsz)(CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes,
				   size_t count, CUmemcpyAttributes *attributes,
				   size_t *attribute_indices, size_t attribute_count,
				   size_t *failed, CUstream stream)
{
	return batch_12080(GKSM_REAL(cuMemcpyBatchAsync_ptsz), destinations, sources, sizes, count,
			   attributes, attribute_indices, attribute_count, failed, stream,
			   gksm_stream_per_thread(stream));
}

static CUresult batch_13000(__typeof__(cuMemcpyBatchAsync_v2) *real, CUdeviceptr *destinations,
			    CUdeviceptr *sources, size_t *sizes, size_t count,
			    CUmemcpyAttributes *attributes, size_t *attribute_indices,
			    size_t attribute_count, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destinations, sources, sizes, count, attributes, attribute_indices,
			    attribute_count, stream);
	return GKSM_SPANS_CALL(process, batch(&spans, destinations, sources, sizes, count), ordered,
			       real(destinations, sources, sizes, count, attributes,
				    attribute_indices, attribute_count, stream));
}

GKSM_WRAP(cuMemcpyBatchAsync_v2)(CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes,
				 size_t count, CUmemcpyAttributes *attributes,
				 size_t *attribute_indices, size_t attribute_count, CUstream stream)
{
	return batch_13000(GKSM_REAL(cuMemcpyBatchAsync_v2), destinations, sources, sizes, count,
			   attributes, attribute_indices, attribute_count, stream,
			   gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyBatchAsync_v2_ptsz)(CUdeviceptr *destinations, CUdeviceptr *sources,
				      size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
				      size_t *attribute_indices, size_t attribute_count,
				      CUstream stream)
{
	return batch_13000(GKSM_REAL(cuMemcpyBatchAsync_v2_ptsz), destinations, sources, sizes,
			   count, attributes, attribute_indices, attribute_count, stream,
			   gksm_stream_per_thread(stream));
}

static CUresult batch_3d_12080(__typeof__(cuMemcpy3DBatchAsync) *real, size_t count,
			       CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed,
			       unsigned long long flags, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(count, copies, failed, flags, stream);
	return GKSM_SPANS_CALL(process, batch_3d(&spans, copies, count), ordered,
			       real(count, copies, failed, flags, stream));
}

GKSM_WRAP(cuMemcpy3DBatchAsync)(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed,
				unsigned long long flags, CUstream stream)
{
	return batch_3d_12080(GKSM_REAL(cuMemcpy3DBatchAsync), count, copies, failed, flags, stream,
			      gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpy3DBatchAsync_ptsz)(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed,
				     unsigned long long flags, CUstream stream)
{
	return batch_3d_12080(GKSM_REAL(cuMemcpy3DBatchAsync_ptsz), count, copies, failed, flags,
			      stream, gksm_stream_per_thread(stream));
}

static CUresult batch_3d_13000(__typeof__(cuMemcpy3DBatchAsync_v2) *real, size_t count,
			       CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags,
			       CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(count, copies, flags, stream);
	return GKSM_SPANS_CALL(process, batch_3d(&spans, copies, count), ordered,
			       real(count, copies, flags, stream));
}

GKSM_WRAP(cuMemcpy3DBatchAsync_v2)(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies,
				   unsigned long long flags, CUstream stream)
{
	return batch_3d_13000(GKSM_REAL(cuMemcpy3DBatchAsync_v2), count, copies, flags, stream,
			      gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpy3DBatchAsync_v2_ptsz)(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies,
					unsigned long long flags, CUstream stream)
{
	return batch_3d_13000(GKSM_REAL(cuMemcpy3DBatchAsync_v2_ptsz), count, copies, flags, stream,
			      gksm_stream_per_thread(stream));
}

static CUresult fabric(__typeof__(cuFabricCpyBatchAsync) *real, size_t count,
		       CUDA_FABRIC_COPY_BATCH_OP *copies, unsigned long long flags, CUstream stream,
		       CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(count, copies, flags, stream);
	return GKSM_SPANS_CALL(process, batch_fabric(&spans, copies, count), ordered,
			       real(count, copies, flags, stream));
}

GKSM_WRAP(cuFabricCpyBatchAsync)(size_t count, CUDA_FABRIC_COPY_BATCH_OP *copies,
				 unsigned long long flags, CUstream stream)
{
	return fabric(GKSM_REAL(cuFabricCpyBatchAsync), count, copies, flags, stream,
		      gksm_stream_plain(stream));
}

GKSM_WRAP(cuFabricCpyBatchAsync_ptsz)(size_t count, CUDA_FABRIC_COPY_BATCH_OP *copies,
				      unsigned long long flags, CUstream stream)
{
	return fabric(GKSM_REAL(cuFabricCpyBatchAsync_ptsz), count, copies, flags, stream,
		      gksm_stream_per_thread(stream));
}

static CUresult decompress(__typeof__(cuMemBatchDecompressAsync) *real,
			   CUmemDecompressParams *pieces, size_t count, unsigned int flags,
			   size_t *failed, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(pieces, count, flags, failed, stream);
	return GKSM_SPANS_CALL(process, batch_decompress(process, &spans, pieces, count), ordered,
			       real(pieces, count, flags, failed, stream));
}

GKSM_WRAP(cuMemBatchDecompressAsync)(CUmemDecompressParams *pieces, size_t count,
				     unsigned int flags, size_t *failed, CUstream stream)
{
	return decompress(GKSM_REAL(cuMemBatchDecompressAsync), pieces, count, flags, failed,
			  stream, gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemBatchDecompressAsync_ptsz)(CUmemDecompressParams *pieces, size_t count,
					  unsigned int flags, size_t *failed, CUstream stream)
{
	return decompress(GKSM_REAL(cuMemBatchDecompressAsync_ptsz), pieces, count, flags, failed,
			  stream, gksm_stream_per_thread(stream));
}
