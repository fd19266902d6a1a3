/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/graph_ranges.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "interpose/call.h"
#include "interpose/graphs.h"
#include "process.h"
#include "wrap.h"

#define DEPTH_MAX 32 /* graphs within graphs */

void gksm_node_ranges_free(struct gksm_node_ranges *ranges)
{
	free(ranges->items);
	*ranges = (struct gksm_node_ranges){.items = NULL};
}

static void append(struct gksm_node_ranges *ranges, const struct gksm_node_range *range)
{
	if (ranges->count == ranges->capacity) {
		size_t capacity = ranges->capacity ? ranges->capacity * 2 : 16;
		void *items = realloc(ranges->items, capacity * sizeof(*ranges->items));

		if (!items) {
			ranges->lost = true;
			return;
		}
		ranges->items = items;
		ranges->capacity = capacity;
	}
	ranges->items[ranges->count++] = *range;
}

void gksm_node_ranges_add(struct gksm_node_ranges *ranges, struct gksm *process, CUgraphNode node,
			  CUgraphNode child, const struct gksm_spans *spans)
{
	ranges->lost |= spans->lost;
	for (size_t i = 0; i < spans->count; i++) {
		struct gksm_node_range range = {
			.node = node, .child = child, .span = spans->items[i]};

		if (gksm_spans_ours(process, &spans->items[i], 1))
			append(ranges, &range);
	}
}

void gksm_node_ranges_drop(struct gksm_node_ranges *ranges, CUgraphNode node)
{
	size_t kept = 0;

	for (size_t i = 0; i < ranges->count; i++)
		if (ranges->items[i].node != node && ranges->items[i].child != node)
			ranges->items[kept++] = ranges->items[i];
	ranges->count = kept;
}

static int by_address(const void *left, const void *right)
{
	const struct gksm_pinned *a = left, *b = right;

	return (a->span.address > b->span.address) - (a->span.address < b->span.address);
}

/* The pages of a span. false: it lies in no allocation. */
static bool pages_of(struct gksm *process, const struct gksm_span *span, struct gksm_pinned *pages)
{
	const CUdeviceptr mask = GKSM_PAGE_SIZE - 1;
	CUdeviceptr first = span->address & ~mask;
	struct gksm_allocation_info info;

	if (!gksm_allocation_find(process, span->address, &info))
		return false;
	*pages = (struct gksm_pinned){
		.span = {.address = first,
			 .bytes = ((span->address + span->bytes + mask) & ~mask) - first,
			 .flags = GKSM_SPAN_WRITE},
		.buffer_id = info.buffer_id};
	return true;
}

bool gksm_node_ranges_pages(const struct gksm_node_ranges *ranges, struct gksm *process,
			    struct gksm_page_set *pages)
{
	struct gksm_pinned *items;
	size_t count = 0, kept = 0;

	*pages = (struct gksm_page_set){.count = 0};
	if (ranges->lost)
		return false;
	if (!ranges->count)
		return true;
	items = malloc(ranges->count * sizeof(*items));
	if (!items)
		return false;
	for (size_t i = 0; i < ranges->count; i++)
		if (pages_of(process, &ranges->items[i].span, &items[count]))
			count++;
	if (!count) {
		free(items);
		return true;
	}
	qsort(items, count, sizeof(*items), by_address);
	for (size_t i = 1; i < count; i++) {
		struct gksm_span *last = &items[kept].span;
		CUdeviceptr end = items[i].span.address + items[i].span.bytes;

		if (items[i].buffer_id != items[kept].buffer_id ||
		    items[i].span.address > last->address + last->bytes)
			items[++kept] = items[i];
		else if (end > last->address + last->bytes)
			last->bytes = end - last->address;
	}
	*pages = (struct gksm_page_set){.items = items, .count = kept + 1};
	return true;
}

CUresult gksm_page_set_pin(struct gksm *process, const struct gksm_page_set *pages)
{
	CUresult result = CUDA_SUCCESS;
	size_t i;

	for (i = 0; result == CUDA_SUCCESS && i < pages->count; i++)
		result = gksm_pin_relaxed(process, &pages->items[i].span, 1);
	if (result == CUDA_SUCCESS)
		return result;
	/* the one that failed holds nothing */
	for (i--; i-- > 0;)
		gksm_unpin(process, &pages->items[i].span, 1);
	return result;
}

