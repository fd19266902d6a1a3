/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of boxes: 2D, 3D, and batches. */
#include <string.h>

#include "capture.h"
#include "copy_api.h"

static CUDA_MEMCPY3D_PEER from_2d(const CUDA_MEMCPY2D *copy)
{
	return (CUDA_MEMCPY3D_PEER){
		.srcXInBytes = copy->srcXInBytes,
		.srcY = copy->srcY,
		.srcMemoryType = copy->srcMemoryType,
		.srcHost = copy->srcHost,
		.srcDevice = copy->srcDevice,
		.srcArray = copy->srcArray,
		.srcPitch = copy->srcPitch,
		.dstXInBytes = copy->dstXInBytes,
		.dstY = copy->dstY,
		.dstMemoryType = copy->dstMemoryType,
		.dstHost = copy->dstHost,
		.dstDevice = copy->dstDevice,
		.dstArray = copy->dstArray,
		.dstPitch = copy->dstPitch,
		.WidthInBytes = copy->WidthInBytes,
		.Height = copy->Height,
		.Depth = 1,
	};
}

static CUDA_MEMCPY3D_PEER from_3d(const CUDA_MEMCPY3D *copy)
{
	return (CUDA_MEMCPY3D_PEER){
		.srcXInBytes = copy->srcXInBytes,
		.srcY = copy->srcY,
		.srcZ = copy->srcZ,
		.srcMemoryType = copy->srcMemoryType,
		.srcHost = copy->srcHost,
		.srcDevice = copy->srcDevice,
		.srcArray = copy->srcArray,
		.srcPitch = copy->srcPitch,
		.srcHeight = copy->srcHeight,
		.dstXInBytes = copy->dstXInBytes,
		.dstY = copy->dstY,
		.dstZ = copy->dstZ,
		.dstMemoryType = copy->dstMemoryType,
		.dstHost = copy->dstHost,
		.dstDevice = copy->dstDevice,
		.dstArray = copy->dstArray,
		.dstPitch = copy->dstPitch,
		.dstHeight = copy->dstHeight,
		.WidthInBytes = copy->WidthInBytes,
		.Height = copy->Height,
		.Depth = copy->Depth,
	};
}

static CUresult call_2d(const CUDA_MEMCPY2D *copy, CUstream stream, enum sim_copy_mode mode)
{
	CUDA_MEMCPY3D_PEER shape;

	if (!copy)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : sim_ready();
	shape = from_2d(copy);
	return sim_copy_call(stream, &shape, mode);
}

static CUresult call_3d(const CUDA_MEMCPY3D *copy, CUstream stream, enum sim_copy_mode mode)
{
	CUDA_MEMCPY3D_PEER shape;

	if (!copy || copy->srcLOD || copy->dstLOD)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : sim_ready();
	shape = from_3d(copy);
	return sim_copy_call(stream, &shape, mode);
}

