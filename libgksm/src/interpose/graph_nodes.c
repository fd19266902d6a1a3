/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of graphs that are still being built. What they touch matters when the graph
 * is instantiated (graph.c). Here the pages are private only while the driver looks at
 * them: it wants to know what kind of memory an address is, and an unbacked page is
 * none.
 */
#include "interpose/call.h"
#include "interpose/graph_ranges.h"

#define NODE(fill, real_call)                                                                    \
	({                                                                                       \
		struct gksm *process_ = gksm_process();                                          \
		struct gksm_spans spans;                                                         \
		CUresult added_ = CUDA_SUCCESS;                                                  \
                                                                                                 \
		gksm_spans_init(&spans);                                                         \
		if (process_) {                                                                  \
			fill;                                                                    \
		}                                                                                \
		if (process_)                                                                    \
			added_ = spans.lost                                                      \
					 ? CUDA_ERROR_OUT_OF_MEMORY                              \
					 : gksm_pin_relaxed(process_, spans.items, spans.count); \
		if (added_ == CUDA_SUCCESS) {                                                    \
			added_ = (real_call);                                                    \
			if (process_)                                                            \
				gksm_unpin(process_, spans.items, spans.count);                  \
		}                                                                                \
		gksm_spans_free(&spans);                                                         \
		added_;                                                                          \
	})

static void fill_operations(struct gksm_spans *spans,
			    const CUDA_BATCH_MEM_OP_NODE_PARAMS *operations)
{
	if (operations)
		gksm_spans_stream_ops(spans, operations->paramArray, operations->count);
}

GKSM_WRAP(cuGraphAddMemcpyNode)(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				size_t count, const CUDA_MEMCPY3D *copy, CUcontext context)
{
	return NODE(
		gksm_spans_copy_3d(&spans, copy),
		GKSM_REAL(cuGraphAddMemcpyNode)(node, graph, dependencies, count, copy, context));
}

GKSM_WRAP(cuGraphMemcpyNodeSetParams)(CUgraphNode node, const CUDA_MEMCPY3D *copy)
{
	return NODE(gksm_spans_copy_3d(&spans, copy),
		    GKSM_REAL(cuGraphMemcpyNodeSetParams)(node, copy));
}

GKSM_WRAP(cuGraphAddMemsetNode)(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				size_t count, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context)
{
	return NODE(
		gksm_spans_memset_node(&spans, set),
		GKSM_REAL(cuGraphAddMemsetNode)(node, graph, dependencies, count, set, context));
}

GKSM_WRAP(cuGraphMemsetNodeSetParams)(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *set)
{
	return NODE(gksm_spans_memset_node(&spans, set),
		    GKSM_REAL(cuGraphMemsetNodeSetParams)(node, set));
}

GKSM_WRAP(cuGraphAddBatchMemOpNode)(CUgraphNode *node, CUgraph graph,
				    const CUgraphNode *dependencies, size_t count,
				    const CUDA_BATCH_MEM_OP_NODE_PARAMS *operations)
{
	return NODE(
		fill_operations(&spans, operations),
		GKSM_REAL(cuGraphAddBatchMemOpNode)(node, graph, dependencies, count, operations));
}

GKSM_WRAP(cuGraphBatchMemOpNodeSetParams)(CUgraphNode node,
					  const CUDA_BATCH_MEM_OP_NODE_PARAMS *operations)
{
	return NODE(fill_operations(&spans, operations),
		    GKSM_REAL(cuGraphBatchMemOpNodeSetParams)(node, operations));
}

static CUresult added(CUresult result, const CUgraphNode *node, CUgraph graph,
		      const CUgraphNodeParams *parameters)
{
	struct gksm *process = gksm_process();

	if (process && result == CUDA_SUCCESS && parameters->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		gksm_bodies_add(process, graph, *node, &parameters->conditional);
	return result;
}

/* Without edge data (12.2), with it (12.3), and with stricter contexts (13.4). */
GKSM_WRAP(cuGraphAddNode)(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			  size_t count, CUgraphNodeParams *parameters)
{
	CUresult result =
		NODE(gksm_spans_node_params(&spans, parameters),
		     GKSM_REAL(cuGraphAddNode)(node, graph, dependencies, count, parameters));

	return added(result, node, graph, parameters);
}

GKSM_WRAP(cuGraphAddNode_v2)(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			     const CUgraphEdgeData *edges, size_t count,
			     CUgraphNodeParams *parameters)
{
	CUresult result = NODE(
		gksm_spans_node_params(&spans, parameters),
		GKSM_REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, parameters));

	return added(result, node, graph, parameters);
}

GKSM_WRAP(cuGraphAddNode_v3)(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			     const CUgraphEdgeData *edges, size_t count,
			     CUgraphNodeParams *parameters)
{
	CUresult result = NODE(
		gksm_spans_node_params(&spans, parameters),
		GKSM_REAL(cuGraphAddNode_v3)(node, graph, dependencies, edges, count, parameters));

	return added(result, node, graph, parameters);
}

GKSM_WRAP(cuGraphNodeSetParams)(CUgraphNode node, CUgraphNodeParams *parameters)
{
	return NODE(gksm_spans_node_params(&spans, parameters),
		    GKSM_REAL(cuGraphNodeSetParams)(node, parameters));
}

GKSM_WRAP(cuGraphNodeSetParams_v2)(CUgraphNode node, CUgraphNodeParams *parameters)
{
	return NODE(gksm_spans_node_params(&spans, parameters),
		    GKSM_REAL(cuGraphNodeSetParams_v2)(node, parameters));
}

GKSM_WRAP(cuGraphDestroyNode)(CUgraphNode node)
{
	struct gksm *process = gksm_process();

	if (process)
		gksm_bodies_node_gone(process, node);
	return GKSM_REAL(cuGraphDestroyNode)(node);
}

GKSM_WRAP(cuGraphDestroy)(CUgraph graph)
{
	struct gksm *process = gksm_process();

	if (process)
		gksm_bodies_graph_gone(process, graph);
	return GKSM_REAL(cuGraphDestroy)(graph);
}
