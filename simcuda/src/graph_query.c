/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about graphs and their edges, and changes of edges. */
#include <errno.h>
#include <string.h>

#include "graph_nodes.h"
#include "live.h"

/* Answers a list of `found` items into an array of the caller's: NULL asks for the
 * number; entries behind the last are cleared. */
struct listing {
	size_t found;
	size_t room;
};

static bool wants(struct listing *listing)
{
	return listing->found++ < listing->room;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !sim_live_is(graph, SIM_LIVE_GRAPH))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; nodes && i < *count; i++)
		nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
	if (!nodes || *count > graph->count)
		*count = graph->count;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult result = sim_graph_enter();
	struct listing listing = {0};

	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !sim_live_is(graph, SIM_LIVE_GRAPH))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	listing.room = nodes ? *count : 0;
	for (size_t i = 0; i < graph->count; i++)
		if (!graph->nodes[i]->edge_count && wants(&listing))
			nodes[listing.found - 1] = graph->nodes[i];
	for (size_t i = listing.found; i < listing.room; i++)
		nodes[i] = NULL;
	if (!nodes || *count > listing.found)
		*count = listing.found;
	return sim_graph_leave(CUDA_SUCCESS);
}

static bool edge_is_plain(const CUgraphEdgeData *data)
{
	return !data->from_port && !data->to_port && !data->type;
}

/*
 * One walk for the three questions about edges: all of a graph, into a node, out of a
 * node. Callers that cannot be given edge data are refused where there is any.
 */
static CUresult list_edges(CUgraph graph, CUgraphNode into, CUgraphNode out_of, CUgraphNode *from,
			   CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	struct listing listing = {.room = from || to ? *count : 0};

	for (size_t i = 0; i < graph->count; i++) {
		CUgraphNode node = graph->nodes[i];

		if (into && node != into)
			continue;
		for (size_t e = 0; e < node->edge_count; e++) {
			const struct sim_edge *edge = &node->edges[e];

			if (out_of && edge->from != out_of)
				continue;
			if ((from || to) && !data && !edge_is_plain(&edge->data))
				return CUDA_ERROR_LOSSY_QUERY;
			if (!wants(&listing))
				continue;
			if (from)
				from[listing.found - 1] = edge->from;
			if (to)
				to[listing.found - 1] = node;
			if (data)
				data[listing.found - 1] = edge->data;
		}
	}
	for (size_t i = listing.found; i < listing.room; i++) {
		if (from)
			from[i] = NULL;
		if (to)
			to[i] = NULL;
		if (data)
			memset(&data[i], 0, sizeof(*data));
	}
	if (!listing.room || *count > listing.found)
		*count = listing.found;
	return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
			    CUgraphEdgeData *data, size_t *count)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !from != !to || !sim_live_is(graph, SIM_LIVE_GRAPH))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return sim_graph_leave(list_edges(graph, NULL, NULL, from, to, data, count));
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies,
				       CUgraphEdgeData *data, size_t *count)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !sim_live_is(node, SIM_LIVE_NODE))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return sim_graph_leave(
		list_edges(node->graph, node, NULL, dependencies, NULL, data, count));
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count)
{
	return cuGraphNodeGetDependencies_v2(node, dependencies, NULL, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *dependents,
					 CUgraphEdgeData *data, size_t *count)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !sim_live_is(node, SIM_LIVE_NODE))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return sim_graph_leave(list_edges(node->graph, NULL, node, NULL, dependents, data, count));
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *dependents, size_t *count)
{
	return cuGraphNodeGetDependentNodes_v2(node, dependents, NULL, count);
}

static bool nodes_of(CUgraph graph, const CUgraphNode *nodes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!sim_live_is(nodes[i], SIM_LIVE_NODE) || nodes[i]->graph != graph)
			return false;
	return true;
}

/* Both lists, or nothing: an edge that cannot be added takes back those before it. */
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				   const CUgraphEdgeData *data, size_t count)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_live_is(graph, SIM_LIVE_GRAPH) || (count && (!from || !to)) ||
	    !nodes_of(graph, from, count) || !nodes_of(graph, to, count))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		int failed = from[i] == to[i]
				     ? -EEXIST
				     : sim_edge_add(from[i], to[i], data ? &data[i] : NULL);

		if (failed) {
			while (i--)
				sim_edge_remove(from[i], to[i]);
			return sim_graph_leave(failed == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY
								 : CUDA_ERROR_INVALID_VALUE);
		}
	}
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				size_t count)
{
	return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

static bool edge_exists(CUgraphNode from, CUgraphNode to)
{
	for (size_t i = 0; i < to->edge_count; i++)
		if (to->edges[i].from == from)
			return true;
	return false;
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				      const CUgraphEdgeData *data, size_t count)
{
	CUresult result = sim_graph_enter();

	(void)data;
	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_live_is(graph, SIM_LIVE_GRAPH) || (count && (!from || !to)) ||
	    !nodes_of(graph, from, count) || !nodes_of(graph, to, count))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++)
		if (!edge_exists(from[i], to[i]))
			return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++)
		sim_edge_remove(from[i], to[i]);
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				   size_t count)
{
	return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

CUresult cuGraphDestroyNode(CUgraphNode node)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_live_is(node, SIM_LIVE_NODE))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	/* The graph would hand out memory that nobody frees, or free what nobody has. */
	if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		return sim_graph_leave(CUDA_ERROR_NOT_SUPPORTED);
	sim_node_free(node);
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode node, CUgraph clone)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!found || !sim_live_is(node, SIM_LIVE_NODE) || !sim_live_is(clone, SIM_LIVE_GRAPH))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	*found = sim_node_clone_of(clone, node);
	return sim_graph_leave(*found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Common to the questions about one node. */
static CUresult enter_node(CUgraphNode node, const void *out)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !sim_live_is(node, SIM_LIVE_NODE))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	CUresult result = enter_node(node, type);

	if (result != CUDA_SUCCESS)
		return result;
	*type = node->type;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetContainingGraph(CUgraphNode node, CUgraph *graph)
{
	CUresult result = enter_node(node, graph);

	if (result != CUDA_SUCCESS)
		return result;
	*graph = node->graph;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetLocalId(CUgraphNode node, unsigned int *id)
{
	CUresult result = enter_node(node, id);

	if (result != CUDA_SUCCESS)
		return result;
	*id = node->local_id;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetToolsId(CUgraphNode node, unsigned long long *id)
{
	CUresult result = enter_node(node, id);

	if (result != CUDA_SUCCESS)
		return result;
	*id = node->tools_id;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphGetId(CUgraph graph, unsigned int *id)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!id || !sim_live_is(graph, SIM_LIVE_GRAPH))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	*id = graph->id;
	return sim_graph_leave(CUDA_SUCCESS);
}
