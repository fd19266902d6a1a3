/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The live handles of modules, functions, libraries, kernels, graphs, nodes,
 * instantiated graphs and arrays. A handle that a caller passes is looked up here before it is
 * followed, so a stale or invented one is refused and not a crash.
 */
#ifndef SIM_LIVE_H
#define SIM_LIVE_H

#include <stdbool.h>

enum sim_live_kind {
	SIM_LIVE_MODULE,
	SIM_LIVE_FUNCTION,
	SIM_LIVE_LIBRARY,
	SIM_LIVE_KERNEL,
	SIM_LIVE_LINK,
	SIM_LIVE_GRAPH,
	SIM_LIVE_NODE,
	SIM_LIVE_EXEC,
	SIM_LIVE_USER_OBJECT,
	SIM_LIVE_ARRAY,
	SIM_LIVE_MIPMAP,
};

/* 0 or -ENOMEM. The object's address is the handle. Any thread. */
int sim_live_add(const void *handle, enum sim_live_kind kind);
void sim_live_remove(const void *handle);
bool sim_live_is(const void *handle, enum sim_live_kind kind);

#endif
