/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memsets. Linear ones of zeros leave pages unbacked that are (zero.c).
 */
#include "interpose/call.h"

/* 0, which is nothing to set, where the driver will refuse the count. */
static size_t bytes_of(size_t count, size_t element_bytes)
{
	size_t bytes;

	return __builtin_mul_overflow(count, element_bytes, &bytes) ? 0 : bytes;
}

static CUresult set_8(__typeof__(cuMemsetD8_v2) *real, CUdeviceptr destination, unsigned char value,
		      size_t count, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, value, count);
	if (!value && gksm_call_zero(process, destination, count, ordered, &result))
		return result;
	return GKSM_SPANS_CALL(process, gksm_spans_memset_2d(&spans, destination, 0, 1, count, 1),
			       ordered, real(destination, value, count));
}

GKSM_WRAP(cuMemsetD8_v2)(CUdeviceptr destination, unsigned char value, size_t count)
{
	return set_8(GKSM_REAL(cuMemsetD8_v2), destination, value, count, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemsetD8_v2_ptds)(CUdeviceptr destination, unsigned char value, size_t count)
{
	return set_8(GKSM_REAL(cuMemsetD8_v2_ptds), destination, value, count,
		     CU_STREAM_PER_THREAD);
}

static CUresult set_8_async(__typeof__(cuMemsetD8Async) *real, CUdeviceptr destination,
			    unsigned char value, size_t count, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, value, count, stream);
	if (!value && gksm_call_zero(process, destination, count, ordered, &result))
		return result;
	return GKSM_SPANS_CALL(process, gksm_spans_memset_2d(&spans, destination, 0, 1, count, 1),
			       ordered, real(destination, value, count, stream));
}

GKSM_WRAP(cuMemsetD8Async)(CUdeviceptr destination, unsigned char value, size_t count,
			   CUstream stream)
{
	return set_8_async(GKSM_REAL(cuMemsetD8Async), destination, value, count, stream,
			   gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemsetD8Async_ptsz)(CUdeviceptr destination, unsigned char value, size_t count,
				CUstream stream)
{
	return set_8_async(GKSM_REAL(cuMemsetD8Async_ptsz), destination, value, count, stream,
			   gksm_stream_per_thread(stream));
}

static CUresult set_2d_8(__typeof__(cuMemsetD2D8_v2) *real, CUdeviceptr destination, size_t pitch,
			 unsigned char value, size_t width, size_t height, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, pitch, value, width, height);
	return GKSM_SPANS_CALL(process,
			       gksm_spans_memset_2d(&spans, destination, pitch, 1, width, height),
			       ordered, real(destination, pitch, value, width, height));
}

GKSM_WRAP(cuMemsetD2D8_v2)(CUdeviceptr destination, size_t pitch, unsigned char value, size_t width,
			   size_t height)
{
	return set_2d_8(GKSM_REAL(cuMemsetD2D8_v2), destination, pitch, value, width, height,
			CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemsetD2D8_v2_ptds)(CUdeviceptr destination, size_t pitch, unsigned char value,
				size_t width, size_t height)
{
	return set_2d_8(GKSM_REAL(cuMemsetD2D8_v2_ptds), destination, pitch, value, width, height,
			CU_STREAM_PER_THREAD);
}

static CUresult set_2d_8_async(__typeof__(cuMemsetD2D8Async) *real, CUdeviceptr destination,
			       size_t pitch, unsigned char value, size_t width, size_t height,
			       CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, pitch, value, width, height, stream);
	return GKSM_SPANS_CALL(process,
			       gksm_spans_memset_2d(&spans, destination, pitch, 1, width, height),
			       ordered, real(destination, pitch, value, width, height, stream));
}

