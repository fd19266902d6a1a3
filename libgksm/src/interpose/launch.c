/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel launches. Under the fault guard they only pass: the first touch faults. Under
 * the others the launch gate is held, and what the kernel may touch is backed; for
 * that its parameters are read (launch_words.c).
 */
#include "access.h"
#include "interpose/call.h"
#include "interpose/functions.h"
#include "interpose/launch_words.h"

struct launch {
	bool gated;
	struct gksm_access access;
};

static CUresult begin_gated(struct launch *launch, struct gksm *process, CUfunction function,
			    void **parameters, void **extra)
{
	struct gksm_relaxed relaxed;
	struct gksm_words words;
	CUresult result;

	gksm_words_init(&words);
	if (function)
		gksm_words_kernel(&words, function, parameters, extra);
	else
		gksm_words_unknown(&words);
	gksm_relaxed_enter(process, &relaxed);
	result = gksm_launch_begin(process, words.items, words.count, &launch->access);
	gksm_relaxed_leave(&relaxed);
	launch->gated = result == CUDA_SUCCESS;
	gksm_words_free(&words);
	return result;
}

/* function NULL: several are to be launched, or one whose parameters are elsewhere. */
static inline CUresult begin(struct launch *launch, CUstream stream, CUfunction function,
			     void **parameters, void **extra)
{
	struct gksm *process = gksm_process();

	launch->gated = false;
	if (!process)
		return CUDA_SUCCESS;
	gksm_stream_used(process, stream);
	if (function)
		gksm_function_launched(process, function);
	if (!atomic_load_explicit(&process->gated_gpus, memory_order_relaxed))
		return CUDA_SUCCESS;
	return begin_gated(launch, process, function, parameters, extra);
}

#define LAUNCH(stream, function, parameters, extra, real_call)                             \
	({                                                                                 \
		struct launch launch_;                                                     \
		CUresult launched_ = begin(&launch_, stream, function, parameters, extra); \
                                                                                           \
		if (launched_ == CUDA_SUCCESS) {                                           \
			launched_ = (real_call);                                           \
			if (launch_.gated)                                                 \
				gksm_launch_end(&launch_.access);                          \
		}                                                                          \
		launched_;                                                                 \
	})

GKSM_WRAP(cuLaunchKernel)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			  unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			  void **parameters, void **extra)
{
	return LAUNCH(gksm_stream_plain(stream), function, parameters, extra,
		      GKSM_REAL(cuLaunchKernel)(function, grid_x, grid_y, grid_z, block_x, block_y,
						block_z, shared_bytes, stream, parameters, extra));
}

GKSM_WRAP(cuLaunchKernel_ptsz)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			       unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			       void **parameters, void **extra)
{
	return LAUNCH(gksm_stream_per_thread(stream), function, parameters, extra,
		      GKSM_REAL(cuLaunchKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x,
						     block_y, block_z, shared_bytes, stream,
						     parameters, extra));
}

/* While libgksm is off nobody looks into the application's arguments. */
static CUstream stream_of(const CUlaunchConfig *config)
{
	return gksm_process() && config ? config->hStream : NULL;
}

GKSM_WRAP(cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction function, void **parameters,
			    void **extra)
{
	return LAUNCH(gksm_stream_plain(stream_of(config)), function, parameters, extra,
		      GKSM_REAL(cuLaunchKernelEx)(config, function, parameters, extra));
}

GKSM_WRAP(cuLaunchKernelEx_ptsz)(const CUlaunchConfig *config, CUfunction function,
				 void **parameters, void **extra)
{
	return LAUNCH(gksm_stream_per_thread(stream_of(config)), function, parameters, extra,
		      GKSM_REAL(cuLaunchKernelEx_ptsz)(config, function, parameters, extra));
}

GKSM_WRAP(cuLaunchCooperativeKernel)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
				     unsigned int grid_z, unsigned int block_x,
				     unsigned int block_y, unsigned int block_z,
				     unsigned int shared_bytes, CUstream stream, void **parameters)
{
	return LAUNCH(gksm_stream_plain(stream), function, parameters, NULL,
		      GKSM_REAL(cuLaunchCooperativeKernel)(function, grid_x, grid_y, grid_z,
							   block_x, block_y, block_z, shared_bytes,
							   stream, parameters));
}

GKSM_WRAP(cuLaunchCooperativeKernel_ptsz)(CUfunction function, unsigned int grid_x,
					  unsigned int grid_y, unsigned int grid_z,
					  unsigned int block_x, unsigned int block_y,
					  unsigned int block_z, unsigned int shared_bytes,
					  CUstream stream, void **parameters)
{
	return LAUNCH(gksm_stream_per_thread(stream), function, parameters, NULL,
		      GKSM_REAL(cuLaunchCooperativeKernel_ptsz)(function, grid_x, grid_y, grid_z,
								block_x, block_y, block_z,
								shared_bytes, stream, parameters));
}

/* Several devices: everything unbacked is backed, on each that is current in turn. */
GKSM_WRAP(cuLaunchCooperativeKernelMultiDevice)(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
						unsigned int flags)
{
	return LAUNCH(NULL, NULL, NULL, NULL,
		      GKSM_REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags));
}

/* The interface of before 4.0 keeps parameters in the function. */
GKSM_WRAP(cuLaunch)(CUfunction function)
{
	return LAUNCH(CU_STREAM_LEGACY, NULL, NULL, NULL, GKSM_REAL(cuLaunch)(function));
}

GKSM_WRAP(cuLaunchGrid)(CUfunction function, int width, int height)
{
	return LAUNCH(CU_STREAM_LEGACY, NULL, NULL, NULL,
		      GKSM_REAL(cuLaunchGrid)(function, width, height));
}

GKSM_WRAP(cuLaunchGridAsync)(CUfunction function, int width, int height, CUstream stream)
{
	return LAUNCH(gksm_stream_plain(stream), NULL, NULL, NULL,
		      GKSM_REAL(cuLaunchGridAsync)(function, width, height, stream));
}

/* What kernel nodes touch is not looked up: everything unbacked is backed. What copies
 * and sets touch was pinned when the graph was instantiated. */
GKSM_WRAP(cuGraphLaunch)(CUgraphExec exec, CUstream stream)
{
	return LAUNCH(gksm_stream_plain(stream), NULL, NULL, NULL,
		      GKSM_REAL(cuGraphLaunch)(exec, stream));
}

GKSM_WRAP(cuGraphLaunch_ptsz)(CUgraphExec exec, CUstream stream)
{
	return LAUNCH(gksm_stream_per_thread(stream), NULL, NULL, NULL,
		      GKSM_REAL(cuGraphLaunch_ptsz)(exec, stream));
}
