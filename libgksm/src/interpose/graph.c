/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instantiated graphs. Their copies and sets happen at each launch, long after the
 * program said what they touch, and a node that meets a read-only page kills the
 * context. So all pages that such nodes read or write are private and pinned while the
 * graph can be launched.
 *
 * Pages are pinned once for each instantiated graph. When its nodes change, the new
 * set is pinned before the driver is asked and the old one let go after.
 */
#include "interpose/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "wrap.h"

struct gksm_graphs *gksm_graphs_of(struct gksm *process)
{
	struct gksm_graphs *graphs = __atomic_load_n(&process->graphs, __ATOMIC_ACQUIRE);
	struct gksm_graphs *fresh;

	if (graphs)
		return graphs;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (__atomic_compare_exchange_n(&process->graphs, &graphs, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	free(fresh);
	return graphs;
}

static struct gksm_exec **bucket_of(struct gksm_graphs *graphs, CUgraphExec handle)
{
	return &graphs->execs[((uintptr_t)handle >> 4) % GKSM_EXEC_BUCKETS];
}

/* Out of the table and the caller's from then on. NULL: it touches nothing of ours. */
static struct gksm_exec *take_exec(struct gksm_graphs *graphs, CUgraphExec handle)
{
	struct gksm_exec **link, *exec;

	gksm_mutex_lock(&graphs->lock);
	for (link = bucket_of(graphs, handle); (exec = *link) && exec->handle != handle;)
		link = &exec->next;
	if (exec)
		*link = exec->next;
	gksm_mutex_unlock(&graphs->lock);
	return exec;
}

static void put_exec(struct gksm_graphs *graphs, struct gksm_exec *exec)
{
	struct gksm_exec **bucket = bucket_of(graphs, exec->handle);

	gksm_mutex_lock(&graphs->lock);
	exec->next = *bucket;
	*bucket = exec;
	gksm_mutex_unlock(&graphs->lock);
}

static void free_exec(struct gksm *process, struct gksm_exec *exec)
{
	if (!exec)
		return;
	gksm_page_set_unpin(process, &exec->pinned);
	free(exec->pinned.items);
	gksm_node_ranges_free(&exec->ranges);
	free(exec);
}

/* Takes `ranges` over. NULL: *result says why, and nothing is pinned. */
static struct gksm_exec *new_exec(struct gksm *process, struct gksm_node_ranges *ranges,
				  CUresult *result)
{
	struct gksm_exec *exec = calloc(1, sizeof(*exec));

	*result = CUDA_ERROR_OUT_OF_MEMORY;
	if (exec && gksm_node_ranges_pages(ranges, process, &exec->pinned)) {
		*result = gksm_page_set_pin(process, &exec->pinned);
		if (*result == CUDA_SUCCESS) {
			exec->ranges = *ranges;
			return exec;
		}
		free(exec->pinned.items);
	}
	free(exec);
	gksm_node_ranges_free(ranges);
	return NULL;
}

static struct gksm_exec *exec_of_graph(struct gksm *process, CUgraph graph, CUresult *result)
{
	struct gksm_node_ranges ranges = {.items = NULL};

	gksm_node_ranges_walk(&ranges, process, graph, NULL);
	return new_exec(process, &ranges, result);
}

/* The call made it exist, or did not. */
static void settle(struct gksm *process, struct gksm_exec *exec, CUgraphExec handle,
		   CUresult result)
{
	struct gksm_graphs *graphs = gksm_graphs_of(process);

	if (result != CUDA_SUCCESS || !exec->pinned.count || !graphs) {
		free_exec(process, exec);
		return;
	}
	exec->handle = handle;
	put_exec(graphs, exec);
}

#define INSTANTIATE(handle, graph, real_call)                                                     \
	({                                                                                        \
		struct gksm *process_ = gksm_process();                                           \
		struct gksm_exec *exec_ = NULL;                                                   \
		CUresult made_ = CUDA_SUCCESS;                                                    \
                                                                                                  \
		if (process_ && (handle))                                                         \
			exec_ = exec_of_graph(process_, graph, &made_);                           \
		if (made_ == CUDA_SUCCESS)                                                        \
			made_ = (real_call);                                                      \
		if (exec_)                                                                        \
			settle(process_, exec_, made_ == CUDA_SUCCESS ? *(handle) : NULL, made_); \
		made_;                                                                            \
	})

GKSM_WRAP(cuGraphInstantiate)(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
			      size_t log_bytes)
{
	return INSTANTIATE(exec, graph,
			   GKSM_REAL(cuGraphInstantiate)(exec, graph, error_node, log, log_bytes));
}

GKSM_WRAP(cuGraphInstantiate_v2)(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
				 char *log, size_t log_bytes)
{
	return INSTANTIATE(
		exec, graph,
		GKSM_REAL(cuGraphInstantiate_v2)(exec, graph, error_node, log, log_bytes));
}

GKSM_WRAP(cuGraphInstantiateWithFlags)(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	return INSTANTIATE(exec, graph, GKSM_REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

GKSM_WRAP(cuGraphInstantiateWithParams)(CUgraphExec *exec, CUgraph graph,
					CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return INSTANTIATE(exec, graph,
			   GKSM_REAL(cuGraphInstantiateWithParams)(exec, graph, parameters));
}

GKSM_WRAP(cuGraphInstantiateWithParams_ptsz)(CUgraphExec *exec, CUgraph graph,
					     CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return INSTANTIATE(exec, graph,
			   GKSM_REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, parameters));
}

GKSM_WRAP(cuGraphExecDestroy)(CUgraphExec exec)
{
	struct gksm *process = gksm_process();
	struct gksm_graphs *graphs = process ? gksm_graphs_of(process) : NULL;
	struct gksm_exec *known = graphs ? take_exec(graphs, exec) : NULL;
	CUresult result = GKSM_REAL(cuGraphExecDestroy)(exec);

	if (known)
		free_exec(process, known);
	return result;
}

#define UPDATE(handle, graph, real_call)                                                  \
	({                                                                                \
		struct gksm *process_ = gksm_process();                                   \
		struct gksm_graphs *graphs_ = process_ ? gksm_graphs_of(process_) : NULL; \
		struct gksm_exec *exec_ = NULL;                                           \
		CUresult updated_ = CUDA_SUCCESS;                                         \
                                                                                          \
		if (graphs_)                                                              \
			exec_ = exec_of_graph(process_, graph, &updated_);                \
		if (updated_ == CUDA_SUCCESS)                                             \
			updated_ = (real_call);                                           \
		if (exec_ && updated_ == CUDA_SUCCESS)                                    \
			free_exec(process_, take_exec(graphs_, handle));                  \
		if (exec_)                                                                \
			settle(process_, exec_, handle, updated_);                        \
		updated_;                                                                 \
	})

GKSM_WRAP(cuGraphExecUpdate)(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
			     CUgraphExecUpdateResult *outcome)
{
	return UPDATE(exec, graph, GKSM_REAL(cuGraphExecUpdate)(exec, graph, error_node, outcome));
}

GKSM_WRAP(cuGraphExecUpdate_v2)(CUgraphExec exec, CUgraph graph,
				CUgraphExecUpdateResultInfo *outcome)
{
	return UPDATE(exec, graph, GKSM_REAL(cuGraphExecUpdate_v2)(exec, graph, outcome));
}

static bool copy_ranges(struct gksm_node_ranges *to, const struct gksm_node_ranges *from)
{
	*to = (struct gksm_node_ranges){.items = NULL};
	if (!from->count)
		return true;
	to->items = malloc(from->count * sizeof(*to->items));
	if (!to->items)
		return false;
	memcpy(to->items, from->items, from->count * sizeof(*to->items));
	to->count = to->capacity = from->count;
	return true;
}

/*
 * One node of the exec is to touch `spans` instead (or, `child` given, what the nodes
 * of that graph touch). Returns the exec as it then is, pinned; the one before stays in
 * the table until the driver has agreed. NULL: *result says why.
 */
static struct gksm_exec *changed(struct gksm *process, struct gksm_graphs *graphs,
				 CUgraphExec handle, CUgraphNode node,
				 const struct gksm_spans *spans, CUgraph child, CUresult *result)
{
	struct gksm_node_ranges ranges = {.items = NULL};
	CUgraphNode parent = NULL;
	struct gksm_exec *known;
	bool copied = true;

	gksm_mutex_lock(&graphs->lock);
	for (known = *bucket_of(graphs, handle); known && known->handle != handle;)
		known = known->next;
	if (known)
		copied = copy_ranges(&ranges, &known->ranges);
	gksm_mutex_unlock(&graphs->lock);
	*result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!copied)
		return NULL;
	for (size_t i = 0; i < ranges.count; i++)
		if (ranges.items[i].node == node)
			parent = ranges.items[i].child;
	gksm_node_ranges_drop(&ranges, node);
	if (child)
		gksm_node_ranges_walk(&ranges, process, child, node);
	else
		gksm_node_ranges_add(&ranges, process, node, parent, spans);
	return new_exec(process, &ranges, result);
}

#define CHANGE(handle, node, fill, child, real_call)                                            \
	({                                                                                      \
		struct gksm *process_ = gksm_process();                                         \
		struct gksm_graphs *graphs_ = process_ ? gksm_graphs_of(process_) : NULL;       \
		struct gksm_exec *exec_ = NULL;                                                 \
		struct gksm_spans spans;                                                        \
		CUresult set_ = CUDA_SUCCESS;                                                   \
                                                                                                \
		gksm_spans_init(&spans);                                                        \
		if (graphs_) {                                                                  \
			fill;                                                                   \
		}                                                                               \
		if (graphs_)                                                                    \
			exec_ = changed(process_, graphs_, handle, node, &spans, child, &set_); \
		gksm_spans_free(&spans);                                                        \
		if (set_ == CUDA_SUCCESS)                                                       \
			set_ = (real_call);                                                     \
		if (exec_ && set_ == CUDA_SUCCESS)                                              \
			free_exec(process_, take_exec(graphs_, handle));                        \
		if (exec_)                                                                      \
			settle(process_, exec_, handle, set_);                                  \
		set_;                                                                           \
	})

GKSM_WRAP(cuGraphExecMemcpyNodeSetParams)(CUgraphExec exec, CUgraphNode node,
					  const CUDA_MEMCPY3D *copy, CUcontext context)
{
	return CHANGE(exec, node, gksm_spans_copy_3d(&spans, copy), NULL,
		      GKSM_REAL(cuGraphExecMemcpyNodeSetParams)(exec, node, copy, context));
}

GKSM_WRAP(cuGraphExecMemsetNodeSetParams)(CUgraphExec exec, CUgraphNode node,
					  const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context)
{
	return CHANGE(exec, node, gksm_spans_memset_node(&spans, set), NULL,
		      GKSM_REAL(cuGraphExecMemsetNodeSetParams)(exec, node, set, context));
}

GKSM_WRAP(cuGraphExecBatchMemOpNodeSetParams)(CUgraphExec exec, CUgraphNode node,
					      const CUDA_BATCH_MEM_OP_NODE_PARAMS *operations)
{
	return CHANGE(exec, node,
		      if (operations) gksm_spans_stream_ops(&spans, operations->paramArray,
							    operations->count),
		      NULL, GKSM_REAL(cuGraphExecBatchMemOpNodeSetParams)(exec, node, operations));
}

GKSM_WRAP(cuGraphExecChildGraphNodeSetParams)(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	return CHANGE(exec, node, , child,
		      GKSM_REAL(cuGraphExecChildGraphNodeSetParams)(exec, node, child));
}

GKSM_WRAP(cuGraphExecNodeSetParams)(CUgraphExec exec, CUgraphNode node,
				    CUgraphNodeParams *parameters)
{
	CUgraph child = NULL;

	if (gksm_process() && parameters && parameters->type == CU_GRAPH_NODE_TYPE_GRAPH)
		child = parameters->graph.graph;

	return CHANGE(exec, node, gksm_spans_node_params(&spans, parameters), child,
		      GKSM_REAL(cuGraphExecNodeSetParams)(exec, node, parameters));
}
