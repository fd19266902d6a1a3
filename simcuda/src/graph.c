/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, nodes and edges themselves. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "live.h"
#include "user_object.h"

pthread_mutex_t sim_graph_lock = PTHREAD_MUTEX_INITIALIZER;

/* Ids of graphs are 32 bits wide, so they have a counter of their own. */
static unsigned last_graph_id;

CUgraph sim_graph_new(void)
{
	CUgraph graph = calloc(1, sizeof(*graph));

	if (!graph || sim_live_add(graph, SIM_LIVE_GRAPH)) {
		free(graph);
		return NULL;
	}
	graph->id = ++last_graph_id;
	return graph;
}

static void node_destroy(CUgraphNode node)
{
	sim_live_remove(node);
	sim_payload_free(&node->payload);
	free(node->edges);
	free(node);
}

void sim_graph_free(CUgraph graph)
{
	sim_live_remove(graph);
	for (size_t i = 0; i < graph->count; i++)
		node_destroy(graph->nodes[i]);
	sim_retained_free(graph);
	free(graph->conditional_values);
	free(graph->nodes);
	free(graph);
}

int sim_edge_add(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data)
{
	for (size_t i = 0; i < to->edge_count; i++)
		if (to->edges[i].from == from)
			return -EEXIST;
	struct sim_edge *edges = realloc(to->edges, (to->edge_count + 1) * sizeof(*edges));
	if (!edges)
		return -ENOMEM;
	to->edges = edges;
	edges[to->edge_count] = (struct sim_edge){.from = from};
	if (data)
		edges[to->edge_count].data = *data;
	to->edge_count++;
	return 0;
}

int sim_edge_remove(CUgraphNode from, CUgraphNode to)
{
	for (size_t i = 0; i < to->edge_count; i++) {
		if (to->edges[i].from == from) {
			memmove(&to->edges[i], &to->edges[i + 1],
				(to->edge_count - i - 1) * sizeof(*to->edges));
			to->edge_count--;
			return 0;
		}
	}
	return -ENOENT;
}

/* A node without content, appended to the graph. NULL: no memory. */
static CUgraphNode node_new(CUgraph graph, CUgraphNodeType type)
{
	CUgraphNode node;

	if (graph->count == graph->room) {
		size_t room = graph->room ? 2 * graph->room : 8;
		CUgraphNode *nodes = realloc(graph->nodes, room * sizeof(CUgraphNode));

		if (!nodes)
			return NULL;
		graph->nodes = nodes;
		graph->room = room;
	}
	node = aligned_alloc(_Alignof(struct CUgraphNode_st), sizeof(*node));
	if (!node)
		return NULL;
	memset(node, 0, sizeof(*node));
	if (sim_live_add(node, SIM_LIVE_NODE)) {
		free(node);
		return NULL;
	}
	node->graph = graph;
	node->type = type;
	node->local_id = graph->next_local_id++;
	node->tools_id = sim_next_id();
	node->index = graph->count;
	graph->nodes[graph->count++] = node;
	return node;
}

void sim_node_free(CUgraphNode node)
{
	CUgraph graph = node->graph;

	for (size_t i = node->index; i + 1 < graph->count; i++) {
		graph->nodes[i] = graph->nodes[i + 1];
		graph->nodes[i]->index = i;
	}
	graph->count--;
	for (size_t i = 0; i < graph->count; i++)
		sim_edge_remove(node, graph->nodes[i]);
	node_destroy(node);
}

/* Ports other than 0 and types other than the default exist for kernels only. */
static bool edge_valid(CUgraphNode from, const CUgraphEdgeData *data)
{
	if (!data)
		return true;
	for (size_t i = 0; i < sizeof(data->reserved); i++)
		if (data->reserved[i])
			return false;
	if (data->to_port || data->type > CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
		return false;
	return (!data->from_port && !data->type) ||
	       (from->type == CU_GRAPH_NODE_TYPE_KERNEL &&
		data->from_port <= CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER);
}

CUresult sim_node_add(CUgraph graph, CUgraphNodeType type, CUgraphNodeParams *params,
		      const CUgraphNode *dependencies, const CUgraphEdgeData *data, size_t count,
		      CUgraphNode *node)
{
	CUgraphNode made;
	CUresult result;

	if (count && !dependencies)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!sim_live_is(dependencies[i], SIM_LIVE_NODE) ||
		    dependencies[i]->graph != graph ||
		    !edge_valid(dependencies[i], data ? &data[i] : NULL))
			return CUDA_ERROR_INVALID_VALUE;
	made = node_new(graph, type);
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = sim_payload_set(&made->payload, type, params, graph);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		int failed = sim_edge_add(dependencies[i], made, data ? &data[i] : NULL);

		if (failed)
			result = failed == -EEXIST ? CUDA_ERROR_INVALID_VALUE
						   : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result != CUDA_SUCCESS) {
		sim_node_free(made);
		return result;
	}
	for (unsigned i = 0; i < made->payload.body_count; i++)
		made->payload.bodies[i]->owner = made;
	*node = made;
	return CUDA_SUCCESS;
}

