/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies whose addresses say by themselves what they are, and copies between
 * contexts.
 */
#include "interpose/call.h"

static CUresult unified(__typeof__(cuMemcpy) *real, CUdeviceptr destination, CUdeviceptr source,
			size_t bytes, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, source, bytes);
	if (gksm_call_load(process, destination, source, bytes, ordered, &result))
		return result;
	return GKSM_READ_CALL(process, destination, source, bytes, ordered,
			      real(destination + done, source + done, part));
}

GKSM_WRAP(cuMemcpy)(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
	return unified(GKSM_REAL(cuMemcpy), destination, source, bytes, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpy_ptds)(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
	return unified(GKSM_REAL(cuMemcpy_ptds), destination, source, bytes, CU_STREAM_PER_THREAD);
}

static CUresult unified_async(__typeof__(cuMemcpyAsync) *real, CUdeviceptr destination,
			      CUdeviceptr source, size_t bytes, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, source, bytes, stream);
	if (gksm_call_load(process, destination, source, bytes, ordered, &result))
		return result;
	return GKSM_READ_CALL(process, destination, source, bytes, ordered,
			      real(destination + done, source + done, part, stream));
}

GKSM_WRAP(cuMemcpyAsync)(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
	return unified_async(GKSM_REAL(cuMemcpyAsync), destination, source, bytes, stream,
			     gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyAsync_ptsz)(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
			      CUstream stream)
{
	return unified_async(GKSM_REAL(cuMemcpyAsync_ptsz), destination, source, bytes, stream,
			     gksm_stream_per_thread(stream));
}

static CUresult with_attributes(__typeof__(cuMemcpyWithAttributesAsync) *real,
				CUdeviceptr destination, CUdeviceptr source, size_t bytes,
				CUmemcpyAttributes *attributes, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, source, bytes, attributes, stream);
	return GKSM_COPY_CALL(process, destination, source, bytes, ordered,
			      real(destination, source, bytes, attributes, stream));
}

GKSM_WRAP(cuMemcpyWithAttributesAsync)(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
				       CUmemcpyAttributes *attributes, CUstream stream)
{
	return with_attributes(GKSM_REAL(cuMemcpyWithAttributesAsync), destination, source, bytes,
			       attributes, stream, gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyWithAttributesAsync_ptsz)(CUdeviceptr destination, CUdeviceptr source,
					    size_t bytes, CUmemcpyAttributes *attributes,
					    CUstream stream)
{
	return with_attributes(GKSM_REAL(cuMemcpyWithAttributesAsync_ptsz), destination, source,
			       bytes, attributes, stream, gksm_stream_per_thread(stream));
}

static CUresult peer(__typeof__(cuMemcpyPeer) *real, CUdeviceptr destination,
		     CUcontext destination_context, CUdeviceptr source, CUcontext source_context,
		     size_t bytes, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, destination_context, source, source_context, bytes);
	return GKSM_COPY_CALL(
		process, destination, source, bytes, ordered,
		real(destination, destination_context, source, source_context, bytes));
}

GKSM_WRAP(cuMemcpyPeer)(CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
			CUcontext source_context, size_t bytes)
{
	return peer(GKSM_REAL(cuMemcpyPeer), destination, destination_context, source,
		    source_context, bytes, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpyPeer_ptds)(CUdeviceptr destination, CUcontext destination_context,
			     CUdeviceptr source, CUcontext source_context, size_t bytes)
{
	return peer(GKSM_REAL(cuMemcpyPeer_ptds), destination, destination_context, source,
		    source_context, bytes, CU_STREAM_PER_THREAD);
}

static CUresult peer_async(__typeof__(cuMemcpyPeerAsync) *real, CUdeviceptr destination,
			   CUcontext destination_context, CUdeviceptr source,
			   CUcontext source_context, size_t bytes, CUstream stream,
			   CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, destination_context, source, source_context, bytes,
			    stream);
	return GKSM_COPY_CALL(
		process, destination, source, bytes, ordered,
		real(destination, destination_context, source, source_context, bytes, stream));
}

GKSM_WRAP(cuMemcpyPeerAsync)(CUdeviceptr destination, CUcontext destination_context,
			     CUdeviceptr source, CUcontext source_context, size_t bytes,
			     CUstream stream)
{
	return peer_async(GKSM_REAL(cuMemcpyPeerAsync), destination, destination_context, source,
			  source_context, bytes, stream, gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyPeerAsync_ptsz)(CUdeviceptr destination, CUcontext destination_context,
				  CUdeviceptr source, CUcontext source_context, size_t bytes,
				  CUstream stream)
{
	return peer_async(GKSM_REAL(cuMemcpyPeerAsync_ptsz), destination, destination_context,
			  source, source_context, bytes, stream, gksm_stream_per_thread(stream));
}
