/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that are neither kernels nor copies nor sets. */
#include <stdlib.h>
#include <string.h>

#include "graph_exec.h"
#include "graph_nodes.h"
#include "live.h"

/* The lock taken and a live node of the type, or an error and no lock. */
static CUresult enter_node(CUgraphNode node, CUgraphNodeType type, const void *out)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !sim_live_is(node, SIM_LIVE_NODE) || node->type != type)
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

static CUresult set(CUgraphNode node, CUgraphNodeParams *params)
{
	CUresult result = enter_node(node, params->type, params);

	if (result != CUDA_SUCCESS)
		return result;
	return sim_graph_leave(sim_payload_set(&node->payload, params->type, params, node->graph));
}

static CUresult exec_set(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	return sim_graph_leave(sim_exec_node_set(exec, node, params->type, params));
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			     size_t count)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

/* ---- host functions -------------------------------------------------------- */

static CUgraphNodeParams of_host(const CUDA_HOST_NODE_PARAMS *params)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_HOST};

	any.host.fn = params->fn;
	any.host.userData = params->userData;
	return any;
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			    size_t count, const CUDA_HOST_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_host(params);
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *params)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_HOST, params);

	if (result != CUDA_SUCCESS)
		return result;
	params->fn = node->payload.params.host.fn;
	params->userData = node->payload.params.host.userData;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_host(params);
	return set(node, &any);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
				      const CUDA_HOST_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_host(params);
	return exec_set(exec, node, &any);
}

/* ---- child graphs ---------------------------------------------------------- */

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				  size_t count, CUgraph child)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_GRAPH};

	any.graph.graph = child;
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_GRAPH, graph);

	if (result != CUDA_SUCCESS)
		return result;
	*graph = node->payload.bodies[0];
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_GRAPH};

	any.graph.graph = child;
	return exec_set(exec, node, &any);
}

/* ---- events ---------------------------------------------------------------- */

static CUgraphNodeParams of_record(CUevent event)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD};

	any.eventRecord.event = event;
	return any;
}

static CUgraphNodeParams of_wait(CUevent event)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT};

	any.eventWait.event = event;
	return any;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph,
				   const CUgraphNode *dependencies, size_t count, CUevent event)
{
	CUgraphNodeParams any = of_record(event);

	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);

	if (result != CUDA_SUCCESS)
		return result;
	*event = node->payload.params.eventRecord.event;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
	CUgraphNodeParams any = of_record(event);

	return set(node, &any);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	CUgraphNodeParams any = of_record(event);

	return exec_set(exec, node, &any);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				 size_t count, CUevent event)
{
	CUgraphNodeParams any = of_wait(event);

	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);

	if (result != CUDA_SUCCESS)
		return result;
	*event = node->payload.params.eventWait.event;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
	CUgraphNodeParams any = of_wait(event);

	return set(node, &any);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	CUgraphNodeParams any = of_wait(event);

	return exec_set(exec, node, &any);
}

/* ---- stream memory operations ---------------------------------------------- */

static CUgraphNodeParams of_mem_ops(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};

	any.memOp.ctx = params->ctx;
	any.memOp.count = params->count;
	any.memOp.paramArray = params->paramArray;
	any.memOp.flags = params->flags;
	return any;
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				  size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_mem_ops(params);
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params);

	if (result != CUDA_SUCCESS)
		return result;
	params->ctx = node->payload.params.memOp.ctx;
	params->count = node->payload.params.memOp.count;
	params->paramArray = node->payload.params.memOp.paramArray;
	params->flags = node->payload.params.memOp.flags;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
					const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_mem_ops(params);
	return set(node, &any);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
					    const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_mem_ops(params);
	return exec_set(exec, node, &any);
}

/* ---- memory ---------------------------------------------------------------- */

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	_Static_assert(sizeof(any.alloc) == sizeof(*params), "v1 and v2 have one layout");
	memcpy(&any.alloc, params, sizeof(*params));
	CUresult result = sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
	if (result == CUDA_SUCCESS)
		params->dptr = any.alloc.dptr;
	return result;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params);

	if (result != CUDA_SUCCESS)
		return result;
	memcpy(params, &node->payload.params.alloc, sizeof(*params));
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			       size_t count, CUdeviceptr address)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};

	any.free.dptr = address;
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_MEM_FREE, address);

	if (result != CUDA_SUCCESS)
		return result;
	*address = node->payload.params.free.dptr;
	return sim_graph_leave(CUDA_SUCCESS);
}

/* ---- conditions ------------------------------------------------------------ */

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph,
					CUcontext context, unsigned int value, unsigned int flags)
{
	CUresult result = sim_graph_enter();
	unsigned *values;

	(void)context;
	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !sim_live_is(graph, SIM_LIVE_GRAPH) ||
	    (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	values = realloc(graph->conditional_values,
			 (graph->conditional_count + 1) * sizeof(*values));
	if (!values)
		return sim_graph_leave(CUDA_ERROR_OUT_OF_MEMORY);
	graph->conditional_values = values;
	values[graph->conditional_count++] = flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? value : 0;
	*handle = (CUgraphConditionalHandle)graph->id << 32 | graph->conditional_count;
	return sim_graph_leave(CUDA_SUCCESS);
}

/* ---- attributes of kernel nodes --------------------------------------------- */

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
				       CUkernelNodeAttrValue *value)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_KERNEL, value);

	if (result != CUDA_SUCCESS)
		return result;
	if ((int)attribute <= 0 || attribute >= CU_LAUNCH_ATTRIBUTE_MAX)
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	if (node->payload.attributes)
		*value = node->payload.attributes[attribute];
	else
		memset(value, 0, sizeof(*value));
	return sim_graph_leave(CUDA_SUCCESS);
}

/* sim_graph_lock. */
static CUresult attributes_make(CUgraphNode node)
{
	if (!node->payload.attributes)
		node->payload.attributes =
			calloc(CU_LAUNCH_ATTRIBUTE_MAX, sizeof(*node->payload.attributes));
	return node->payload.attributes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
				       const CUkernelNodeAttrValue *value)
{
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_KERNEL, value);

	if (result != CUDA_SUCCESS)
		return result;
	if ((int)attribute <= 0 || attribute >= CU_LAUNCH_ATTRIBUTE_MAX)
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	result = attributes_make(node);
	if (result == CUDA_SUCCESS)
		node->payload.attributes[attribute] = *value;
	return sim_graph_leave(result);
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	CUresult result = enter_node(to, CU_GRAPH_NODE_TYPE_KERNEL, from);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_live_is(from, SIM_LIVE_NODE) || from->type != CU_GRAPH_NODE_TYPE_KERNEL)
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	if (from->payload.attributes && to != from) {
		result = attributes_make(to);
		if (result == CUDA_SUCCESS)
			memcpy(to->payload.attributes, from->payload.attributes,
			       CU_LAUNCH_ATTRIBUTE_MAX * sizeof(*to->payload.attributes));
	}
	return sim_graph_leave(result);
}
