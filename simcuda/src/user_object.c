/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the caller's whose life graphs share. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "graph.h"
#include "live.h"
#include "user_object.h"

struct CUuserObject_st {
	unsigned users;
	CUhostFn destroy;
	void *pointer;
	struct CUuserObject_st *next; /* doomed */
};

/* Nobody's any more; their destructors wait until the lock is given back. */
static struct CUuserObject_st *doomed;

/* sim_graph_lock. */
static void put(CUuserObject object, unsigned count)
{
	object->users -= count;
	if (object->users)
		return;
	sim_live_remove(object);
	object->next = doomed;
	doomed = object;
}

/* A destructor is the program's code and may take its locks, which another thread may
 * hold while it waits for ours. */
void sim_graph_unlock(void)
{
	struct CUuserObject_st *gone = doomed;

	doomed = NULL;
	pthread_mutex_unlock(&sim_graph_lock);
	while (gone) {
		struct CUuserObject_st *next = gone->next;

		gone->destroy(gone->pointer);
		free(gone);
		gone = next;
	}
}

void sim_retained_free(CUgraph graph)
{
	while (graph->retained) {
		struct sim_retained *gone = graph->retained;

		graph->retained = gone->next;
		put(gone->object, gone->count);
		free(gone);
	}
}

static int hold(CUgraph graph, CUuserObject object, unsigned count)
{
	for (struct sim_retained *at = graph->retained; at; at = at->next) {
		if (at->object == object) {
			at->count += count;
			return 0;
		}
	}
	struct sim_retained *made = malloc(sizeof(*made));
	if (!made)
		return -ENOMEM;
	*made = (struct sim_retained){object, count, graph->retained};
	graph->retained = made;
	return 0;
}

int sim_retained_copy(CUgraph to, CUgraph from)
{
	for (struct sim_retained *at = from->retained; at; at = at->next) {
		if (hold(to, at->object, at->count))
			return -ENOMEM;
		at->object->users += at->count;
	}
	return 0;
}

CUresult cuUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy,
			    unsigned int count, unsigned int flags)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!object || !destroy || !count || count > INT_MAX ||
	    flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	CUuserObject made = malloc(sizeof(*made));
	if (!made || sim_live_add(made, SIM_LIVE_USER_OBJECT)) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*made = (struct CUuserObject_st){count, destroy, pointer, NULL};
	*object = made;
	return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_graph_lock);
	if (!count || count > INT_MAX || !sim_live_is(object, SIM_LIVE_USER_OBJECT))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		object->users += count;
	sim_graph_unlock();
	return result;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_graph_lock);
	if (!count || !sim_live_is(object, SIM_LIVE_USER_OBJECT) || object->users < count)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		put(object, count);
	sim_graph_unlock();
	return result;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
				 unsigned int flags)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_graph_lock);
	if (!count || count > INT_MAX || (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) ||
	    !sim_live_is(graph, SIM_LIVE_GRAPH) || !sim_live_is(object, SIM_LIVE_USER_OBJECT))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (hold(graph, object, count))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
		object->users += count;
	sim_graph_unlock();
	return result;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_graph_lock);
	result = CUDA_ERROR_INVALID_VALUE;
	if (count && sim_live_is(graph, SIM_LIVE_GRAPH)) {
		for (struct sim_retained **at = &graph->retained; *at; at = &(*at)->next) {
			struct sim_retained *found = *at;

			if (found->object != object || found->count < count)
				continue;
			found->count -= count;
			if (!found->count) {
				*at = found->next;
				free(found);
			}
			put(object, count);
			result = CUDA_SUCCESS;
			break;
		}
	}
	sim_graph_unlock();
	return result;
}
