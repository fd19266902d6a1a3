/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams come, go, and become part of captures: streams.h has to know.
 */
#include "streams.h"

#include "interpose/call.h"
#include "wrap.h"

/* The current context, unless the stream belongs to another (a green one). */
static void created(CUresult result, const CUstream *stream)
{
	struct gksm *process = gksm_process();
	CUcontext context = NULL;

	if (!process || result != CUDA_SUCCESS)
		return;
	if (GKSM_REAL(cuStreamGetCtx)(*stream, &context) != CUDA_SUCCESS)
		context = NULL;
	gksm_stream_known(process, context, *stream);
}

GKSM_WRAP(cuStreamCreate)(CUstream *stream, unsigned int flags)
{
	CUresult result = GKSM_REAL(cuStreamCreate)(stream, flags);

	created(result, stream);
	return result;
}

GKSM_WRAP(cuStreamCreateWithPriority)(CUstream *stream, unsigned int flags, int priority)
{
	CUresult result = GKSM_REAL(cuStreamCreateWithPriority)(stream, flags, priority);

	created(result, stream);
	return result;
}

GKSM_WRAP(cuGreenCtxStreamCreate)(CUstream *stream, CUgreenCtx green, unsigned int flags,
				  int priority)
{
	CUresult result = GKSM_REAL(cuGreenCtxStreamCreate)(stream, green, flags, priority);

	created(result, stream);
	return result;
}

static CUresult destroy(__typeof__(cuStreamDestroy_v2) *real, CUstream stream)
{
	struct gksm *process = gksm_process();
	CUresult result;

	if (process)
		gksm_stream_gone(process, stream);
	result = real(stream);
	if (process && result != CUDA_SUCCESS)
		created(CUDA_SUCCESS, &stream);
	return result;
}

GKSM_WRAP(cuStreamDestroy)(CUstream stream)
{
	return destroy(GKSM_REAL(cuStreamDestroy), stream);
}

GKSM_WRAP(cuStreamDestroy_v2)(CUstream stream)
{
	return destroy(GKSM_REAL(cuStreamDestroy_v2), stream);
}

static CUresult wait_event(__typeof__(cuStreamWaitEvent) *real, CUstream stream, CUevent event,
			   unsigned int flags, CUstream ordered)
{
	struct gksm *process = gksm_process();

	if (process) {
		gksm_stream_used(process, ordered);
		gksm_stream_waits_event(process, ordered);
	}
	return real(stream, event, flags);
}

GKSM_WRAP(cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned int flags)
{
	return wait_event(GKSM_REAL(cuStreamWaitEvent), stream, event, flags,
			  gksm_stream_plain(stream));
}

GKSM_WRAP(cuStreamWaitEvent_ptsz)(CUstream stream, CUevent event, unsigned int flags)
{
	return wait_event(GKSM_REAL(cuStreamWaitEvent_ptsz), stream, event, flags,
			  gksm_stream_per_thread(stream));
}

/* ordered: the stream as the driver sees it. */
#define CAPTURE(ordered, real_call)                             \
	({                                                      \
		struct gksm *process_ = gksm_process();         \
		CUresult begun_;                                \
                                                                \
		if (process_) {                                 \
			gksm_stream_used(process_, ordered);    \
			gksm_capture_begins(process_, ordered); \
		}                                               \
		begun_ = (real_call);                           \
		if (process_ && begun_ != CUDA_SUCCESS)         \
			gksm_capture_ended(process_);           \
		begun_;                                         \
	})

GKSM_WRAP(cuStreamBeginCapture)(CUstream stream)
{
	return CAPTURE(gksm_stream_plain(stream), GKSM_REAL(cuStreamBeginCapture)(stream));
}

GKSM_WRAP(cuStreamBeginCapture_ptsz)(CUstream stream)
{
	return CAPTURE(gksm_stream_per_thread(stream),
		       GKSM_REAL(cuStreamBeginCapture_ptsz)(stream));
}

GKSM_WRAP(cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode)
{
	return CAPTURE(gksm_stream_plain(stream), GKSM_REAL(cuStreamBeginCapture_v2)(stream, mode));
}

GKSM_WRAP(cuStreamBeginCapture_v2_ptsz)(CUstream stream, CUstreamCaptureMode mode)
{
	return CAPTURE(gksm_stream_per_thread(stream),
		       GKSM_REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

GKSM_WRAP(cuStreamBeginCaptureToGraph)(CUstream stream, CUgraph graph,
				       const CUgraphNode *dependencies,
				       const CUgraphEdgeData *edges, size_t count,
				       CUstreamCaptureMode mode)
{
	return CAPTURE(gksm_stream_plain(stream),
		       GKSM_REAL(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, edges,
							      count, mode));
}

GKSM_WRAP(cuStreamBeginCaptureToGraph_ptsz)(CUstream stream, CUgraph graph,
					    const CUgraphNode *dependencies,
					    const CUgraphEdgeData *edges, size_t count,
					    CUstreamCaptureMode mode)
{
	return CAPTURE(gksm_stream_per_thread(stream),
		       GKSM_REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, dependencies,
								   edges, count, mode));
}

GKSM_WRAP(cuStreamBeginRecaptureToGraph)(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
					 CUgraphRecaptureCallback callback, void *user)
{
	return CAPTURE(gksm_stream_plain(stream), GKSM_REAL(cuStreamBeginRecaptureToGraph)(
							  stream, mode, graph, callback, user));
}

GKSM_WRAP(cuStreamBeginRecaptureToGraph_ptsz)(CUstream stream, CUstreamCaptureMode mode,
					      CUgraph graph, CUgraphRecaptureCallback callback,
					      void *user)
{
	return CAPTURE(
		gksm_stream_per_thread(stream),
		GKSM_REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, user));
}

/* A refused call leaves the stream as it was; only the end of a capture counts. */
#define CAPTURED(ordered, real_call)                                              \
	({                                                                        \
		struct gksm *process_ = gksm_process();                           \
		bool was_ = process_ && gksm_stream_capturing(process_, ordered); \
		CUresult ended_ = (real_call);                                    \
                                                                                  \
		if (was_ && !gksm_stream_capturing(process_, ordered))            \
			gksm_capture_ended(process_);                             \
		ended_;                                                           \
	})

GKSM_WRAP(cuStreamEndCapture)(CUstream stream, CUgraph *graph)
{
	return CAPTURED(gksm_stream_plain(stream), GKSM_REAL(cuStreamEndCapture)(stream, graph));
}

GKSM_WRAP(cuStreamEndCapture_ptsz)(CUstream stream, CUgraph *graph)
{
	return CAPTURED(gksm_stream_per_thread(stream),
			GKSM_REAL(cuStreamEndCapture_ptsz)(stream, graph));
}
