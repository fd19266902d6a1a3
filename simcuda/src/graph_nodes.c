/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points that add nodes, ask for their parameters and change them. */
#include <string.h>

#include "graph_exec.h"
#include "graph_nodes.h"
#include "live.h"

CUresult sim_graph_enter(void)
{
	CUresult result = sim_ready();

	if (result == CUDA_SUCCESS)
		pthread_mutex_lock(&sim_graph_lock);
	return result;
}

CUresult sim_graph_leave(CUresult result)
{
	sim_graph_unlock();
	return result;
}

CUresult sim_graph_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
		       const CUgraphEdgeData *data, size_t count, CUgraphNodeType type,
		       CUgraphNodeParams *params)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!node || !params || !sim_live_is(graph, SIM_LIVE_GRAPH))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return sim_graph_leave(sim_node_add(graph, type, params, dependencies, data, count, node));
}

/* sim_graph_lock. */
static CUresult node_set(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams *params)
{
	CUresult result;

	if (!sim_live_is(node, SIM_LIVE_NODE) || node->type != type)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
	    type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = sim_payload_set(&node->payload, type, params, node->graph);
	for (unsigned i = 0; result == CUDA_SUCCESS && i < node->payload.body_count; i++)
		node->payload.bodies[i]->owner = node;
	return result;
}

static CUresult set(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams *params)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	return sim_graph_leave(params ? node_set(node, type, params) : CUDA_ERROR_INVALID_VALUE);
}

/* The lock taken and *params led to the node's own, or an error and no lock. */
static CUresult get(CUgraphNode node, CUgraphNodeType type, const void *out,
		    const CUgraphNodeParams **params)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !sim_live_is(node, SIM_LIVE_NODE) || node->type != type)
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	*params = &node->payload.params;
	return CUDA_SUCCESS;
}

static CUresult exec_set(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type,
			 CUgraphNodeParams *params)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!params)
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	return sim_graph_leave(sim_exec_node_set(exec, node, type, params));
}

/* ---- any type -------------------------------------------------------------- */

static CUresult add_any(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof(params->reserved0) / sizeof(params->reserved0[0]); i++)
		if (params->reserved0[i])
			return CUDA_ERROR_INVALID_VALUE;
	if (params->reserved2)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_graph_add(node, graph, dependencies, data, count, params->type, params);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			size_t count, CUgraphNodeParams *params)
{
	return add_any(node, graph, dependencies, NULL, count, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			   const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
	return add_any(node, graph, dependencies, data, count, params);
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			   const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
	return add_any(node, graph, dependencies, data, count, params);
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	return params ? set(node, params->type, params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *params)
{
	return cuGraphNodeSetParams(node, params);
}

CUresult cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	CUresult result = sim_graph_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!params || !sim_live_is(node, SIM_LIVE_NODE))
		return sim_graph_leave(CUDA_ERROR_INVALID_VALUE);
	*params = node->payload.params;
	params->type = node->type;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
	return params ? exec_set(exec, node, params->type, params) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- kernels --------------------------------------------------------------- */

static CUgraphNodeParams of_kernel_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};

	any.kernel.func = params->func;
	any.kernel.gridDimX = params->gridDimX;
	any.kernel.gridDimY = params->gridDimY;
	any.kernel.gridDimZ = params->gridDimZ;
	any.kernel.blockDimX = params->blockDimX;
	any.kernel.blockDimY = params->blockDimY;
	any.kernel.blockDimZ = params->blockDimZ;
	any.kernel.sharedMemBytes = params->sharedMemBytes;
	any.kernel.kernelParams = params->kernelParams;
	any.kernel.extra = params->extra;
	return any;
}

static CUgraphNodeParams of_kernel(const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};

	_Static_assert(sizeof(any.kernel) == sizeof(*params), "v2 and v3 have one layout");
	memcpy(&any.kernel, params, sizeof(*params));
	return any;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			      size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_kernel_v1(params);
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				 size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_kernel(params);
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	const CUgraphNodeParams *any;
	CUresult result = get(node, CU_GRAPH_NODE_TYPE_KERNEL, params, &any);

	if (result != CUDA_SUCCESS)
		return result;
	*params = (CUDA_KERNEL_NODE_PARAMS_v1){
		any->kernel.func,      any->kernel.gridDimX,	   any->kernel.gridDimY,
		any->kernel.gridDimZ,  any->kernel.blockDimX,	   any->kernel.blockDimY,
		any->kernel.blockDimZ, any->kernel.sharedMemBytes, any->kernel.kernelParams,
		any->kernel.extra,
	};
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
	const CUgraphNodeParams *any;
	CUresult result = get(node, CU_GRAPH_NODE_TYPE_KERNEL, params, &any);

	if (result != CUDA_SUCCESS)
		return result;
	memcpy(params, &any->kernel, sizeof(*params));
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_kernel_v1(params);
	return set(node, any.type, &any);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_kernel(params);
	return set(node, any.type, &any);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_kernel_v1(params);
	return exec_set(exec, node, any.type, &any);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
					   const CUDA_KERNEL_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_kernel(params);
	return exec_set(exec, node, any.type, &any);
}

/* ---- copies and sets ------------------------------------------------------- */

static CUgraphNodeParams of_memcpy(const CUDA_MEMCPY3D *params, CUcontext context)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};

	any.memcpy.copyCtx = context;
	any.memcpy.copyParams = *params;
	return any;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			      size_t count, const CUDA_MEMCPY3D *params, CUcontext context)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_memcpy(params, context);
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params)
{
	const CUgraphNodeParams *any;
	CUresult result = get(node, CU_GRAPH_NODE_TYPE_MEMCPY, params, &any);

	if (result != CUDA_SUCCESS)
		return result;
	*params = any->memcpy.copyParams;
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_memcpy(params, NULL);
	return set(node, any.type, &any);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_MEMCPY3D *params, CUcontext context)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_memcpy(params, context);
	return exec_set(exec, node, any.type, &any);
}

static CUgraphNodeParams of_memset(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMSET};

	any.memset.dst = params->dst;
	any.memset.pitch = params->pitch;
	any.memset.value = params->value;
	any.memset.elementSize = params->elementSize;
	any.memset.width = params->width;
	any.memset.height = params->height;
	any.memset.ctx = context;
	return any;
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
			      size_t count, const CUDA_MEMSET_NODE_PARAMS *params,
			      CUcontext context)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_memset(params, context);
	return sim_graph_add(node, graph, dependencies, NULL, count, any.type, &any);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params)
{
	const CUgraphNodeParams *any;
	CUresult result = get(node, CU_GRAPH_NODE_TYPE_MEMSET, params, &any);

	if (result != CUDA_SUCCESS)
		return result;
	*params = (CUDA_MEMSET_NODE_PARAMS){
		any->memset.dst,	 any->memset.pitch, any->memset.value,
		any->memset.elementSize, any->memset.width, any->memset.height,
	};
	return sim_graph_leave(CUDA_SUCCESS);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_memset(params, NULL);
	return set(node, any.type, &any);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraphNodeParams any = of_memset(params, context);
	return exec_set(exec, node, any.type, &any);
}
