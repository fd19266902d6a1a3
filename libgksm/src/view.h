/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process is told of free memory: what it would see without gKSM.
 *
 *     free = total - own virtual bytes - own foreign bytes - what others have
 *
 * Own pages count in full from their allocation to their release, whether they are
 * unbacked, private or shared. What others have is measured: all that is taken, or kept
 * by gksmd for others, less what this process is known to have. It grows at once, because
 * others really took memory; but it shrinks only while the process is neither starting,
 * loading nor allocating. So a merge or an attachment, here or elsewhere, never makes free
 * memory rise under a program that measures how much it needs (vLLM ends itself then).
 *
 * As what others have is never taken for less than it is, the answer never exceeds what
 * could be allocated. It may stay below that for a while.
 */
#ifndef GKSM_VIEW_H
#define GKSM_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "sync.h"

struct gksm_gpu;

/* How long after its last allocation, release or load a process is still at it, and how
 * long that may go on before what others gave back shows all the same. */
#define GKSM_VIEW_QUIET_NS 60000000000ull
#define GKSM_VIEW_LONGEST_NS 600000000000ull

struct gksm_view {
	struct gksm_mutex lock;
	bool known;
	uint64_t others_bytes; /* as it is told */
	uint64_t since_ns;     /* when others_bytes was last what was measured */
	_Atomic uint64_t active_ns;
};

struct gksm_view_figures {
	uint64_t total_bytes;
	uint64_t free_bytes;	/* as the driver says */
	uint64_t held_bytes;	/* of that, kept by gksmd for others */
	uint64_t warm_bytes;	/* not free, but given up by gksmd for who needs it */
	uint64_t virtual_bytes; /* own pages, whatever their state */
	uint64_t backed_bytes;	/* those of them that memory is mapped at */
	uint64_t foreign_bytes; /* own memory that the driver handed out untouched */
	uint64_t now_ns;
};

/* What others have by these figures. */
uint64_t gksm_view_others(const struct gksm_view_figures *figures);

/* The answer; moves others_bytes on. The caller holds the lock. */
uint64_t gksm_view_free(struct gksm_view *view, const struct gksm_view_figures *figures);

/* The process allocates, releases or loads. */
void gksm_view_active(struct gksm_gpu *gpu);

/*
 * Free memory for a process on the GPU, whose context is current: free_bytes and
 * total_bytes are what the driver just said.
 */
uint64_t gksm_view_ask(struct gksm_gpu *gpu, uint64_t free_bytes, uint64_t total_bytes);

#endif
