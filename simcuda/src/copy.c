/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy engine. Every copy is a box of rows between two ends. Accessibility is
 * looked at when a call is made and found out again when the copy runs.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "device.h"
#include "host.h"
#include "queue.h"

/* The most of pageable memory that one call stages; more makes the call wait. */
#define STAGE_MAX ((size_t)64 << 20)
/* A copy across PCIe up to this size need not go through the stream's thread. */
#define INLINE_MAX ((size_t)4 << 20)

struct end {
	CUdeviceptr base; /* a device or a host address */
	size_t pitch, slice;
	bool device; /* memory of a device, as opposed to the host's */
	bool pageable;
};

struct copy_op {
	struct sim_op op;
	struct end from, to;
	size_t width, height, depth;
	bool graph;
	void *staging;
};

static CUresult end_resolve(struct end *end, CUmemorytype type, const void *host,
			    CUdeviceptr device, CUarray array, size_t pitch, size_t height,
			    const size_t at[3], const struct copy_op *box)
{
	bool any_host = type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_UNIFIED;

	switch (type) {
	case CU_MEMORYTYPE_HOST:
		end->base = (CUdeviceptr)(uintptr_t)host;
		break;
	case CU_MEMORYTYPE_DEVICE:
	case CU_MEMORYTYPE_UNIFIED:
		end->base = device;
		break;
	case CU_MEMORYTYPE_ARRAY:
		if (!sim_array_layout(array, &end->base, &pitch, &height))
			return CUDA_ERROR_INVALID_HANDLE;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!end->base)
		return CUDA_ERROR_INVALID_VALUE;
	/* Pitch and height may be left out where they do not matter. */
	if (!pitch && box->height == 1)
		pitch = at[0] + box->width;
	if (!height && box->depth == 1)
		height = at[1] + box->height;
	if ((box->height > 1 || box->depth > 1) && pitch < at[0] + box->width)
		return CUDA_ERROR_INVALID_VALUE;
	if (box->depth > 1 && height < at[1] + box->height)
		return CUDA_ERROR_INVALID_VALUE;
	end->pitch = pitch;
	end->slice = pitch * height;
	end->base += at[0] + at[1] * end->pitch + at[2] * end->slice;
	end->device = sim_va_inside(end->base);
	end->pageable = !end->device && !sim_host_known((void *)(uintptr_t)end->base, box->width);
	return end->pageable && !any_host ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult resolve(struct copy_op *op, const struct sim_copy *copy)
{
	const CUDA_MEMCPY3D_PEER *shape = &copy->shape;
	size_t from[3] = {shape->srcXInBytes, shape->srcY, shape->srcZ};
	size_t to[3] = {shape->dstXInBytes, shape->dstY, shape->dstZ};
	CUresult result;

	op->width = shape->WidthInBytes;
	op->height = shape->Height;
	op->depth = shape->Depth;
	op->graph = copy->graph;
	if (!op->width || !op->height || !op->depth)
		return CUDA_SUCCESS;
	result = end_resolve(&op->from, shape->srcMemoryType, shape->srcHost, shape->srcDevice,
			     shape->srcArray, shape->srcPitch, shape->srcHeight, from, op);
	if (result != CUDA_SUCCESS)
		return result;
	return end_resolve(&op->to, shape->dstMemoryType, shape->dstHost, shape->dstDevice,
			   shape->dstArray, shape->dstPitch, shape->dstHeight, to, op);
}

enum sim_access sim_span_access(CUdeviceptr address, size_t bytes, bool host)
{
	enum sim_access weakest = SIM_ACCESS_READ_WRITE;
	CUdeviceptr at = address, end = address + bytes;

	if (!sim_va_inside(address))
		return host || sim_host_known((void *)(uintptr_t)address, bytes)
			       ? SIM_ACCESS_READ_WRITE
			       : SIM_ACCESS_NONE;
	pthread_mutex_lock(&sim_root.memory_lock);
	while (at < end && weakest != SIM_ACCESS_NONE) {
		struct sim_allocation found;

		/* Neighbouring mappings are one range; neighbouring allocations are not. */
		if (!sim_allocation_find(at, &found) ||
		    (at != address && found.mapping->kind != SIM_MAPPING_VMM)) {
			weakest = SIM_ACCESS_NONE;
			break;
		}
		if (found.mapping->access < weakest)
			weakest = found.mapping->access;
		at = found.base + found.bytes;
	}
	pthread_mutex_unlock(&sim_root.memory_lock);
	return weakest;
}

/* Whether the device may read, or write, all rows of the box. */
static bool end_allowed(const struct end *end, const struct copy_op *box, enum sim_access needed)
{
	size_t rows = box->height;

	if (!end->device)
		return true;
	for (size_t z = 0; z < box->depth; z++) {
		CUdeviceptr slice = end->base + z * end->slice;

		/* Rows that lie side by side, or nearly: one look. */
		if (end->pitch < SIM_PAGE) {
			if (sim_span_access(slice, (rows - 1) * end->pitch + box->width, false) <
			    needed)
				return false;
			continue;
		}
		for (size_t y = 0; y < rows; y++)
			if (sim_span_access(slice + y * end->pitch, box->width, false) < needed)
				return false;
	}
	return true;
}

CUresult sim_copy_check(const struct sim_copy *copy)
{
	struct copy_op op = {0};
	CUresult result = resolve(&op, copy);

	if (result != CUDA_SUCCESS || !op.width || !op.height || !op.depth)
		return result;
	if (!end_allowed(&op.from, &op, SIM_ACCESS_READ) ||
	    !end_allowed(&op.to, &op, SIM_ACCESS_READ_WRITE))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static void copy_body(void *argument)
{
	const struct copy_op *op = argument;
	/* Copies within and between devices are kernels; only those that cross PCIe have
	 * an engine of their own. */
	bool on_sms = op->from.device && op->to.device;

	for (size_t z = 0; z < op->depth; z++) {
		for (size_t y = 0; y < op->height; y++) {
			CUdeviceptr from = op->from.base + z * op->from.slice + y * op->from.pitch;
			CUdeviceptr to = op->to.base + z * op->to.slice + y * op->to.pitch;

			for (size_t done = 0; done < op->width; done += SIM_STEP) {
				size_t step = op->width - done;

				if (step > SIM_STEP)
					step = SIM_STEP;
				if (on_sms)
					sim_sm_gate();
				sim_bytes_copy(sim_at(to + done), sim_at(from + done), step);
			}
		}
	}
}

static CUresult copy_run(struct sim_op *base)
{
	struct copy_op *op = (struct copy_op *)base;
	CUresult result = sim_touch(base->stream->context, SIM_TOUCH_COPY, copy_body, op);

	if (op->to.device && !op->from.device)
		atomic_fetch_add(&base->stream->context->device->shared->host_to_device_bytes,
				 (uint64_t)op->width * op->height * op->depth);
	return result != CUDA_SUCCESS && op->graph ? CUDA_ERROR_LAUNCH_FAILED : result;
}

static void copy_release(struct sim_op *base)
{
	struct copy_op *op = (struct copy_op *)base;

	free(op->staging);
	free(op);
}

/* Reads the source now. false: no memory for it. */
static bool stage(struct copy_op *op)
{
	unsigned char *at = malloc(op->width * op->height * op->depth);

	if (!at)
		return false;
	op->staging = at;
	for (size_t z = 0; z < op->depth; z++) {
		for (size_t y = 0; y < op->height; y++) {
			uintptr_t row =
				(uintptr_t)op->from.base + z * op->from.slice + y * op->from.pitch;

			memcpy(at, (const void *)row, op->width);
			at += op->width;
		}
	}
	op->from.base = (CUdeviceptr)(uintptr_t)op->staging;
	op->from.pitch = op->width;
	op->from.slice = op->width * op->height;
	op->from.pageable = false;
	return true;
}

CUresult sim_copy_enqueue(struct sim_stream *stream, const struct sim_copy *copy, bool wait)
{
	struct copy_op *op = calloc(1, sizeof(*op));
	CUresult result;
	bool staged;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = resolve(op, copy);
	if (result != CUDA_SUCCESS || !op->width || !op->height || !op->depth) {
		free(op);
		return result;
	}
	op->op.run = copy_run;
	op->op.release = copy_release;
	/* Pageable memory is the caller's again when the call returns. */
	staged = !copy->graph && op->from.pageable && !wait &&
		 op->width * op->height * op->depth <= STAGE_MAX && stage(op);
	if (!copy->graph && ((op->from.pageable && !staged) || op->to.pageable))
		wait = true;
	if (!(op->from.device && op->to.device) &&
	    (wait || op->width * op->height * op->depth <= INLINE_MAX))
		op->op.flags |= SIM_OP_INLINE;
	return wait ? sim_enqueue_and_wait(stream, &op->op) : sim_enqueue(stream, &op->op);
}