GKSM_WRAP(cuMemsetD2D8Async)(CUdeviceptr destination, size_t pitch, unsigned char value,
			     size_t width, size_t height, CUstream stream)
{
	return set_2d_8_async(GKSM_REAL(cuMemsetD2D8Async), destination, pitch, value, width,
			      height, stream, gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemsetD2D8Async_ptsz)(CUdeviceptr destination, size_t pitch, unsigned char value,
				  size_t width, size_t height, CUstream stream)
{
	return set_2d_8_async(GKSM_REAL(cuMemsetD2D8Async_ptsz), destination, pitch, value, width,
			      height, stream, gksm_stream_per_thread(stream));
}

static CUresult set_16(__typeof__(cuMemsetD16_v2) *real, CUdeviceptr destination,
		       unsigned short value, size_t count, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, value, count);
	if (!value && gksm_call_zero(process, destination, bytes_of(count, 2), ordered, &result))
		return result;
	return GKSM_SPANS_CALL(process, gksm_spans_memset_2d(&spans, destination, 0, 2, count, 1),
			       ordered, real(destination, value, count));
}

GKSM_WRAP(cuMemsetD16_v2)(CUdeviceptr destination, unsigned short value, size_t count)
{
	return set_16(GKSM_REAL(cuMemsetD16_v2), destination, value, count, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemsetD16_v2_ptds)(CUdeviceptr destination, unsigned short value, size_t count)
{
	return set_16(GKSM_REAL(cuMemsetD16_v2_ptds), destination, value, count,
		      CU_STREAM_PER_THREAD);
}

static CUresult set_16_async(__typeof__(cuMemsetD16Async) *real, CUdeviceptr destination,
			     unsigned short value, size_t count, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, value, count, stream);
	if (!value && gksm_call_zero(process, destination, bytes_of(count, 2), ordered, &result))
		return result;
	return GKSM_SPANS_CALL(process, gksm_spans_memset_2d(&spans, destination, 0, 2, count, 1),
			       ordered, real(destination, value, count, stream));
}

GKSM_WRAP(cuMemsetD16Async)(CUdeviceptr destination, unsigned short value, size_t count,
			    CUstream stream)
{
	return set_16_async(GKSM_REAL(cuMemsetD16Async), destination, value, count, stream,
			    gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemsetD16Async_ptsz)(CUdeviceptr destination, unsigned short value, size_t count,
				 CUstream stream)
{
	return set_16_async(GKSM_REAL(cuMemsetD16Async_ptsz), destination, value, count, stream,
			    gksm_stream_per_thread(stream));
}

static CUresult set_2d_16(__typeof__(cuMemsetD2D16_v2) *real, CUdeviceptr destination, size_t pitch,
			  unsigned short value, size_t width, size_t height, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, pitch, value, width, height);
	return GKSM_SPANS_CALL(process,
			       gksm_spans_memset_2d(&spans, destination, pitch, 2, width, height),
			       ordered, real(destination, pitch, value, width, height));
}

GKSM_WRAP(cuMemsetD2D16_v2)(CUdeviceptr destination, size_t pitch, unsigned short value,
			    size_t width, size_t height)
{
	return set_2d_16(GKSM_REAL(cuMemsetD2D16_v2), destination, pitch, value, width, height,
			 CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemsetD2D16_v2_ptds)(CUdeviceptr destination, size_t pitch, unsigned short value,
				 size_t width, size_t height)
{
	return set_2d_16(GKSM_REAL(cuMemsetD2D16_v2_ptds), destination, pitch, value, width, height,
			 CU_STREAM_PER_THREAD);
}

static CUresult set_2d_16_async(__typeof__(cuMemsetD2D16Async) *real, CUdeviceptr destination,
				size_t pitch, unsigned short value, size_t width, size_t height,
				CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, pitch, value, width, height, stream);
	return GKSM_SPANS_CALL(process,
			       gksm_spans_memset_2d(&spans, destination, pitch, 2, width, height),
			       ordered, real(destination, pitch, value, width, height, stream));
}

GKSM_WRAP(cuMemsetD2D16Async)(CUdeviceptr destination, size_t pitch, unsigned short value,
			      size_t width, size_t height, CUstream stream)
{
	return set_2d_16_async(GKSM_REAL(cuMemsetD2D16Async), destination, pitch, value, width,
			       height, stream, gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemsetD2D16Async_ptsz)(CUdeviceptr destination, size_t pitch, unsigned short value,
				   size_t width, size_t height, CUstream stream)
{
	return set_2d_16_async(GKSM_REAL(cuMemsetD2D16Async_ptsz), destination, pitch, value, width,
			       height, stream, gksm_stream_per_thread(stream));
}

static CUresult set_32(__typeof__(cuMemsetD32_v2) *real, CUdeviceptr destination,
		       unsigned int value, size_t count, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, value, count);
	if (!value && gksm_call_zero(process, destination, bytes_of(count, 4), ordered, &result))
		return result;
	return GKSM_SPANS_CALL(process, gksm_spans_memset_2d(&spans, destination, 0, 4, count, 1),
			       ordered, real(destination, value, count));
}

