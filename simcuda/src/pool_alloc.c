/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation. Memory is taken when the call is made and given back when
 * the stream reaches the free.
 */
#include <stdlib.h>

#include "alloc.h"
#include "capture.h"
#include "pool.h"

static void lock(void)
{
	pthread_mutex_lock(&sim_root.memory_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&sim_root.memory_lock);
}

static void account(struct sim_pool *pool, size_t bytes)
{
	pool->used += bytes;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
}

void sim_pool_returned(struct sim_pool *pool, size_t bytes)
{
	if (pool)
		pool->used -= bytes;
}

static CUresult alloc_in(struct sim_pool *pool, struct sim_context *context, size_t bytes,
			 CUdeviceptr *address)
{
	struct sim_allocation found;
	CUresult result;

	if (pool->props.maxSize && bytes > pool->props.maxSize - pool->used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = sim_memory_alloc(context, bytes, address);
	if (result != CUDA_SUCCESS)
		return result;
	lock();
	if (sim_allocation_find(*address, &found)) {
		*found.pool = pool;
		account(pool, sim_allocation_size(&found));
	}
	unlock();
	return CUDA_SUCCESS;
}

static CUresult alloc_call(CUdeviceptr *dptr, size_t bytes, struct sim_pool *pool, CUstream handle)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, false, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capturing(stream))
		return sim_capture_alloc(stream, bytes, dptr);
	if (!pool) {
		lock();
		pool = sim_pool_current(stream->context->device);
		unlock();
	}
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return alloc_in(pool, stream->context, bytes, dptr);
}

SIM_API CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	return alloc_call(dptr, bytesize, NULL, hStream);
}

SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
					 CUstream hStream)
{
	if (sim_ready() == CUDA_SUCCESS && !sim_pool_get(pool))
		return CUDA_ERROR_INVALID_VALUE;
	return alloc_call(dptr, bytesize, sim_pool_get(pool), hStream);
}

struct free_op {
	struct sim_op op;
	CUdeviceptr address;
};

static CUresult free_run(struct sim_op *base)
{
	sim_memory_free(base->stream->context, ((struct free_op *)base)->address);
	return CUDA_SUCCESS;
}

static void free_release(struct sim_op *base)
{
	free(base);
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, false, &stream);
	struct sim_allocation found;
	struct free_op *op;

	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return sim_capture_free(stream, dptr);
	op = calloc(1, sizeof(*op));
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	lock();
	if (!sim_allocation_find(dptr, &found) || found.base != dptr || *found.freeing ||
	    (found.mapping->kind != SIM_MAPPING_ALLOC && !found.block))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*found.freeing = true;
	unlock();
	if (result != CUDA_SUCCESS) {
		free(op);
		return result;
	}
	op->op.run = free_run;
	op->op.release = free_release;
	op->address = dptr;
	return sim_enqueue(stream, &op->op);
}
