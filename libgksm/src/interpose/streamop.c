/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream memory operations: the front end of the GPU writes or polls one word. Its
 * faults are fatal, so the page is private while it does.
 */
#include "interpose/call.h"

static CUresult write_32(__typeof__(cuStreamWriteValue32) *real, CUstream stream,
			 CUdeviceptr address, cuuint32_t value, unsigned int flags,
			 CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(
		process, gksm_spans_add(&spans, address, 4, GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE),
		ordered, real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWriteValue32)(CUstream stream, CUdeviceptr address, cuuint32_t value,
				unsigned int flags)
{
	return write_32(GKSM_REAL(cuStreamWriteValue32), stream, address, value, flags,
			gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWriteValue32_ptsz)(CUstream stream, CUdeviceptr address, cuuint32_t value,
				     unsigned int flags)
{
	return write_32(GKSM_REAL(cuStreamWriteValue32_ptsz), stream, address, value, flags,
			gksm_stream_per_thread(stream));
}

static CUresult write_64(__typeof__(cuStreamWriteValue64) *real, CUstream stream,
			 CUdeviceptr address, cuuint64_t value, unsigned int flags,
			 CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(
		process, gksm_spans_add(&spans, address, 8, GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE),
		ordered, real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWriteValue64)(CUstream stream, CUdeviceptr address, cuuint64_t value,
				unsigned int flags)
{
	return write_64(GKSM_REAL(cuStreamWriteValue64), stream, address, value, flags,
			gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWriteValue64_ptsz)(CUstream stream, CUdeviceptr address, cuuint64_t value,
				     unsigned int flags)
{
	return write_64(GKSM_REAL(cuStreamWriteValue64_ptsz), stream, address, value, flags,
			gksm_stream_per_thread(stream));
}

static CUresult wait_32(__typeof__(cuStreamWaitValue32) *real, CUstream stream, CUdeviceptr address,
			cuuint32_t value, unsigned int flags, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(process, gksm_spans_wait_value(&spans, address, 4), ordered,
			       real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWaitValue32)(CUstream stream, CUdeviceptr address, cuuint32_t value,
			       unsigned int flags)
{
	return wait_32(GKSM_REAL(cuStreamWaitValue32), stream, address, value, flags,
		       gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWaitValue32_ptsz)(CUstream stream, CUdeviceptr address, cuuint32_t value,
				    unsigned int flags)
{
	return wait_32(GKSM_REAL(cuStreamWaitValue32_ptsz), stream, address, value, flags,
		       gksm_stream_per_thread(stream));
}

static CUresult wait_64(__typeof__(cuStreamWaitValue64) *real, CUstream stream, CUdeviceptr address,
			cuuint64_t value, unsigned int flags, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(process, gksm_spans_wait_value(&spans, address, 8), ordered,
			       real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWaitValue64)(CUstream stream, CUdeviceptr address, cuuint64_t value,
			       unsigned int flags)
{
	return wait_64(GKSM_REAL(cuStreamWaitValue64), stream, address, value, flags,
		       gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWaitValue64_ptsz)(CUstream stream, CUdeviceptr address, cuuint64_t value,
				    unsigned int flags)
{
	return wait_64(GKSM_REAL(cuStreamWaitValue64_ptsz), stream, address, value, flags,
		       gksm_stream_per_thread(stream));
}

static CUresult batch(__typeof__(cuStreamBatchMemOp) *real, CUstream stream, unsigned int count,
		      CUstreamBatchMemOpParams *operations, unsigned int flags, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, count, operations, flags);
	return GKSM_SPANS_CALL(process, gksm_spans_stream_ops(&spans, operations, count), ordered,
			       real(stream, count, operations, flags));
}

GKSM_WRAP(cuStreamBatchMemOp)(CUstream stream, unsigned int count,
			      CUstreamBatchMemOpParams *operations, unsigned int flags)
{
	return batch(GKSM_REAL(cuStreamBatchMemOp), stream, count, operations, flags,
		     gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamBatchMemOp_ptsz)(CUstream stream, unsigned int count,
				   CUstreamBatchMemOpParams *operations, unsigned int flags)
{
	return batch(GKSM_REAL(cuStreamBatchMemOp_ptsz), stream, count, operations, flags,
		     gksm_stream_per_thread(stream));
}

static CUresult write_32_v2(__typeof__(cuStreamWriteValue32_v2) *real, CUstream stream,
			    CUdeviceptr address, cuuint32_t value, unsigned int flags,
			    CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(
		process, gksm_spans_add(&spans, address, 4, GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE),
		ordered, real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr address, cuuint32_t value,
				   unsigned int flags)
{
	return write_32_v2(GKSM_REAL(cuStreamWriteValue32_v2), stream, address, value, flags,
			   gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWriteValue32_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint32_t value,
					unsigned int flags)
{
	return write_32_v2(GKSM_REAL(cuStreamWriteValue32_v2_ptsz), stream, address, value, flags,
			   gksm_stream_per_thread(stream));
}

static CUresult write_64_v2(__typeof__(cuStreamWriteValue64_v2) *real, CUstream stream,
			    CUdeviceptr address, cuuint64_t value, unsigned int flags,
			    CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(
		process, gksm_spans_add(&spans, address, 8, GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE),
		ordered, real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWriteValue64_v2)(CUstream stream, CUdeviceptr address, cuuint64_t value,
				   unsigned int flags)
{
	return write_64_v2(GKSM_REAL(cuStreamWriteValue64_v2), stream, address, value, flags,
			   gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWriteValue64_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint64_t value,
					unsigned int flags)
{
	return write_64_v2(GKSM_REAL(cuStreamWriteValue64_v2_ptsz), stream, address, value, flags,
			   gksm_stream_per_thread(stream));
}

static CUresult wait_32_v2(__typeof__(cuStreamWaitValue32_v2) *real, CUstream stream,
			   CUdeviceptr address, cuuint32_t value, unsigned int flags,
			   CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(process, gksm_spans_wait_value(&spans, address, 4), ordered,
			       real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr address, cuuint32_t value,
				  unsigned int flags)
{
	return wait_32_v2(GKSM_REAL(cuStreamWaitValue32_v2), stream, address, value, flags,
			  gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWaitValue32_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint32_t value,
				       unsigned int flags)
{
	return wait_32_v2(GKSM_REAL(cuStreamWaitValue32_v2_ptsz), stream, address, value, flags,
			  gksm_stream_per_thread(stream));
}

static CUresult wait_64_v2(__typeof__(cuStreamWaitValue64_v2) *real, CUstream stream,
			   CUdeviceptr address, cuuint64_t value, unsigned int flags,
			   CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, address, value, flags);
	return GKSM_SPANS_CALL(process, gksm_spans_wait_value(&spans, address, 8), ordered,
			       real(stream, address, value, flags));
}

GKSM_WRAP(cuStreamWaitValue64_v2)(CUstream stream, CUdeviceptr address, cuuint64_t value,
				  unsigned int flags)
{
	return wait_64_v2(GKSM_REAL(cuStreamWaitValue64_v2), stream, address, value, flags,
			  gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWaitValue64_v2_ptsz)(CUstream stream, CUdeviceptr address, cuuint64_t value,
				       unsigned int flags)
{
	return wait_64_v2(GKSM_REAL(cuStreamWaitValue64_v2_ptsz), stream, address, value, flags,
			  gksm_stream_per_thread(stream));
}

static CUresult batch_v2(__typeof__(cuStreamBatchMemOp_v2) *real, CUstream stream,
			 unsigned int count, CUstreamBatchMemOpParams *operations,
			 unsigned int flags, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(stream, count, operations, flags);
	return GKSM_SPANS_CALL(process, gksm_spans_stream_ops(&spans, operations, count), ordered,
			       real(stream, count, operations, flags));
}

GKSM_WRAP(cuStreamBatchMemOp_v2)(CUstream stream, unsigned int count,
				 CUstreamBatchMemOpParams *operations, unsigned int flags)
{
	return batch_v2(GKSM_REAL(cuStreamBatchMemOp_v2), stream, count, operations, flags,
			gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamBatchMemOp_v2_ptsz)(CUstream stream, unsigned int count,
				      CUstreamBatchMemOpParams *operations, unsigned int flags)
{
	return batch_v2(GKSM_REAL(cuStreamBatchMemOp_v2_ptsz), stream, count, operations, flags,
			gksm_stream_per_thread(stream));
}
