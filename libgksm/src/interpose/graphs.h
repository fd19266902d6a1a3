/* SPDX-License-Identifier: Apache-2.0 */
/* State of the graph wrappers: what each instantiated graph keeps pinned. */
#ifndef GKSM_GRAPHS_H
#define GKSM_GRAPHS_H

#include "cuda_abi.h"
#include "interpose/graph_ranges.h"
#include "sync.h"

struct gksm;

#define GKSM_EXEC_BUCKETS 64

struct gksm_exec {
	struct gksm_exec *next;
	CUgraphExec handle;
	struct gksm_node_ranges ranges;
	struct gksm_page_set pinned; /* the pages of the ranges */
};

struct gksm_body {
	struct gksm_body *next;
	CUgraph graph; /* that the conditional node is in */
	CUgraphNode node;
	CUgraph body;
};

struct gksm_graphs {
	struct gksm_mutex lock; /* never held across a driver call or a pin */
	struct gksm_exec *execs[GKSM_EXEC_BUCKETS];
	struct gksm_body *bodies;
};

/* Made at first use; NULL: no memory. */
struct gksm_graphs *gksm_graphs_of(struct gksm *process);

#endif
