/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one shape of every wrapper whose entry point reads or writes device memory:
 *
 *     return GKSM_SPANS_CALL(process, gksm_spans_...(&spans, ...), stream, real(...));
 *
 * The call is made between gksm_access_begin and gksm_access_end. A load of another
 * thread may turn a page read-only in between; the driver then refuses the call with
 * CUDA_ERROR_INVALID_VALUE before anything is enqueued, and it is made again.
 *
 * A call into a capturing stream is recorded and executed later: it gets no marks and
 * waits for nothing. Its pages are private while it is recorded, because the driver
 * looks at what an address is; what the graph then touches is pinned when it is
 * instantiated (graph.c).
 */
#ifndef GKSM_CALL_H
#define GKSM_CALL_H

#include <stdbool.h>

#include "access.h"
#include "interpose/spans.h"
#include "long_read.h"
#include "streams.h"
#include "wrap.h"

enum gksm_call_mode { GKSM_CALL_NOT_OURS, GKSM_CALL_RECORDED, GKSM_CALL_HELD, GKSM_CALL_FAILED };

struct gksm_call {
	enum gksm_call_mode mode;
	unsigned tries;
	struct gksm_access access;
};

CUresult gksm_call_begin(struct gksm_call *call, struct gksm *process,
			 const struct gksm_spans *spans, CUstream stream);

/* true: it is to be made once more. */
bool gksm_call_end(struct gksm_call *call, struct gksm *process, const struct gksm_spans *spans,
		   CUstream stream, CUresult result);

#define GKSM_ACCESS_CALL(process, spans, stream, real_call)                        \
	({                                                                         \
		struct gksm_call call_ = {.tries = 0};                             \
		CUresult result_;                                                  \
                                                                                   \
		do {                                                               \
			result_ = gksm_call_begin(&call_, process, spans, stream); \
			if (result_ == CUDA_SUCCESS)                               \
				result_ = (real_call);                             \
		} while (gksm_call_end(&call_, process, spans, stream, result_));  \
		result_;                                                           \
	})

/* The whole shape. `describe` is a statement that appends to a list named `spans`. */
#define GKSM_SPANS_CALL(process, describe, stream, real_call)                    \
	({                                                                       \
		struct gksm_spans spans;                                         \
		CUresult spanned_;                                               \
                                                                                 \
		gksm_spans_init(&spans);                                         \
		describe;                                                        \
		spanned_ = GKSM_ACCESS_CALL(process, &spans, stream, real_call); \
		gksm_spans_free(&spans);                                         \
		spanned_;                                                        \
	})

/* A linear copy. A side that is no device address: pass what it is, or 0. */
#define GKSM_COPY_CALL(process, destination, source, bytes, stream, real_call)                   \
	GKSM_SPANS_CALL(process, gksm_spans_copy_1d(&spans, destination, source, bytes), stream, \
			real_call)

/*
 * The same for one that may be a long way out of shared pages (long_read.h): real_call
 * copies `part` bytes that begin `done` bytes behind both addresses.
 */
#define GKSM_READ_CALL(process, destination, source, bytes, stream, real_call)                 \
	({                                                                                     \
		CUresult read_;                                                                \
		size_t done = 0;                                                               \
                                                                                               \
		do {                                                                           \
			size_t part = gksm_read_part(process, destination, (source) + done,    \
						     (bytes) - done, stream, done == 0);       \
                                                                                               \
			read_ = GKSM_COPY_CALL(process, (destination) + done, (source) + done, \
					       part, stream, real_call);                       \
			done += part;                                                          \
		} while (read_ == CUDA_SUCCESS && done < (bytes));                             \
		read_;                                                                         \
	})

/* true: the load path served the copy (only ever one from host memory into an arena). */
bool gksm_call_load(struct gksm *process, CUdeviceptr destination, CUdeviceptr source, size_t bytes,
		    CUstream stream, CUresult *result);

/* true: the set of zeros is done, and left pages unbacked that were so. */
bool gksm_call_zero(struct gksm *process, CUdeviceptr destination, size_t bytes, CUstream stream,
		    CUresult *result);

/* A host address as spans want it. */
#define GKSM_HOST(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

/* gksm_pin, in no capture's way (streams.h). */
CUresult gksm_pin_relaxed(struct gksm *process, const struct gksm_span *spans, size_t count);

/* The NULL stream means another stream in each of the two families of names. */
static inline CUstream gksm_stream_plain(CUstream stream)
{
	return stream ? stream : CU_STREAM_LEGACY;
}

static inline CUstream gksm_stream_per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

/* Every wrapper that enqueues work says so, before it does. */
static inline void gksm_stream_used(struct gksm *process, CUstream stream)
{
	if (stream == CU_STREAM_PER_THREAD)
		gksm_per_thread_used(process);
}

#endif
