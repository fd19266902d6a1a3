/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the nodes of a graph read and write: found by asking the driver for the nodes
 * and their parameters when the graph is instantiated, so it does not matter how they
 * got into it (added, captured, cloned, as a child graph).
 */
#ifndef GKSM_GRAPH_RANGES_H
#define GKSM_GRAPH_RANGES_H

#include <stdbool.h>
#include <stddef.h>

#include "access.h"
#include "cuda_abi.h"
#include "interpose/spans.h"

struct gksm;

/* One span in an arena that one node touches. */
struct gksm_node_range {
	CUgraphNode node;
	CUgraphNode child; /* the child-graph node it lies in; NULL: at the top */
	struct gksm_span span;
};

struct gksm_node_ranges {
	struct gksm_node_range *items;
	size_t count;
	size_t capacity;
	bool lost; /* no memory: the list is incomplete */
};

void gksm_node_ranges_free(struct gksm_node_ranges *ranges);

/* Appends those of the spans that lie in an arena. */
void gksm_node_ranges_add(struct gksm_node_ranges *ranges, struct gksm *process, CUgraphNode node,
			  CUgraphNode child, const struct gksm_spans *spans);

/* Drops what the node touches, or what the nodes of the child graph in it touch. */
void gksm_node_ranges_drop(struct gksm_node_ranges *ranges, CUgraphNode node);

/* Appends what all nodes of the graph touch. */
void gksm_node_ranges_walk(struct gksm_node_ranges *ranges, struct gksm *process, CUgraph graph,
			   CUgraphNode child);

/* Whole pages of one allocation. The allocation may be gone when they are unpinned, and
 * its addresses another's. */
struct gksm_pinned {
	struct gksm_span span;
	uint64_t buffer_id;
};

/* Ascending, no page twice. */
struct gksm_page_set {
	struct gksm_pinned *items;
	size_t count;
};

/* The pages of the ranges that are allocated, to be freed with free(pages->items).
 * false: no memory. */
bool gksm_node_ranges_pages(const struct gksm_node_ranges *ranges, struct gksm *process,
			    struct gksm_page_set *pages);

CUresult gksm_page_set_pin(struct gksm *process, const struct gksm_page_set *pages);
void gksm_page_set_unpin(struct gksm *process, const struct gksm_page_set *pages);

/* What a node with these parameters would touch. */
void gksm_spans_node_params(struct gksm_spans *spans, const CUgraphNodeParams *params);

/*
 * Bodies of conditional nodes. Drivers before 13.2 do not tell them afterwards, so they
 * are remembered when such a node is added, until the node or its graph is destroyed.
 */
void gksm_bodies_add(struct gksm *process, CUgraph graph, CUgraphNode node,
		     const CUDA_CONDITIONAL_NODE_PARAMS *params);
void gksm_bodies_node_gone(struct gksm *process, CUgraphNode node);
void gksm_bodies_graph_gone(struct gksm *process, CUgraph graph);

#endif