GKSM_WRAP(cuMemsetD32_v2)(CUdeviceptr destination, unsigned int value, size_t count)
{
	return set_32(GKSM_REAL(cuMemsetD32_v2), destination, value, count, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemsetD32_v2_ptds)(CUdeviceptr destination, unsigned int value, size_t count)
{
	return set_32(GKSM_REAL(cuMemsetD32_v2_ptds), destination, value, count,
		      CU_STREAM_PER_THREAD);
}

static CUresult set_32_async(__typeof__(cuMemsetD32Async) *real, CUdeviceptr destination,
			     unsigned int value, size_t count, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, value, count, stream);
	if (!value && gksm_call_zero(process, destination, bytes_of(count, 4), ordered, &result))
		return result;
	return GKSM_SPANS_CALL(process, gksm_spans_memset_2d(&spans, destination, 0, 4, count, 1),
			       ordered, real(destination, value, count, stream));
}

GKSM_WRAP(cuMemsetD32Async)(CUdeviceptr destination, unsigned int value, size_t count,
			    CUstream stream)
{
	return set_32_async(GKSM_REAL(cuMemsetD32Async), destination, value, count, stream,
			    gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemsetD32Async_ptsz)(CUdeviceptr destination, unsigned int value, size_t count,
				 CUstream stream)
{
	return set_32_async(GKSM_REAL(cuMemsetD32Async_ptsz), destination, value, count, stream,
			    gksm_stream_per_thread(stream));
}

static CUresult set_2d_32(__typeof__(cuMemsetD2D32_v2) *real, CUdeviceptr destination, size_t pitch,
			  unsigned int value, size_t width, size_t height, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, pitch, value, width, height);
	return GKSM_SPANS_CALL(process,
			       gksm_spans_memset_2d(&spans, destination, pitch, 4, width, height),
			       ordered, real(destination, pitch, value, width, height));
}

GKSM_WRAP(cuMemsetD2D32_v2)(CUdeviceptr destination, size_t pitch, unsigned int value, size_t width,
			    size_t height)
{
	return set_2d_32(GKSM_REAL(cuMemsetD2D32_v2), destination, pitch, value, width, height,
			 CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemsetD2D32_v2_ptds)(CUdeviceptr destination, size_t pitch, unsigned int value,
				 size_t width, size_t height)
{
	return set_2d_32(GKSM_REAL(cuMemsetD2D32_v2_ptds), destination, pitch, value, width, height,
			 CU_STREAM_PER_THREAD);
}

static CUresult set_2d_32_async(__typeof__(cuMemsetD2D32Async) *real, CUdeviceptr destination,
				size_t pitch, unsigned int value, size_t width, size_t height,
				CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, pitch, value, width, height, stream);
	return GKSM_SPANS_CALL(process,
			       gksm_spans_memset_2d(&spans, destination, pitch, 4, width, height),
			       ordered, real(destination, pitch, value, width, height, stream));
}

GKSM_WRAP(cuMemsetD2D32Async)(CUdeviceptr destination, size_t pitch, unsigned int value,
			      size_t width, size_t height, CUstream stream)
{
	return set_2d_32_async(GKSM_REAL(cuMemsetD2D32Async), destination, pitch, value, width,
			       height, stream, gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemsetD2D32Async_ptsz)(CUdeviceptr destination, size_t pitch, unsigned int value,
				   size_t width, size_t height, CUstream stream)
{
	return set_2d_32_async(GKSM_REAL(cuMemsetD2D32Async_ptsz), destination, pitch, value, width,
			       height, stream, gksm_stream_per_thread(stream));
}