void gksm_page_set_unpin(struct gksm *process, const struct gksm_page_set *pages)
{
	for (size_t i = 0; i < pages->count; i++) {
		const struct gksm_pinned *pinned = &pages->items[i];
		struct gksm_allocation_info info;

		if (gksm_allocation_find(process, pinned->span.address, &info) &&
		    info.buffer_id == pinned->buffer_id)
			gksm_unpin(process, &pinned->span, 1);
	}
}

void gksm_spans_node_params(struct gksm_spans *spans, const CUgraphNodeParams *params)
{
	const CUDA_MEMCPY_BATCH_NODE_PARAMS_V1 *batch;
	const CUDA_FABRIC_COPY_BATCH_OP *fabric;

	if (!params)
		return;
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		gksm_spans_copy_3d(spans, &params->memcpy.copyParams);
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		gksm_spans_memset_2d(spans, params->memset.dst, params->memset.pitch,
				     params->memset.elementSize, params->memset.width,
				     params->memset.height);
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		gksm_spans_stream_ops(spans, params->memOp.paramArray, params->memOp.count);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
		batch = &params->memcpyBatch;
		for (size_t i = 0; batch->dsts && batch->srcs && i < batch->count; i++)
			gksm_spans_copy_1d(spans, batch->dsts[i], batch->srcs[i], batch->sizes[i]);
		break;
	case CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH:
		fabric = params->fabricCpyBatch.opList;
		for (size_t i = 0; fabric && i < params->fabricCpyBatch.numOps; i++)
			gksm_spans_fabric(spans, &fabric[i]);
		break;
	default:
		break;
	}
}

/* By the questions of old drivers; true: it is a node of such a kind. */
static bool ask_old(struct gksm_spans *spans, CUgraphNode node, CUgraphNodeType type)
{
	CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 operations;
	CUDA_MEMSET_NODE_PARAMS_v1 set;
	CUDA_MEMCPY3D copy;

	switch (type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		if (GKSM_REAL(cuGraphMemcpyNodeGetParams)(node, &copy) == CUDA_SUCCESS)
			gksm_spans_copy_3d(spans, &copy);
		return true;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		if (GKSM_REAL(cuGraphMemsetNodeGetParams)(node, &set) == CUDA_SUCCESS)
			gksm_spans_memset_node(spans, &set);
		return true;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		if (GKSM_REAL(cuGraphBatchMemOpNodeGetParams)(node, &operations) == CUDA_SUCCESS)
			gksm_spans_stream_ops(spans, operations.paramArray, operations.count);
		return true;
	default:
		return false;
	}
}

static void walk(struct gksm_node_ranges *ranges, struct gksm *process, CUgraph graph,
		 CUgraphNode child, unsigned depth);

static void walk_bodies(struct gksm_node_ranges *ranges, struct gksm *process, CUgraphNode node,
			CUgraphNode child, unsigned depth)
{
	struct gksm_graphs *graphs = gksm_graphs_of(process);
	CUgraph bodies[16];
	CUgraphNodeParams params;
	size_t count = 0;

	memset(&params, 0, sizeof(params));
	if (GKSM_REAL(cuGraphNodeGetParams)(node, &params) == CUDA_SUCCESS) {
		for (unsigned i = 0; i < params.conditional.size; i++)
			walk(ranges, process, params.conditional.phGraph_out[i], child, depth);
		return;
	}
	if (!graphs)
		return;
	gksm_mutex_lock(&graphs->lock);
	for (struct gksm_body *body = graphs->bodies; body; body = body->next) {
		if (body->node != node)
			continue;
		if (count == sizeof(bodies) / sizeof(bodies[0])) {
			ranges->lost = true;
			break;
		}
		bodies[count++] = body->body;
	}
	gksm_mutex_unlock(&graphs->lock);
	for (size_t i = 0; i < count; i++)
		walk(ranges, process, bodies[i], child, depth);
}

