/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear copies between host, device and arrays.
 *
 * Copies from the host are where weights arrive: they are offered to the load path
 * first, which takes those whose source is pageable (DESIGN.md 5). HtoA, AtoH and
 * AtoA touch no device pointer and are not wrapped.
 */
#include "interpose/call.h"

static CUresult htod(__typeof__(cuMemcpyHtoD_v2) *real, CUdeviceptr destination, const void *source,
		     size_t bytes, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, source, bytes);
	if (gksm_call_load(process, destination, GKSM_HOST(source), bytes, ordered, &result))
		return result;
	return GKSM_COPY_CALL(process, destination, GKSM_HOST(source), bytes, ordered,
			      real(destination, source, bytes));
}

GKSM_WRAP(cuMemcpyHtoD_v2)(CUdeviceptr destination, const void *source, size_t bytes)
{
	return htod(GKSM_REAL(cuMemcpyHtoD_v2), destination, source, bytes, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpyHtoD_v2_ptds)(CUdeviceptr destination, const void *source, size_t bytes)
{
	return htod(GKSM_REAL(cuMemcpyHtoD_v2_ptds), destination, source, bytes,
		    CU_STREAM_PER_THREAD);
}

static CUresult htod_async(__typeof__(cuMemcpyHtoDAsync_v2) *real, CUdeviceptr destination,
			   const void *source, size_t bytes, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (!process)
		return real(destination, source, bytes, stream);
	if (gksm_call_load(process, destination, GKSM_HOST(source), bytes, ordered, &result))
		return result;
	return GKSM_COPY_CALL(process, destination, GKSM_HOST(source), bytes, ordered,
			      real(destination, source, bytes, stream));
}

GKSM_WRAP(cuMemcpyHtoDAsync_v2)(CUdeviceptr destination, const void *source, size_t bytes,
				CUstream stream)
{
	return htod_async(GKSM_REAL(cuMemcpyHtoDAsync_v2), destination, source, bytes, stream,
			  gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyHtoDAsync_v2_ptsz)(CUdeviceptr destination, const void *source, size_t bytes,
				     CUstream stream)
{
	return htod_async(GKSM_REAL(cuMemcpyHtoDAsync_v2_ptsz), destination, source, bytes, stream,
			  gksm_stream_per_thread(stream));
}

static CUresult dtoh(__typeof__(cuMemcpyDtoH_v2) *real, void *destination, CUdeviceptr source,
		     size_t bytes, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, source, bytes);
	return GKSM_READ_CALL(process, GKSM_HOST(destination), source, bytes, ordered,
			      real((char *)destination + done, source + done, part));
}

GKSM_WRAP(cuMemcpyDtoH_v2)(void *destination, CUdeviceptr source, size_t bytes)
{
	return dtoh(GKSM_REAL(cuMemcpyDtoH_v2), destination, source, bytes, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpyDtoH_v2_ptds)(void *destination, CUdeviceptr source, size_t bytes)
{
	return dtoh(GKSM_REAL(cuMemcpyDtoH_v2_ptds), destination, source, bytes,
		    CU_STREAM_PER_THREAD);
}

static CUresult dtoh_async(__typeof__(cuMemcpyDtoHAsync_v2) *real, void *destination,
			   CUdeviceptr source, size_t bytes, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, source, bytes, stream);
	return GKSM_READ_CALL(process, GKSM_HOST(destination), source, bytes, ordered,
			      real((char *)destination + done, source + done, part, stream));
}

GKSM_WRAP(cuMemcpyDtoHAsync_v2)(void *destination, CUdeviceptr source, size_t bytes,
				CUstream stream)
{
	return dtoh_async(GKSM_REAL(cuMemcpyDtoHAsync_v2), destination, source, bytes, stream,
			  gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyDtoHAsync_v2_ptsz)(void *destination, CUdeviceptr source, size_t bytes,
				     CUstream stream)
{
	return dtoh_async(GKSM_REAL(cuMemcpyDtoHAsync_v2_ptsz), destination, source, bytes, stream,
			  gksm_stream_per_thread(stream));
}

static CUresult dtod(__typeof__(cuMemcpyDtoD_v2) *real, CUdeviceptr destination, CUdeviceptr source,
		     size_t bytes, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, source, bytes);
	return GKSM_COPY_CALL(process, destination, source, bytes, ordered,
			      real(destination, source, bytes));
}

GKSM_WRAP(cuMemcpyDtoD_v2)(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
	return dtod(GKSM_REAL(cuMemcpyDtoD_v2), destination, source, bytes, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpyDtoD_v2_ptds)(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
	return dtod(GKSM_REAL(cuMemcpyDtoD_v2_ptds), destination, source, bytes,
		    CU_STREAM_PER_THREAD);
}

static CUresult dtod_async(__typeof__(cuMemcpyDtoDAsync_v2) *real, CUdeviceptr destination,
			   CUdeviceptr source, size_t bytes, CUstream stream, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, source, bytes, stream);
	return GKSM_COPY_CALL(process, destination, source, bytes, ordered,
			      real(destination, source, bytes, stream));
}

GKSM_WRAP(cuMemcpyDtoDAsync_v2)(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
				CUstream stream)
{
	return dtod_async(GKSM_REAL(cuMemcpyDtoDAsync_v2), destination, source, bytes, stream,
			  gksm_stream_plain(stream));
}

GKSM_WRAP(cuMemcpyDtoDAsync_v2_ptsz)(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
				     CUstream stream)
{
	return dtod_async(GKSM_REAL(cuMemcpyDtoDAsync_v2_ptsz), destination, source, bytes, stream,
			  gksm_stream_per_thread(stream));
}

static CUresult dtoa(__typeof__(cuMemcpyDtoA_v2) *real, CUarray array, size_t offset,
		     CUdeviceptr source, size_t bytes, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(array, offset, source, bytes);
	return GKSM_COPY_CALL(process, 0, source, bytes, ordered,
			      real(array, offset, source, bytes));
}

GKSM_WRAP(cuMemcpyDtoA_v2)(CUarray array, size_t offset, CUdeviceptr source, size_t bytes)
{
	return dtoa(GKSM_REAL(cuMemcpyDtoA_v2), array, offset, source, bytes, CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpyDtoA_v2_ptds)(CUarray array, size_t offset, CUdeviceptr source, size_t bytes)
{
	return dtoa(GKSM_REAL(cuMemcpyDtoA_v2_ptds), array, offset, source, bytes,
		    CU_STREAM_PER_THREAD);
}

static CUresult atod(__typeof__(cuMemcpyAtoD_v2) *real, CUdeviceptr destination, CUarray array,
		     size_t offset, size_t bytes, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (!process)
		return real(destination, array, offset, bytes);
	return GKSM_COPY_CALL(process, destination, 0, bytes, ordered,
			      real(destination, array, offset, bytes));
}

GKSM_WRAP(cuMemcpyAtoD_v2)(CUdeviceptr destination, CUarray array, size_t offset, size_t bytes)
{
	return atod(GKSM_REAL(cuMemcpyAtoD_v2), destination, array, offset, bytes,
		    CU_STREAM_LEGACY);
}

GKSM_WRAP(cuMemcpyAtoD_v2_ptds)(CUdeviceptr destination, CUarray array, size_t offset, size_t bytes)
{
	return atod(GKSM_REAL(cuMemcpyAtoD_v2_ptds), destination, array, offset, bytes,
		    CU_STREAM_PER_THREAD);
}
