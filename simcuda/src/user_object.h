/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_USER_OBJECT_H
#define SIM_USER_OBJECT_H

#include "sim.h"

/* References that a graph holds on user objects. sim_graph_lock. */
struct sim_retained {
	CUuserObject object;
	unsigned count;
	struct sim_retained *next;
};

/* Gives back every reference of the graph. */
void sim_retained_free(CUgraph graph);
/* A clone holds the same references. 0 or -ENOMEM. */
int sim_retained_copy(CUgraph to, CUgraph from);

#endif
