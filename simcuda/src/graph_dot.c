/* SPDX-License-Identifier: Apache-2.0 */
/* cuGraphDebugDotPrint: a graph as text for Graphviz. */
#include <stdio.h>

#include "graph_nodes.h"
#include "live.h"

static const char *const type_names[] = {
	[CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",
	[CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
	[CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",
	[CU_GRAPH_NODE_TYPE_HOST] = "HOST",
	[CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH",
	[CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
	[CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "WAIT_EVENT",
	[CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
	[CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",
	[CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
	[CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
	[CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

static void print_graph(FILE *file, CUgraph graph)
{
	fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\"\n", graph->id, graph->id);
	for (size_t i = 0; i < graph->count; i++) {
		CUgraphNode node = graph->nodes[i];
		const struct sim_payload *payload = &node->payload;

		fprintf(file, "\"graph_%u_node_%u\" [label=\"%u\\n%s%s%s\"]\n", graph->id,
			node->local_id, node->local_id, type_names[node->type],
			payload->kernel ? "\\n" : "", payload->kernel ? payload->kernel->name : "");
		for (unsigned b = 0; b < payload->body_count; b++)
			print_graph(file, payload->bodies[b]);
	}
	for (size_t i = 0; i < graph->count; i++)
		for (size_t e = 0; e < graph->nodes[i]->edge_count; e++)
			fprintf(file, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\"\n", graph->id,
				graph->nodes[i]->edges[e].from->local_id, graph->id,
				graph->nodes[i]->local_id);
	fprintf(file, "}\n");
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
	CUresult result = sim_graph_enter();
	FILE *file;

	(void)flags;
	if (result != CUDA_SUCCESS)
		return result;
	if (!path || !sim_live_is(graph, SIM_LIVE_GRAPH))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	file = fopen(path, "we");
	if (!file)
		return sim_graph_leave(CUDA_ERROR_OPERATING_SYSTEM);
	fprintf(file, "digraph dot {\n");
	print_graph(file, graph);
	fprintf(file, "}\n");
	if (fclose(file))
		result = CUDA_ERROR_OPERATING_SYSTEM;
	return sim_graph_leave(result);
}
