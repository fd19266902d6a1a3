/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every wrapper of a copy, set, launch or graph call does around the driver's
 * own call:
 *
 *     gksm_access_begin(...)   pages it writes become private, pages it reads are
 *                              backed; the launch gate is held
 *     result = real(...)
 *     gksm_access_end(...)     copy-busy marks get their event, the gate is left
 *
 * begin .. end never nests. Spans may lie anywhere; parts outside our arenas are
 * ignored, so wrappers need not look first.
 */
#ifndef GKSM_ACCESS_H
#define GKSM_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "page_range.h"

struct gksm;
struct gksm_kept;
struct gksm_mark;

struct gksm_access {
	struct gksm *process;	/* whose gate is held; NULL: nothing of ours was touched */
	struct gksm_mark *mark; /* pages marked copy-busy by it */
	struct gksm_kept *kept; /* memory it replaces, until the driver has taken the call */
};

/*
 * Returns CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY: a page could not be made
 * private; nothing is held then, and the wrapper returns that error. end must be
 * called after every success. stream: as the driver sees it: CU_STREAM_LEGACY for the
 * NULL stream of plain entry points, CU_STREAM_PER_THREAD for that of _ptsz/_ptds ones.
 */
CUresult gksm_access_begin(struct gksm *process, const struct gksm_span *spans, size_t count,
			   struct gksm_access *access);
void gksm_access_end(struct gksm_access *access, CUstream stream);

/* Instead of end: nothing was enqueued. Asks no stream, so it is in no capture's way. */
void gksm_access_drop(struct gksm_access *access);

/* Before end, when the driver has refused the call: what was to be written over is there
 * again. */
void gksm_access_refused(struct gksm_access *access);

/*
 * The load path (DESIGN.md 5). Tries to serve a host-to-device copy from pageable
 * memory. true: done, *result is what the entry point returns. false: it is no case
 * for the load path (not ours, pinned source, capturing stream, ...): the wrapper
 * goes on with access_begin .. end and the driver's call.
 */
bool gksm_load(struct gksm *process, CUdeviceptr destination, const void *source, size_t bytes,
	       CUstream stream, CUresult *result);

/*
 * Sets bytes to zero where that may leave pages unbacked. true: done, *result is what the
 * entry point returns. false: an ordinary set, as above.
 */
bool gksm_zero(struct gksm *process, CUdeviceptr destination, size_t bytes, CUstream stream,
	       CUresult *result);

/*
 * Detach the pages of the spans and keep them private until as many unpins: graph
 * nodes, memory handed out of the process.
 */
CUresult gksm_pin(struct gksm *process, const struct gksm_span *spans, size_t count);
void gksm_unpin(struct gksm *process, const struct gksm_span *spans, size_t count);

/*
 * Before a kernel launch or graph launch of the current context, under the guards
 * `seal` and `optimistic`: backs unbacked pages that the launch may touch and holds
 * the launch gate. params may be NULL (cannot be read: back everything).
 * Under `fault` this is one load and one branch.
 */
CUresult gksm_launch_begin(struct gksm *process, const uint64_t *words, size_t word_count,
			   struct gksm_access *access);
void gksm_launch_end(struct gksm_access *access);

#endif
