/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel launches. Under the fault guard they only pass: the first touch faults. Under
 * the others the launch gate is held, and what the kernel may touch is backed; for
 * that its parameters are read (launch_words.c).
 */
#include "interpose/launch_words.h"

#include "access.h"
#include "interpose/call.h"

/* call: the driver's. words_of: fills `words` (struct gksm_words *). */
#define LAUNCH(stream, words_of, real_call)                                                        \
	({                                                                                         \
		struct gksm *process_ = gksm_process();                                            \
		struct gksm_access access_;                                                        \
		struct gksm_words words_storage_;                                                  \
		struct gksm_words *words = &words_storage_;                                        \
		CUresult launched_;                                                                \
                                                                                                   \
		if (process_)                                                                      \
			gksm_stream_used(process_, stream);                                        \
		if (!process_ ||                                                                   \
		    !atomic_load_explicit(&process_->gated_gpus, memory_order_relaxed)) {          \
			launched_ = (real_call);                                                   \
		} else {                                                                           \
			gksm_words_init(words);                                                    \
			words_of;                                                                  \
			launched_ =                                                                \
				gksm_launch_begin(process_, words->items, words->count, &access_); \
			if (launched_ == CUDA_SUCCESS) {                                           \
				launched_ = (real_call);                                           \
				gksm_launch_end(&access_);                                         \
			}                                                                          \
			gksm_words_free(words);                                                    \
		}                                                                                  \
		launched_;                                                                         \
	})

GKSM_WRAP(cuLaunchKernel)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			  unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			  void **parameters, void **extra)
{
	return LAUNCH(gksm_stream_plain(stream),
		      gksm_words_kernel(words, function, parameters, extra),
		      GKSM_REAL(cuLaunchKernel)(function, grid_x, grid_y, grid_z, block_x, block_y,
						block_z, shared_bytes, stream, parameters, extra));
}

GKSM_WRAP(cuLaunchKernel_ptsz)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			       unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			       void **parameters, void **extra)
{
	return LAUNCH(gksm_stream_per_thread(stream),
		      gksm_words_kernel(words, function, parameters, extra),
		      GKSM_REAL(cuLaunchKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x,
						     block_y, block_z, shared_bytes, stream,
						     parameters, extra));
}

GKSM_WRAP(cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction function, void **parameters,
			    void **extra)
{
	return LAUNCH(gksm_stream_plain(config ? config->hStream : NULL),
		      gksm_words_kernel(words, function, parameters, extra),
		      GKSM_REAL(cuLaunchKernelEx)(config, function, parameters, extra));
}

GKSM_WRAP(cuLaunchKernelEx_ptsz)(const CUlaunchConfig *config, CUfunction function,
				 void **parameters, void **extra)
{
	return LAUNCH(gksm_stream_per_thread(config ? config->hStream : NULL),
		      gksm_words_kernel(words, function, parameters, extra),
		      GKSM_REAL(cuLaunchKernelEx_ptsz)(config, function, parameters, extra));
}

GKSM_WRAP(cuLaunchCooperativeKernel)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
				     unsigned int grid_z, unsigned int block_x,
				     unsigned int block_y, unsigned int block_z,
				     unsigned int shared_bytes, CUstream stream, void **parameters)
{
	return LAUNCH(gksm_stream_plain(stream),
		      gksm_words_kernel(words, function, parameters, NULL),
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
	return LAUNCH(gksm_stream_per_thread(stream),
		      gksm_words_kernel(words, function, parameters, NULL),
		      GKSM_REAL(cuLaunchCooperativeKernel_ptsz)(function, grid_x, grid_y, grid_z,
								block_x, block_y, block_z,
								shared_bytes, stream, parameters));
}

/* Several devices: everything unbacked is backed, on each that is current in turn. */
GKSM_WRAP(cuLaunchCooperativeKernelMultiDevice)(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
						unsigned int flags)
{
	return LAUNCH(NULL, gksm_words_unknown(words),
		      GKSM_REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags));
}

/* The interface of before 4.0 keeps parameters in the function. */
GKSM_WRAP(cuLaunch)(CUfunction function)
{
	return LAUNCH(CU_STREAM_LEGACY, gksm_words_unknown(words), GKSM_REAL(cuLaunch)(function));
}

GKSM_WRAP(cuLaunchGrid)(CUfunction function, int width, int height)
{
	return LAUNCH(CU_STREAM_LEGACY, gksm_words_unknown(words),
		      GKSM_REAL(cuLaunchGrid)(function, width, height));
}

GKSM_WRAP(cuLaunchGridAsync)(CUfunction function, int width, int height, CUstream stream)
{
	return LAUNCH(gksm_stream_plain(stream), gksm_words_unknown(words),
		      GKSM_REAL(cuLaunchGridAsync)(function, width, height, stream));
}

/* What kernel nodes touch is not looked up: everything unbacked is backed. What copies
 * and sets touch was pinned when the graph was instantiated. */
GKSM_WRAP(cuGraphLaunch)(CUgraphExec exec, CUstream stream)
{
	return LAUNCH(gksm_stream_plain(stream), gksm_words_unknown(words),
		      GKSM_REAL(cuGraphLaunch)(exec, stream));
}

GKSM_WRAP(cuGraphLaunch_ptsz)(CUgraphExec exec, CUstream stream)
{
	return LAUNCH(gksm_stream_per_thread(stream), gksm_words_unknown(words),
		      GKSM_REAL(cuGraphLaunch_ptsz)(exec, stream));
}