CUgraph sim_graph_clone(CUgraph graph)
{
	CUgraph clone = sim_graph_new();

	if (!clone)
		return NULL;
	if (graph->conditional_count) {
		size_t bytes = graph->conditional_count * sizeof(*graph->conditional_values);

		clone->conditional_values = malloc(bytes);
		if (!clone->conditional_values)
			goto fail;
		memcpy(clone->conditional_values, graph->conditional_values, bytes);
		clone->conditional_count = graph->conditional_count;
	}
	for (size_t i = 0; i < graph->count; i++) {
		CUgraphNode from = graph->nodes[i], to = node_new(clone, from->type);

		if (!to)
			goto fail;
		to->local_id = from->local_id;
		to->origin = from->tools_id;
		to->disabled = from->disabled;
		if (sim_payload_clone(&to->payload, &from->payload, to) != CUDA_SUCCESS)
			goto fail;
	}
	/* Edges last: one may lead to a node that was made later. */
	for (size_t i = 0; i < graph->count; i++)
		for (size_t e = 0; e < graph->nodes[i]->edge_count; e++)
			if (sim_edge_add(clone->nodes[graph->nodes[i]->edges[e].from->index],
					 clone->nodes[i], &graph->nodes[i]->edges[e].data))
				goto fail;
	clone->next_local_id = graph->next_local_id;
	if (sim_retained_copy(clone, graph))
		goto fail;
	return clone;
fail:
	sim_graph_free(clone);
	return NULL;
}

enum { UNSEEN, OPEN, CLOSED };

int sim_graph_order(CUgraph graph, CUgraphNode *order)
{
	size_t placed = 0, depth = 0;
	struct visit {
		CUgraphNode node;
		size_t edge;
	} *stack = malloc((graph->count + 1) * sizeof(*stack));
	int result = 0;

	if (!stack)
		return -ENOMEM;
	for (size_t i = 0; i < graph->count; i++)
		graph->nodes[i]->mark = UNSEEN;
	for (size_t i = 0; i < graph->count && !result; i++) {
		if (graph->nodes[i]->mark != UNSEEN)
			continue;
		graph->nodes[i]->mark = OPEN;
		stack[depth++] = (struct visit){graph->nodes[i], 0};
		while (depth && !result) {
			struct visit *top = &stack[depth - 1];

			if (top->edge == top->node->edge_count) {
				top->node->mark = CLOSED;
				order[placed++] = top->node;
				depth--;
				continue;
			}
			CUgraphNode next = top->node->edges[top->edge++].from;
			if (next->mark == OPEN)
				result = -ELOOP;
			else if (next->mark == UNSEEN) {
				next->mark = OPEN;
				stack[depth++] = (struct visit){next, 0};
			}
		}
	}
	free(stack);
	return result;
}

CUgraphNode sim_node_clone_of(CUgraph graph, CUgraphNode origin)
{
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->origin == origin->tools_id)
			return graph->nodes[i];
	for (size_t i = 0; i < graph->count; i++) {
		const struct sim_payload *payload = &graph->nodes[i]->payload;

		for (unsigned b = 0; b < payload->body_count; b++) {
			CUgraphNode found = sim_node_clone_of(payload->bodies[b], origin);

			if (found)
				return found;
		}
	}
	return NULL;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_lock);
	*graph = sim_graph_new();
	sim_graph_unlock();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_graph_lock);
	if (!sim_live_is(graph, SIM_LIVE_GRAPH) || graph->owner)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		sim_graph_free(graph);
	sim_graph_unlock();
	return result;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_graph_lock);
	if (!clone || !sim_live_is(graph, SIM_LIVE_GRAPH)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		*clone = sim_graph_clone(graph);
		result = *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	sim_graph_unlock();
	return result;
}