static void walk_node(struct gksm_node_ranges *ranges, struct gksm *process, CUgraphNode node,
		      CUgraphNode child, unsigned depth)
{
	CUgraphNodeParams params;
	struct gksm_spans spans;
	CUgraphNodeType type;
	CUgraph graph;

	if (GKSM_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
		return;
	switch (type) {
	case CU_GRAPH_NODE_TYPE_GRAPH:
		if (GKSM_REAL(cuGraphChildGraphNodeGetGraph)(node, &graph) == CUDA_SUCCESS)
			walk(ranges, process, graph, node, depth + 1);
		return;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		walk_bodies(ranges, process, node, child, depth + 1);
		return;
	case CU_GRAPH_NODE_TYPE_KERNEL:
	case CU_GRAPH_NODE_TYPE_HOST:
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return;
	default:
		break;
	}
	gksm_spans_init(&spans);
	memset(&params, 0, sizeof(params));
	if (!ask_old(&spans, node, type) &&
	    GKSM_REAL(cuGraphNodeGetParams)(node, &params) == CUDA_SUCCESS)
		gksm_spans_node_params(&spans, &params);
	gksm_node_ranges_add(ranges, process, node, child, &spans);
	gksm_spans_free(&spans);
}

static void walk(struct gksm_node_ranges *ranges, struct gksm *process, CUgraph graph,
		 CUgraphNode child, unsigned depth)
{
	CUgraphNode *nodes;
	size_t count = 0;

	if (depth > DEPTH_MAX || GKSM_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS ||
	    !count)
		return;
	nodes = malloc(count * sizeof(CUgraphNode));
	if (!nodes) {
		ranges->lost = true;
		return;
	}
	if (GKSM_REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			walk_node(ranges, process, nodes[i], child, depth);
	free(nodes);
}

void gksm_node_ranges_walk(struct gksm_node_ranges *ranges, struct gksm *process, CUgraph graph,
			   CUgraphNode child)
{
	walk(ranges, process, graph, child, 0);
}

void gksm_bodies_add(struct gksm *process, CUgraph graph, CUgraphNode node,
		     const CUDA_CONDITIONAL_NODE_PARAMS *params)
{
	struct gksm_graphs *graphs = gksm_graphs_of(process);

	gksm_bodies_node_gone(process, node);
	for (unsigned i = 0; graphs && params->phGraph_out && i < params->size; i++) {
		struct gksm_body *body = malloc(sizeof(*body));

		if (!body)
			return;
		*body = (struct gksm_body){
			.graph = graph, .node = node, .body = params->phGraph_out[i]};
		gksm_mutex_lock(&graphs->lock);
		body->next = graphs->bodies;
		graphs->bodies = body;
		gksm_mutex_unlock(&graphs->lock);
	}
}

void gksm_bodies_node_gone(struct gksm *process, CUgraphNode node)
{
	struct gksm_graphs *graphs = gksm_graphs_of(process);
	CUgraph inner;

	/* A body goes with its node, and with it the conditional nodes in it. */
	for (;;) {
		struct gksm_body **link, *body;

		if (!graphs)
			return;
		gksm_mutex_lock(&graphs->lock);
		for (link = &graphs->bodies; (body = *link) && body->node != node;)
			link = &body->next;
		if (body)
			*link = body->next;
		gksm_mutex_unlock(&graphs->lock);
		if (!body)
			return;
		inner = body->body;
		free(body);
		gksm_bodies_graph_gone(process, inner);
	}
}

void gksm_bodies_graph_gone(struct gksm *process, CUgraph graph)
{
	struct gksm_graphs *graphs = gksm_graphs_of(process);

	for (;;) {
		CUgraphNode node = NULL;

		if (!graphs)
			return;
		gksm_mutex_lock(&graphs->lock);
		for (struct gksm_body *body = graphs->bodies; body && !node; body = body->next)
			if (body->graph == graph)
				node = body->node;
		gksm_mutex_unlock(&graphs->lock);
		if (!node)
			return;
		gksm_bodies_node_gone(process, node);
	}
}
