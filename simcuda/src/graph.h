/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: nodes with dependencies. An instantiated graph is a clone whose nodes are
 * enqueued one after another, in an order that honours the dependencies, on the
 * stream it is launched in. So nodes that no edge orders do not overlap: a graph one
 * of whose branches waits for a value that another branch writes does not finish.
 *
 * sim_graph_lock guards all graphs, nodes and instantiated graphs. Functions named
 * sim_graph_* and sim_node_* below want it held.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "launch.h"

#define SIM_GRAPH_BODIES 8

/* Memory of an allocation node, shared by its clones. */
struct sim_graph_memory {
	unsigned users;
	struct sim_context *context;
	CUdeviceptr address;
	size_t bytes;
	bool handed_out; /* launched, and no free node has run since */
};

/*
 * What a node does. params is as a caller would give it, its pointers led to what the
 * payload owns.
 */
struct sim_payload {
	CUgraphNodeParams params;
	/* KERNEL */
	const struct sim_kernel *kernel;
	_Alignas(16) unsigned char arguments[SIM_KERNEL_BYTES];
	void *argument_pointers[SIM_KERNEL_PARAMETERS];
	CUlaunchAttributeValue *attributes; /* CU_LAUNCH_ATTRIBUTE_MAX of them, or NULL */
	/* GRAPH, CONDITIONAL */
	unsigned body_count;
	CUgraph bodies[SIM_GRAPH_BODIES];
	/* MEM_ALLOC, MEM_FREE */
	struct sim_graph_memory *memory;
};

struct sim_edge {
	CUgraphNode from;
	CUgraphEdgeData data;
};

struct CUgraphNode_st {
	CUgraph graph;
	CUgraphNodeType type;
	unsigned local_id;
	unsigned long long tools_id; /* of every node ever, never reused */
	unsigned long long origin;   /* tools_id of the node this is a clone of */
	bool disabled;
	size_t index;  /* in graph->nodes */
	unsigned mark; /* for walks */
	size_t edge_count;
	struct sim_edge *edges; /* what this node depends on */
	struct sim_payload payload;
};

struct sim_user_object;

struct CUgraph_st {
	unsigned id;
	CUgraphNode owner; /* the node whose child or body this is */
	size_t count, room;
	CUgraphNode *nodes;
	unsigned next_local_id;
	unsigned conditional_count;
	unsigned *conditional_values; /* by handle: what each launch begins with */
	struct sim_retained *retained;
};

extern pthread_mutex_t sim_graph_lock;
/* Unlocks, then runs the destructors of user objects that lost their last user. */
void sim_graph_unlock(void);

/* NULL: no memory. */
CUgraph sim_graph_new(void);
CUgraph sim_graph_clone(CUgraph graph);
void sim_graph_free(CUgraph graph);

/*
 * Adds a node that depends on `count` others of the same graph. Takes nothing over:
 * the payload is built from params. *params is written where the node hands
 * something out (an address, the graphs of a conditional node).
 */
CUresult sim_node_add(CUgraph graph, CUgraphNodeType type, CUgraphNodeParams *params,
		      const CUgraphNode *dependencies, const CUgraphEdgeData *data, size_t count,
		      CUgraphNode *node);
void sim_node_free(CUgraphNode node);
/* 0, or -ENOMEM, or -EEXIST when there is such an edge. */
int sim_edge_add(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data);
/* 0 or -ENOENT. */
int sim_edge_remove(CUgraphNode from, CUgraphNode to);
/* The graph's nodes, each after those it depends on, in order[count]. -ELOOP. */
int sim_graph_order(CUgraph graph, CUgraphNode *order);
/* The clone of `origin` in a clone. NULL: none. */
CUgraphNode sim_node_clone_of(CUgraph graph, CUgraphNode origin);

/* graph_payload.c: what a node of the type does from now on. The old content stays
 * when this fails. */
CUresult sim_payload_set(struct sim_payload *payload, CUgraphNodeType type,
			 CUgraphNodeParams *params, CUgraph graph);
CUresult sim_payload_clone(struct sim_payload *to, const struct sim_payload *from,
			   CUgraphNode owner);
void sim_payload_free(struct sim_payload *payload);

/* graph_convert.c */
void sim_copy_from_3d(struct sim_copy *copy, const CUDA_MEMCPY3D *shape);
void sim_copy_to_3d(CUDA_MEMCPY3D *shape, const struct sim_copy *copy);
void sim_set_from_params(struct sim_set *set, const CUDA_MEMSET_NODE_PARAMS_v2 *params);

/* graph_memory.c */
CUresult sim_graph_memory_new(struct sim_context *context, size_t bytes,
			      struct sim_graph_memory **memory);
void sim_graph_memory_put(struct sim_graph_memory *memory);
/* The memory that an allocation node of any graph handed out at the address. */
struct sim_graph_memory *sim_graph_memory_at(CUdeviceptr address);
/* Counts what an instantiated graph holds once it was launched. */
void sim_graph_memory_reserve(struct sim_device *device, size_t bytes);
void sim_graph_memory_unreserve(struct sim_device *device, size_t bytes);

#endif
