/* SPDX-License-Identifier: Apache-2.0 */
/* Stream memory operations: writing a value, waiting for one. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture.h"
#include "sim.h"

#define OPS_MAX 256
#define WAIT_KIND_MASK 3u

struct mem_op {
	struct sim_op op;
	unsigned count;
	CUstreamBatchMemOpParams ops[];
};

/* One look at, or one store to, memory: what sim_touch runs. */
struct access {
	const CUstreamBatchMemOpParams *op;
	bool satisfied;
};

static bool is_wide(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
	       op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static bool is_wait(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
	       op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

static bool is_write(const CUstreamBatchMemOpParams *op)
{
	return op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
	       op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static bool met(uint64_t there, uint64_t value, unsigned kind, bool wide)
{
	switch (kind) {
	case CU_STREAM_WAIT_VALUE_GEQ:
		return wide ? (int64_t)(there - value) >= 0
			    : (int32_t)((uint32_t)there - (uint32_t)value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return there == value;
	case CU_STREAM_WAIT_VALUE_AND:
		return (there & value) != 0;
	default: /* NOR */
		return wide ? ~(there | value) != 0 : (uint32_t)~(there | value) != 0;
	}
}

static void look_body(void *argument)
{
	struct access *access = argument;
	const struct CUstreamMemOpWaitValueParams_st *wait = &access->op->waitValue;
	bool wide = is_wide(access->op);
	void *at = sim_at(wait->address);
	uint64_t there =
		wide ? atomic_load((_Atomic uint64_t *)at) : atomic_load((_Atomic uint32_t *)at);

	access->satisfied =
		met(there, wide ? wait->value64 : wait->value, wait->flags & WAIT_KIND_MASK, wide);
}

static void write_body(void *argument)
{
	const struct CUstreamMemOpWriteValueParams_st *write =
		&((struct access *)argument)->op->writeValue;
	void *at = sim_at(write->address);

	if (is_wide(((struct access *)argument)->op))
		atomic_store((_Atomic uint64_t *)at, write->value64);
	else
		atomic_store((_Atomic uint32_t *)at, write->value);
}

static CUresult wait_for(struct sim_context *context, struct access *access)
{
	CUresult result;

	for (;;) {
		struct timespec pause = {.tv_nsec = 50000};

		result = sim_touch(context, SIM_TOUCH_COPY, look_body, access);
		if (result != CUDA_SUCCESS || access->satisfied)
			return result;
		if (atomic_load(&context->destroyed) || sim_context_error(context) != CUDA_SUCCESS)
			return CUDA_ERROR_LAUNCH_FAILED;
		nanosleep(&pause, NULL);
	}
}

static CUresult mem_ops_run(struct sim_op *base)
{
	struct mem_op *mem = (struct mem_op *)base;
	struct sim_context *context = base->stream->context;
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < mem->count && result == CUDA_SUCCESS; i++) {
		struct access access = {.op = &mem->ops[i]};

		if (is_wait(access.op))
			result = wait_for(context, &access);
		else if (is_write(access.op))
			result = sim_touch(context, SIM_TOUCH_COPY, write_body, &access);
	}
	return result;
}

static void mem_ops_release(struct sim_op *base)
{
	free(base);
}

CUresult sim_mem_ops_enqueue(struct sim_stream *stream, const CUstreamBatchMemOpParams *ops,
			     unsigned count)
{
	struct mem_op *mem = calloc(1, sizeof(*mem) + count * sizeof(*ops));

	if (!mem)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mem->op.run = mem_ops_run;
	mem->op.release = mem_ops_release;
	mem->count = count;
	memcpy(mem->ops, ops, count * sizeof(*ops));
	return sim_enqueue(stream, &mem->op);
}

static CUresult op_check(const CUstreamBatchMemOpParams *op)
{
	size_t width = is_wide(op) ? 8 : 4;

	if (is_wait(op)) {
		if (op->waitValue.flags &
			    ~(WAIT_KIND_MASK | (unsigned)CU_STREAM_WAIT_VALUE_FLUSH) ||
		    op->waitValue.address % width)
			return CUDA_ERROR_INVALID_VALUE;
		return sim_span_access(op->waitValue.address, width, false) >= SIM_ACCESS_READ
			       ? CUDA_SUCCESS
			       : CUDA_ERROR_INVALID_VALUE;
	}
	if (is_write(op)) {
		if (op->writeValue.flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER ||
		    op->writeValue.address % width)
			return CUDA_ERROR_INVALID_VALUE;
		return sim_span_access(op->writeValue.address, width, false) ==
				       SIM_ACCESS_READ_WRITE
			       ? CUDA_SUCCESS
			       : CUDA_ERROR_INVALID_VALUE;
	}
	if (op->operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES ||
	    op->operation == CU_STREAM_MEM_OP_BARRIER)
		return CUDA_SUCCESS;
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult call(CUstream handle, const CUstreamBatchMemOpParams *ops, unsigned count)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, false, &stream);

	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = op_check(&ops[i]);
	if (result == CUDA_SUCCESS)
		result = sim_capture_legacy_check(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (sim_capturing(stream))
		return sim_capture_mem_ops(stream, ops, count);
	return sim_mem_ops_enqueue(stream, ops, count);
}

static CUresult batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *ops,
		      unsigned flags)
{
	if (!ops || !count || count > OPS_MAX || flags)
		return sim_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : sim_ready();
	return call(stream, ops, count);
}

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags,
			    CUstreamBatchMemOpType operation)
{
	CUstreamBatchMemOpParams op = {0};

	op.writeValue.operation = operation;
	op.writeValue.address = address;
	op.writeValue.value64 = value;
	op.writeValue.flags = flags;
	return call(stream, &op, 1);
}

static CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags,
			   CUstreamBatchMemOpType operation)
{
	CUstreamBatchMemOpParams op = {0};

	op.waitValue.operation = operation;
	op.waitValue.address = address;
	op.waitValue.value64 = value;
	op.waitValue.flags = flags;
	return call(stream, &op, 1);
}