SIM_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
	return call_2d(pCopy, NULL, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
	return call_2d(pCopy, NULL, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
	return call_2d(pCopy, hStream, SIM_COPY_ASYNC);
}

SIM_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
	return call_3d(pCopy, NULL, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
	return call_3d(pCopy, hStream, SIM_COPY_ASYNC);
}

SIM_API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
	if (!pCopy)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : sim_ready();
	return sim_copy_call(NULL, pCopy, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
	if (!pCopy)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : sim_ready();
	return sim_copy_call(hStream, pCopy, SIM_COPY_ASYNC);
}

/* ---- batches ------------------------------------------------------------------- */

/* Batches are not for the NULL stream. */
static CUresult batch_stream(CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (stream->legacy)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_capturing(stream) ? sim_capture_refuse(stream) : CUDA_SUCCESS;
}

static bool order_known(CUmemcpySrcAccessOrder order)
{
	return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
	       order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
	       order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

/* A source that may only be read during the call is waited for. */
static CUresult batch_row(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes,
			  CUmemcpySrcAccessOrder order)
{
	CUresult result = sim_copy_row(stream, CU_MEMORYTYPE_UNIFIED, to, CU_MEMORYTYPE_UNIFIED,
				       from, bytes, SIM_COPY_ASYNC);
	struct sim_stream *resolved;

	if (result != CUDA_SUCCESS || order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
		return result;
	result = sim_stream_get(stream, false, &resolved);
	return result == CUDA_SUCCESS ? sim_stream_wait(resolved) : result;
}

static bool attributes_valid(const CUmemcpyAttributes *attrs, const size_t *indices, size_t count,
			     size_t ops)
{
	if (!attrs || !indices || !count || count > ops || indices[0])
		return false;
	for (size_t i = 0; i < count; i++)
		if (!order_known(attrs[i].srcAccessOrder) || indices[i] >= ops ||
		    (i && indices[i] <= indices[i - 1]))
			return false;
	return true;
}

static CUresult batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
		      CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
		      size_t *failIdx, CUstream hStream)
{
	CUresult result = batch_stream(hStream);
	size_t attribute = 0;

	/* SIZE_MAX: the error is not about one operation. */
	if (failIdx)
		*failIdx = SIZE_MAX;
	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !dsts || !srcs || !sizes ||
	    !attributes_valid(attrs, attrsIdxs, numAttrs, count))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		while (attribute + 1 < numAttrs && attrsIdxs[attribute + 1] <= i)
			attribute++;
		result = batch_row(hStream, dsts[i], srcs[i], sizes[i],
				   attrs[attribute].srcAccessOrder);
		if (result != CUDA_SUCCESS) {
			if (failIdx)
				*failIdx = i;
			return result;
		}
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
				    size_t count, CUmemcpyAttributes *attrs, size_t *attrsIdxs,
				    size_t numAttrs, size_t *failIdx, CUstream hStream)
{
	return batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream);
}

SIM_API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
				       size_t count, CUmemcpyAttributes *attrs, size_t *attrsIdxs,
				       size_t numAttrs, CUstream hStream)
{
	return batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream);
}

SIM_API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size,
					     CUmemcpyAttributes *attr, CUstream hStream)
{
	size_t first = 0;

	return batch(&dst, &src, &size, 1, attr, &first, 1, NULL, hStream);
}

static CUresult box(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream hStream)
{
	CUDA_MEMCPY3D_PEER shape = {
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = op->src.op.ptr.ptr,
		.srcPitch = op->src.op.ptr.rowLength,
		.srcHeight = op->src.op.ptr.layerHeight,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
		.dstDevice = op->dst.op.ptr.ptr,
		.dstPitch = op->dst.op.ptr.rowLength,
		.dstHeight = op->dst.op.ptr.layerHeight,
		.WidthInBytes = op->extent.width,
		.Height = op->extent.height,
		.Depth = op->extent.depth,
	};

	if (!order_known(op->srcAccessOrder))
		return CUDA_ERROR_INVALID_VALUE;
	if (op->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
	    op->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* 0: packed. */
	if (!shape.srcPitch)
		shape.srcPitch = shape.WidthInBytes;
	if (!shape.dstPitch)
		shape.dstPitch = shape.WidthInBytes;
	if (!shape.srcHeight)
		shape.srcHeight = shape.Height;
	if (!shape.dstHeight)
		shape.dstHeight = shape.Height;
	return sim_copy_call(hStream, &shape, SIM_COPY_ASYNC);
}

static CUresult box_batch(size_t numOps, const CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
			  unsigned long long flags, CUstream hStream)
{
	CUresult result = batch_stream(hStream);

	if (failIdx)
		*failIdx = SIZE_MAX;
	if (result != CUDA_SUCCESS)
		return result;
	if (!numOps || !opList || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < numOps; i++) {
		result = box(&opList[i], hStream);
		if (result != CUDA_SUCCESS) {
			if (failIdx)
				*failIdx = i;
			return result;
		}
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
				      size_t *failIdx, unsigned long long flags, CUstream hStream)
{
	return box_batch(numOps, opList, failIdx, flags, hStream);
}

SIM_API CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
					 unsigned long long flags, CUstream hStream)
{
	return box_batch(numOps, opList, NULL, flags, hStream);
}

SIM_API CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
					       CUstream hStream)
{
	return box_batch(1, op, NULL, flags, hStream);
}
