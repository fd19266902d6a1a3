/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_GRAPH_EXEC_H
#define SIM_GRAPH_EXEC_H

#include "graph.h"

struct CUgraphExec_st {
	unsigned id;
	unsigned long long flags;
	CUgraph graph; /* a clone, seen by nobody else */
	size_t count;
	CUgraphNode *order;
	/* A launch follows the one before it, whatever their streams. */
	CUevent finished;
	struct sim_device *reserved_on; /* of its allocation nodes, once launched */
	size_t reserved_bytes;
};

/* New parameters for the node of an instantiated graph that came from `node`. */
CUresult sim_exec_node_set(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type,
			   CUgraphNodeParams *params);

#endif
