/* SPDX-License-Identifier: Apache-2.0 */
/* Instantiated graphs: made, changed, launched. */
#include <errno.h>
#include <stdlib.h>

#include "graph_exec.h"
#include "graph_nodes.h"
#include "live.h"

#define FLAGS_KNOWN                                                                             \
	(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | \
	 CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |                                            \
	 CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

/* sim_graph_lock. */
static void exec_free(CUgraphExec exec)
{
	if (exec->finished)
		cuEventDestroy_v2(exec->finished);
	if (exec->reserved_on)
		sim_graph_memory_unreserve(exec->reserved_on, exec->reserved_bytes);
	if (exec->graph)
		sim_graph_free(exec->graph);
	free(exec->order);
	free(exec);
}

/* sim_graph_lock. */
static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	CUgraphExec exec;
	int failed;

	if (!out || !sim_live_is(graph, SIM_LIVE_GRAPH) ||
	    (flags & ~(unsigned long long)FLAGS_KNOWN))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
		return CUDA_ERROR_NOT_SUPPORTED;
	exec = calloc(1, sizeof(*exec));
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->flags = flags;
	exec->graph = sim_graph_clone(graph);
	if (!exec->graph)
		goto no_memory;
	exec->id = exec->graph->id;
	exec->count = exec->graph->count;
	exec->order = calloc(exec->count + 1, sizeof(CUgraphNode));
	if (!exec->order)
		goto no_memory;
	failed = sim_graph_order(exec->graph, exec->order);
	if (failed == -ELOOP) {
		exec_free(exec);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (failed || sim_live_add(exec, SIM_LIVE_EXEC))
		goto no_memory;
	*out = exec;
	return CUDA_SUCCESS;
no_memory:
	exec_free(exec);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CUresult result = sim_graph_enter();

	return result == CUDA_SUCCESS ? sim_graph_leave(instantiate(exec, graph, flags)) : result;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
			    size_t log_bytes)
{
	if (error_node)
		*error_node = NULL;
	if (log && log_bytes)
		*log = '\0';
	return cuGraphInstantiateWithFlags(exec, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
			       size_t log_bytes)
{
	return cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	params->hErrNode_out = NULL;
	result = cuGraphInstantiateWithFlags(exec, graph, params->flags);
	params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
						    : CUDA_GRAPH_INSTANTIATE_ERROR;
	return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_live_is(exec, SIM_LIVE_EXEC))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	sim_live_remove(exec);
	exec_free(exec);
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !sim_live_is(exec, SIM_LIVE_EXEC))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = exec->flags;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecGetId(CUgraphExec exec, unsigned int *id)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!id || !sim_live_is(exec, SIM_LIVE_EXEC))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	*id = exec->id;
	return sim_graph_leave(CUDA_SUCCESS);
}

/* The exec's own node, of the right type. */
static CUgraphNode exec_node(CUgraphExec exec, CUgraphNode node)
{
	if (!sim_live_is(exec, SIM_LIVE_EXEC) || !sim_live_is(node, SIM_LIVE_NODE))
		return NULL;
	return sim_node_clone_of(exec->graph, node);
}

/* The same nodes, of the same types, joined by the same edges. NULL, or the first of
 * `to` that differs; *type tells whether it is only the type. */
static CUgraphNode difference(CUgraph from, CUgraph to, bool *type)
{
	*type = false;
	for (size_t i = 0; i < to->count && i < from->count; i++) {
		CUgraphNode a = from->nodes[i], b = to->nodes[i];

		if (a->type != b->type) {
			*type = true;
			return b;
		}
		if (a->edge_count != b->edge_count)
			return b;
		for (size_t e = 0; e < a->edge_count; e++)
			if (a->edges[e].from->index != b->edges[e].from->index)
				return b;
		for (unsigned k = 0; k < a->payload.body_count; k++) {
			if (k >= b->payload.body_count ||
			    a->payload.bodies[k]->count != b->payload.bodies[k]->count ||
			    difference(a->payload.bodies[k], b->payload.bodies[k], type))
				return b;
		}
	}
	return NULL;
}

CUresult sim_exec_node_set(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type,
			   CUgraphNodeParams *params)
{
	CUgraphNode own = exec_node(exec, node);
	bool only_type;
	CUresult result;

	if (!own || own->type != type)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
	    type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
		CUgraph child = params->graph.graph;

		if (!sim_live_is(child, SIM_LIVE_GRAPH) ||
		    child->count != own->payload.bodies[0]->count ||
		    difference(own->payload.bodies[0], child, &only_type))
			return CUDA_ERROR_INVALID_VALUE;
	}
	result = sim_payload_set(&own->payload, type, params, own->graph);
	for (unsigned i = 0; result == CUDA_SUCCESS && i < own->payload.body_count; i++)
		own->payload.bodies[i]->owner = own;
	return result;
}

static bool can_be_disabled(CUgraphNode node)
{
	return node &&
	       (node->type == CU_GRAPH_NODE_TYPE_KERNEL ||
		node->type == CU_GRAPH_NODE_TYPE_MEMCPY || node->type == CU_GRAPH_NODE_TYPE_MEMSET);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	CUgraphNode own = exec_node(exec, node);
	if (!can_be_disabled(own))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	own->disabled = !enabled;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	CUgraphNode own = exec_node(exec, node);
	if (!enabled || !can_be_disabled(own))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	*enabled = !own->disabled;
	return sim_graph_leave(CUDA_SUCCESS);
}

/* sim_graph_lock. */
static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	bool only_type;
	CUgraphNode different;

	*info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
	if (!sim_live_is(exec, SIM_LIVE_EXEC) || !sim_live_is(graph, SIM_LIVE_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	different = difference(exec->graph, graph, &only_type);
	if (different || graph->count != exec->graph->count) {
		info->errorNode = different;
		info->result = only_type ? CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED
					 : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	for (size_t i = 0; i < graph->count; i++) {
		CUgraphNode own = exec->graph->nodes[i];
		struct sim_payload old = own->payload;

		if (sim_payload_clone(&own->payload, &graph->nodes[i]->payload, own) !=
		    CUDA_SUCCESS)
			return CUDA_ERROR_OUT_OF_MEMORY;
		sim_payload_free(&old);
	}
	info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
	return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	return sim_graph_leave(info ? update(exec, graph, info) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
			   CUgraphExecUpdateResult *outcome)
{
	CUgraphExecUpdateResultInfo info;
	CUresult result;

	if (!outcome)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuGraphExecUpdate_v2(exec, graph, &info);
	*outcome = info.result;
	if (error_node)
		*error_node = info.errorNode;
	return result;
}
