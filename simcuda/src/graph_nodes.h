/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_GRAPH_NODES_H
#define SIM_GRAPH_NODES_H

#include "graph.h"

/* CUDA_SUCCESS with sim_graph_lock taken, or an error without it. */
CUresult sim_graph_enter(void);
/* Gives the lock back and hands its argument through. */
CUresult sim_graph_leave(CUresult result);

/* sim_node_add() with the lock taken and the handles checked. */
CUresult sim_graph_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
		       const CUgraphEdgeData *data, size_t count, CUgraphNodeType type,
		       CUgraphNodeParams *params);

#endif
