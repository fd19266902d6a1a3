/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of one row: cuMemcpy*, HtoD, DtoH, DtoD, Peer, and of arrays. */
#include "capture.h"
#include "copy_api.h"

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define ARRAY CU_MEMORYTYPE_ARRAY
#define UNIFIED CU_MEMORYTYPE_UNIFIED

static CUdeviceptr address_of(const void *host)
{
	return (CUdeviceptr)(uintptr_t)host;
}

static bool on_device(CUmemorytype type, CUdeviceptr address)
{
	return type == ARRAY || (type != HOST && address >= sim_va_base && address < sim_va_end);
}

CUresult sim_copy_call(CUstream handle, const CUDA_MEMCPY3D_PEER *shape, enum sim_copy_mode mode)
{
	struct sim_copy copy = {.shape = *shape};
	struct sim_stream *stream;
	struct sim_context *context;
	CUresult result = sim_stream_get(handle, false, &stream);
	bool wait;

	if (result != CUDA_SUCCESS)
		return result;
	context = stream->context;
	if (mode == SIM_COPY_SYNC)
		result = sim_capture_unsafe_call(context);
	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result == CUDA_SUCCESS)
		result = sim_copy_check(&copy);
	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return mode == SIM_COPY_SYNC ? sim_capture_refuse(stream)
					     : sim_capture_copy(stream, &copy);
	/* Between devices even the synchronous call does not wait. */
	wait = mode == SIM_COPY_SYNC && !(on_device(shape->srcMemoryType, shape->srcDevice) &&
					  on_device(shape->dstMemoryType, shape->dstDevice));
	/* Another thread may sit in a cuMemFree and the like, behind running work; copy
	 * calls of the context then queue up behind it. */
	pthread_mutex_lock(&context->serial);
	pthread_mutex_unlock(&context->serial);
	return sim_copy_enqueue(stream, &copy, wait);
}

CUresult sim_copy_row(CUstream stream, CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type,
		      CUdeviceptr from, size_t bytes, enum sim_copy_mode mode)
{
	CUDA_MEMCPY3D_PEER shape = {
		.srcMemoryType = from_type,
		.srcHost = (const void *)(uintptr_t)from,
		.srcDevice = from,
		.dstMemoryType = to_type,
		.dstHost = (void *)(uintptr_t)to,
		.dstDevice = to,
		.WidthInBytes = bytes,
		.Height = 1,
		.Depth = 1,
	};

	return sim_copy_call(stream, &shape, mode);
}

SIM_API CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
	return sim_copy_row(NULL, DEVICE, dstDevice, HOST, address_of(srcHost), ByteCount,
			    SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
	return sim_copy_row(NULL, HOST, address_of(dstHost), DEVICE, srcDevice, ByteCount,
			    SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
	return sim_copy_row(NULL, DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
	return sim_copy_row(NULL, UNIFIED, dst, UNIFIED, src, ByteCount, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
				      CUstream hStream)
{
	return sim_copy_row(hStream, DEVICE, dstDevice, HOST, address_of(srcHost), ByteCount,
			    SIM_COPY_ASYNC);
}

SIM_API CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
				      CUstream hStream)
{
	return sim_copy_row(hStream, HOST, address_of(dstHost), DEVICE, srcDevice, ByteCount,
			    SIM_COPY_ASYNC);
}

SIM_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
				      size_t ByteCount, CUstream hStream)
{
	return sim_copy_row(hStream, DEVICE, dstDevice, DEVICE, srcDevice, ByteCount,
			    SIM_COPY_ASYNC);
}

SIM_API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
	return sim_copy_row(hStream, UNIFIED, dst, UNIFIED, src, ByteCount, SIM_COPY_ASYNC);
}

static CUresult peers_check(CUcontext dstContext, CUcontext srcContext)
{
	struct sim_context *context;
	CUresult result = sim_context_get(dstContext, &context);

	return result == CUDA_SUCCESS ? sim_context_get(srcContext, &context) : result;
}

SIM_API CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
			      CUcontext srcContext, size_t ByteCount)
{
	CUresult result = peers_check(dstContext, srcContext);

	if (result != CUDA_SUCCESS)
		return result;
	return sim_copy_row(NULL, DEVICE, dstDevice, DEVICE, srcDevice, ByteCount, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
				   CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
				   CUstream hStream)
{
	CUresult result = peers_check(dstContext, srcContext);

	if (result != CUDA_SUCCESS)
		return result;
	return sim_copy_row(hStream, DEVICE, dstDevice, DEVICE, srcDevice, ByteCount,
			    SIM_COPY_ASYNC);
}

/* ---- one row of an array ------------------------------------------------------- */

static CUresult array_copy(CUstream stream, CUarray to_array, CUarray from_array, CUdeviceptr to,
			   CUdeviceptr from, bool host, size_t to_offset, size_t from_offset,
			   size_t bytes, enum sim_copy_mode mode)
{
	CUmemorytype plain = host ? HOST : DEVICE;
	CUDA_MEMCPY3D_PEER shape = {
		.srcMemoryType = from_array ? ARRAY : plain,
		.srcArray = from_array,
		.srcXInBytes = from_offset,
		.srcHost = (const void *)(uintptr_t)from,
		.srcDevice = from,
		.dstMemoryType = to_array ? ARRAY : plain,
		.dstArray = to_array,
		.dstXInBytes = to_offset,
		.dstHost = (void *)(uintptr_t)to,
		.dstDevice = to,
		.WidthInBytes = bytes,
		.Height = 1,
		.Depth = 1,
	};

	return sim_copy_call(stream, &shape, mode);
}

SIM_API CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
				 size_t ByteCount)
{
	return array_copy(NULL, dstArray, NULL, 0, srcDevice, false, dstOffset, 0, ByteCount,
			  SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
				 size_t ByteCount)
{
	return array_copy(NULL, NULL, srcArray, dstDevice, 0, false, 0, srcOffset, ByteCount,
			  SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
				 size_t ByteCount)
{
	return array_copy(NULL, dstArray, NULL, 0, address_of(srcHost), true, dstOffset, 0,
			  ByteCount, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset,
				 size_t ByteCount)
{
	return array_copy(NULL, NULL, srcArray, address_of(dstHost), 0, true, 0, srcOffset,
			  ByteCount, SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray,
				 size_t srcOffset, size_t ByteCount)
{
	return array_copy(NULL, dstArray, srcArray, 0, 0, false, dstOffset, srcOffset, ByteCount,
			  SIM_COPY_SYNC);
}

SIM_API CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
				      size_t ByteCount, CUstream hStream)
{
	return array_copy(hStream, dstArray, NULL, 0, address_of(srcHost), true, dstOffset, 0,
			  ByteCount, SIM_COPY_ASYNC);
}

SIM_API CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset,
				      size_t ByteCount, CUstream hStream)
{
	return array_copy(hStream, NULL, srcArray, address_of(dstHost), 0, true, 0, srcOffset,
			  ByteCount, SIM_COPY_ASYNC);
}