/* Both ABI versions behave alike here. */
#define VERSIONS(v)                                                                              \
	SIM_API CUresult cuStreamWriteValue32##v(CUstream stream, CUdeviceptr addr,              \
						 cuuint32_t value, unsigned int flags)           \
	{                                                                                        \
		return write_value(stream, addr, value, flags, CU_STREAM_MEM_OP_WRITE_VALUE_32); \
	}                                                                                        \
	SIM_API CUresult cuStreamWriteValue64##v(CUstream stream, CUdeviceptr addr,              \
						 cuuint64_t value, unsigned int flags)           \
	{                                                                                        \
		return write_value(stream, addr, value, flags, CU_STREAM_MEM_OP_WRITE_VALUE_64); \
	}                                                                                        \
	SIM_API CUresult cuStreamWaitValue32##v(CUstream stream, CUdeviceptr addr,               \
						cuuint32_t value, unsigned int flags)            \
	{                                                                                        \
		return wait_value(stream, addr, value, flags, CU_STREAM_MEM_OP_WAIT_VALUE_32);   \
	}                                                                                        \
	SIM_API CUresult cuStreamWaitValue64##v(CUstream stream, CUdeviceptr addr,               \
						cuuint64_t value, unsigned int flags)            \
	{                                                                                        \
		return wait_value(stream, addr, value, flags, CU_STREAM_MEM_OP_WAIT_VALUE_64);   \
	}                                                                                        \
	SIM_API CUresult cuStreamBatchMemOp##v(CUstream stream, unsigned int count,              \
					       CUstreamBatchMemOpParams *paramArray,             \
					       unsigned int flags)                               \
	{                                                                                        \
		return batch(stream, count, paramArray, flags);                                  \
	}

VERSIONS()
VERSIONS(_v2)
