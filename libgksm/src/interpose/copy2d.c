/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pitched copies. A page that only the gaps between rows touch is taken as written
 * too: the span covers all rows.
 */
#include "interpose/call.h"

static CUresult copy_2d(__typeof__(cuMemcpy2D_v2) *real, const CUDA_MEMCPY2D *copy,
			CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_2d(&spans, copy), ordered, real(copy));
}

GKSM_WRAP(cuMemcpy2D_v2)(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(GKSM_REAL(cuMemcpy2D_v2), copy, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpy2D_v2_ptds)(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(GKSM_REAL(cuMemcpy2D_v2_ptds), copy, CU_STREAM_PER_THREAD);
}

static CUresult copy_2d_unaligned(__typeof__(cuMemcpy2DUnaligned_v2) *real,
				  const CUDA_MEMCPY2D *copy, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_2d(&spans, copy), ordered, real(copy));
}

GKSM_WRAP(cuMemcpy2DUnaligned_v2)(const CUDA_MEMCPY2D *copy)
{
	return copy_2d_unaligned(GKSM_REAL(cuMemcpy2DUnaligned_v2), copy, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpy2DUnaligned_v2_ptds)(const CUDA_MEMCPY2D *copy)
{
	return copy_2d_unaligned(GKSM_REAL(cuMemcpy2DUnaligned_v2_ptds), copy,
				 CU_STREAM_PER_THREAD);
}

static CUresult copy_2d_async(__typeof__(cuMemcpy2DAsync_v2) *real, const CUDA_MEMCPY2D *copy,
			      CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy, stream);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_2d(&spans, copy), ordered,
			       real(copy, stream));
}

GKSM_WRAP(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	return copy_2d_async(GKSM_REAL(cuMemcpy2DAsync_v2), copy, stream,
			     gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpy2DAsync_v2_ptsz)(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	return copy_2d_async(GKSM_REAL(cuMemcpy2DAsync_v2_ptsz), copy, stream,
			     gksm_stream_per_thread(stream));
}

static CUresult copy_3d(__typeof__(cuMemcpy3D_v2) *real, const CUDA_MEMCPY3D *copy,
			CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_3d(&spans, copy), ordered, real(copy));
}

GKSM_WRAP(cuMemcpy3D_v2)(const CUDA_MEMCPY3D *copy)
{
	return copy_3d(GKSM_REAL(cuMemcpy3D_v2), copy, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpy3D_v2_ptds)(const CUDA_MEMCPY3D *copy)
{
	return copy_3d(GKSM_REAL(cuMemcpy3D_v2_ptds), copy, CU_STREAM_PER_THREAD);
}

static CUresult copy_3d_async(__typeof__(cuMemcpy3DAsync_v2) *real, const CUDA_MEMCPY3D *copy,
			      CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy, stream);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_3d(&spans, copy), ordered,
			       real(copy, stream));
}

GKSM_WRAP(cuMemcpy3DAsync_v2)(const CUDA_MEMCPY3D *copy, CUstream stream)
{
	return copy_3d_async(GKSM_REAL(cuMemcpy3DAsync_v2), copy, stream,
			     gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpy3DAsync_v2_ptsz)(const CUDA_MEMCPY3D *copy, CUstream stream)
{
	return copy_3d_async(GKSM_REAL(cuMemcpy3DAsync_v2_ptsz), copy, stream,
			     gksm_stream_per_thread(stream));
}

static CUresult copy_3d_peer(__typeof__(cuMemcpy3DPeer) *real, const CUDA_MEMCPY3D_PEER *copy,
			     CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_3d_peer(&spans, copy), ordered, real(copy));
}

GKSM_WRAP(cuMemcpy3DPeer)(const CUDA_MEMCPY3D_PEER *copy)
{
	return copy_3d_peer(GKSM_REAL(cuMemcpy3DPeer), copy, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpy3DPeer_ptds)(const CUDA_MEMCPY3D_PEER *copy)
{
	return copy_3d_peer(GKSM_REAL(cuMemcpy3DPeer_ptds), copy, CU_STREAM_PER_THREAD);
}

static CUresult copy_3d_peer_async(__typeof__(cuMemcpy3DPeerAsync) *real,
				   const CUDA_MEMCPY3D_PEER *copy, CUstream stream,
				   CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy, stream);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_3d_peer(&spans, copy), ordered,
			       real(copy, stream));
}

GKSM_WRAP(cuMemcpy3DPeerAsync)(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
	return copy_3d_peer_async(GKSM_REAL(cuMemcpy3DPeerAsync), copy, stream,
				  gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpy3DPeerAsync_ptsz)(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
	return copy_3d_peer_async(GKSM_REAL(cuMemcpy3DPeerAsync_ptsz), copy, stream,
				  gksm_stream_per_thread(stream));
}

static CUresult copy_3d_with_attributes(__typeof__(cuMemcpy3DWithAttributesAsync) *real,
					CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags,
					CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(copy, flags, stream);
	return GKSM_SPANS_CALL(process, gksm_spans_copy_operand(&spans, copy), ordered,
			       real(copy, flags, stream));
}

GKSM_WRAP(cuMemcpy3DWithAttributesAsync)(CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags,
					 CUstream stream)
{
	return copy_3d_with_attributes(GKSM_REAL(cuMemcpy3DWithAttributesAsync), copy, flags,
				       stream, gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpy3DWithAttributesAsync_ptsz)(CUDA_MEMCPY3D_BATCH_OP *copy,
					      unsigned long long flags, CUstream stream)
{
	return copy_3d_with_attributes(GKSM_REAL(cuMemcpy3DWithAttributesAsync_ptsz), copy, flags,
				       stream, gksm_stream_per_thread(stream));
}
