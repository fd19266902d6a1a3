/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/call.h"

#include "alloc.h"

#define CALL_TRIES 3u

CUresult gksm_pin_relaxed(struct gksm *process, const struct gksm_span *spans, size_t count)
{
	struct gksm_relaxed relaxed;
	CUresult result;

	gksm_relaxed_enter(process, &relaxed);
	result = gksm_pin(process, spans, count);
	gksm_relaxed_leave(&relaxed);
	return result;
}

CUresult gksm_call_begin(struct gksm_call *call, struct gksm *process,
			 const struct gksm_spans *spans, CUstream stream)
{
	struct gksm_relaxed relaxed;
	CUresult result;

	call->mode = GKSM_CALL_FAILED;
	if (spans->lost)
		return CUDA_ERROR_OUT_OF_MEMORY;
	gksm_stream_used(process, stream);
	if (!gksm_spans_ours(process, spans->items, spans->count)) {
		call->mode = GKSM_CALL_NOT_OURS;
		return CUDA_SUCCESS;
	}
	gksm_relaxed_enter(process, &relaxed);
	if (gksm_stream_capturing(process, stream)) {
		result = gksm_pin(process, spans->items, spans->count);
		if (result == CUDA_SUCCESS)
			call->mode = GKSM_CALL_RECORDED;
	} else {
		result = gksm_access_begin(process, spans->items, spans->count, &call->access);
		if (result == CUDA_SUCCESS)
			call->mode = GKSM_CALL_HELD;
	}
	gksm_relaxed_leave(&relaxed);
	return result;
}

bool gksm_call_end(struct gksm_call *call, struct gksm *process, const struct gksm_spans *spans,
		   CUstream stream, CUresult result)
{
	struct gksm_relaxed relaxed;

	switch (call->mode) {
	case GKSM_CALL_RECORDED:
		gksm_unpin(process, spans->items, spans->count);
		return false;
	case GKSM_CALL_HELD:
		gksm_relaxed_enter(process, &relaxed);
		if (result != CUDA_SUCCESS)
			gksm_access_refused(&call->access);
		gksm_access_end(&call->access, stream);
		gksm_relaxed_leave(&relaxed);
		return result == CUDA_ERROR_INVALID_VALUE && call->tries++ < CALL_TRIES;
	case GKSM_CALL_NOT_OURS:
	case GKSM_CALL_FAILED:
		break;
	}
	return false;
}

bool gksm_call_load(struct gksm *process, CUdeviceptr destination, CUdeviceptr source, size_t bytes,
		    CUstream stream, CUresult *result)
{
	struct gksm_relaxed relaxed;
	bool served;

	gksm_stream_used(process, stream);
	if (!gksm_is_ours(process, destination) || gksm_is_ours(process, source) ||
	    gksm_stream_capturing(process, stream))
		return false;
	gksm_relaxed_enter(process, &relaxed);
	served = gksm_load(process, destination, (const void *)(uintptr_t)source, bytes, stream,
			   result);
	gksm_relaxed_leave(&relaxed);
	return served;
}

bool gksm_call_zero(struct gksm *process, CUdeviceptr destination, size_t bytes, CUstream stream,
		    CUresult *result)
{
	struct gksm_relaxed relaxed;
	bool served;

	gksm_stream_used(process, stream);
	if (!gksm_is_ours(process, destination) || gksm_stream_capturing(process, stream))
		return false;
	gksm_relaxed_enter(process, &relaxed);
	served = gksm_zero(process, destination, bytes, stream, result);
	gksm_relaxed_leave(&relaxed);
	return served;
}
