/* SPDX-License-Identifier: Apache-2.0 */
/* Sets: kernels of the driver's own, so they need free SMs. None of the calls waits. */
#include <stdlib.h>

#include "capture.h"
#include "sim.h"

struct set_op {
	struct sim_op op;
	struct sim_set set;
};

static CUresult rows_check(const struct sim_set *set, size_t bytes)
{
	if (set->address % set->element || (set->height > 1 && set->pitch % set->element))
		return CUDA_ERROR_INVALID_VALUE;
	if (set->height > 1 && set->pitch < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t y = 0; y < set->height; y++)
		if (sim_span_access(set->address + y * set->pitch, bytes, false) !=
		    SIM_ACCESS_READ_WRITE)
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_set_check(const struct sim_set *set)
{
	size_t bytes;

	if (set->element != 1 && set->element != 2 && set->element != 4)
		return CUDA_ERROR_INVALID_VALUE;
	if (!set->width || !set->height)
		return CUDA_SUCCESS;
	if (__builtin_mul_overflow(set->width, (size_t)set->element, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return rows_check(set, bytes);
}

static void set_body(void *argument)
{
	const struct sim_set *set = argument;
	size_t step = SIM_STEP / set->element;

	for (size_t y = 0; y < set->height; y++) {
		CUdeviceptr row = set->address + y * set->pitch;

		for (size_t done = 0; done < set->width; done += step) {
			size_t count = set->width - done;

			sim_sm_gate();
			sim_bytes_set(sim_at(row + done * set->element), &set->value, set->element,
				      count < step ? count : step);
		}
	}
}

static CUresult set_run(struct sim_op *base)
{
	struct set_op *op = (struct set_op *)base;
	/* As strict as a copy: the driver's own kernels are not what a guard repairs, and
	 * the calls that lead here have been refused on read-only pages. */
	CUresult result = sim_touch(base->stream->context, SIM_TOUCH_COPY, set_body, &op->set);

	return result != CUDA_SUCCESS && op->set.graph ? CUDA_ERROR_LAUNCH_FAILED : result;
}

static void set_release(struct sim_op *base)
{
	free(base);
}

CUresult sim_set_enqueue(struct sim_stream *stream, const struct sim_set *set)
{
	struct set_op *op = calloc(1, sizeof(*op));

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	op->op.run = set_run;
	op->op.release = set_release;
	op->set = *set;
	return sim_enqueue(stream, &op->op);
}

static CUresult call(CUstream handle, CUdeviceptr address, size_t pitch, unsigned value,
		     unsigned element, size_t width, size_t height)
{
	struct sim_set set = {
		.address = address,
		.pitch = pitch,
		.value = value,
		.element = element,
		.width = width,
		.height = height,
	};
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, false, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_set_check(&set);
	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result != CUDA_SUCCESS || !width || !height)
		return result;
	if (sim_capturing(stream))
		return sim_capture_set(stream, &set);
	return sim_set_enqueue(stream, &set);
}

static CUresult call_now(CUdeviceptr address, size_t pitch, unsigned value, unsigned element,
			 size_t width, size_t height)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(NULL, false, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_capture_unsafe_call(stream->context);
	if (result == CUDA_SUCCESS && sim_capturing(stream))
		result = sim_capture_refuse(stream);
	if (result != CUDA_SUCCESS)
		return result;
	return call(NULL, address, pitch, value, element, width, height);
}

SIM_API CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
	return call_now(dstDevice, 0, uc, 1, N, 1);
}

SIM_API CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
	return call_now(dstDevice, 0, us, 2, N, 1);
}

SIM_API CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
	return call_now(dstDevice, 0, ui, 4, N, 1);
}

SIM_API CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
				 size_t Width, size_t Height)
{
	return call_now(dstDevice, dstPitch, uc, 1, Width, Height);
}

SIM_API CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
				  size_t Width, size_t Height)
{
	return call_now(dstDevice, dstPitch, us, 2, Width, Height);
}

SIM_API CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
				  size_t Width, size_t Height)
{
	return call_now(dstDevice, dstPitch, ui, 4, Width, Height);
}

SIM_API CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
				 CUstream hStream)
{
	return call(hStream, dstDevice, 0, uc, 1, N, 1);
}

SIM_API CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
				  CUstream hStream)
{
	return call(hStream, dstDevice, 0, us, 2, N, 1);
}

SIM_API CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
				  CUstream hStream)
{
	return call(hStream, dstDevice, 0, ui, 4, N, 1);
}

SIM_API CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
				   size_t Width, size_t Height, CUstream hStream)
{
	return call(hStream, dstDevice, dstPitch, uc, 1, Width, Height);
}

SIM_API CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
				    size_t Width, size_t Height, CUstream hStream)
{
	return call(hStream, dstDevice, dstPitch, us, 2, Width, Height);
}

SIM_API CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
				    size_t Width, size_t Height, CUstream hStream)
{
	return call(hStream, dstDevice, dstPitch, ui, 4, Width, Height);
}
