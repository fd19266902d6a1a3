/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one root that all state of libgksm hangs off.
 */
#ifndef GKSM_PROCESS_H
#define GKSM_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "driver.h"
#include "foreign.h"
#include "gksm/protocol.h"
#include "sync.h"

#define GKSM_GPUS_MAX 64

struct gksm_gpu;
struct gksm_link;
struct gksm_pool;
struct gksm_streams;
struct gksm_graphs;
struct gksm_exports;
struct gksm_functions;
struct gksm_ipc;
struct gksm_peers;

/* Read once, at the first successful cuInit, from the environment. */
struct gksm_settings {
	bool disabled;		/* GKSM_DISABLE=1 */
	char socket_path[108];	/* GKSM_SOCKET, else /run/gksm/gksm.sock */
	char driver_path[4096]; /* GKSM_DRIVER, else libcuda.so.1 as the loader finds it */
	unsigned hello_wait_ms; /* how long cuInit may wait for gksmd: GKSM_HELLO_WAIT_MS, 1000 */
};

/* A device's primary context as the program holds it. */
struct gksm_primary {
	_Atomic(CUcontext) context; /* NULL: not retained */
	_Atomic uint32_t retained;
};

struct gksm {
	struct gksm_driver driver; /* the real entry points; NULL where it has none */
	struct gksm_settings settings;
	struct gksm_link *link; /* NULL: no daemon was ever asked for */
	struct gksm_pool *pool;
	struct gksm_streams *streams;
	struct gksm_graphs *graphs;
	_Atomic(struct gksm_gpu *) gpus[GKSM_GPUS_MAX]; /* by CUdevice; made at first use */
	struct gksm_mutex gpus_lock;
	bool gpu_refused[GKSM_GPUS_MAX]; /* tried once, cannot be managed */
	struct gksm_gate gate;		 /* held around enqueues; closed while mappings change */
	_Atomic uint64_t next_buffer_id;
	_Atomic uint32_t gated_gpus;		      /* with a guard that needs the launch gate */
	_Atomic bool paused;			      /* CONTROL: no new attaches or publications */
	struct gksm_primary primaries[GKSM_GPUS_MAX]; /* by CUdevice */
	struct gksm_exports *exports;		      /* of interpose/export.c, made at first use */
	struct gksm_functions *functions; /* of interpose/functions.c, made at first use */
	_Atomic bool turned_away;	  /* gksmd has said why it does not serve us */
	_Atomic bool crossed; /* a copy's stream was of another context than memory it touches */
	struct gksm_ipc *ipc; /* of ipc_handle.c, made at first use */
	struct gksm_peers *peers; /* of peers.c, made at first use */
	_Atomic uint64_t
		peer_devices[GKSM_GPUS_MAX]; /* by CUdevice: whose GPUs reach it, a bit each */
	struct gksm_foreign foreign;	     /* memory that is the driver's own */
};

/*
 * The process's root, or NULL when wrappers must pass through: before the
 * application's own successful cuInit, in a forked child, switched off, or when
 * another library stands between us and the driver. One load and one branch.
 */
struct gksm *gksm_process(void);

/* The real entry points, usable also when gksm_process() is NULL (before cuInit and
 * in forked children). NULL: there is no driver. */
const struct gksm_driver *gksm_driver(void);

/* Called once by the cuInit wrapper after the driver's own cuInit succeeded, with
 * `driver` and `settings` filled in: starts what the core needs. 0 or a negative
 * errno (then the process passes through). */
int gksm_core_start(struct gksm *process);

#endif
