/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC of arena memory (cuIpcGetMemHandle and its kind), which the driver refuses
 * for VMM memory.
 *
 * A handle is a ticket: 16 random bytes, known to gksmd, that reveal nothing; gksmd says
 * who may open it (daemon/gksmd/ipc.py). An exported
 * allocation is un-shared and pinned until it is freed, since CUDA knows no way to take
 * an export back. Whoever opens it gets the pages' own descriptors, through gksmd, and
 * maps them read-write at addresses outside of any arena: that memory is never scanned
 * or shared, and copies to and from it are the driver's business alone. It stays valid
 * when the exporter frees it or dies.
 */
#ifndef GKSM_IPC_H
#define GKSM_IPC_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc.h"
#include "cuda_abi.h"
#include "gksm/protocol.h"

struct gksm;

/* A handle of the allocation that the address lies in; the same one each time. */
CUresult gksm_ipc_export(struct gksm *process, CUdeviceptr address, CUipcMemHandle *handle);

/* An allocation is about to lose its pages: it can be opened no more. Waits for whoever
 * exports them at this moment (bounded). */
void gksm_ipc_freed(struct gksm *process, uint64_t buffer_id);

/* Of the link thread; neither waits. gksmd is there (again): it has to hear of all
 * exports. Somebody opens one. */
void gksm_ipc_renew(struct gksm *process);
void gksm_ipc_wanted(struct gksm *process, const struct gksm_ipc_wanted *wanted);

/*
 * Opens a handle in the current context, or counts one more user of what it has open.
 * false: it is none of ours, the driver's own call is to judge it.
 */
bool gksm_ipc_open(struct gksm *process, const CUipcMemHandle *handle, unsigned flags,
		   CUdeviceptr *address, CUresult *result);

/* false: the address is not in memory that gksm_ipc_open has opened. */
bool gksm_ipc_close(struct gksm *process, CUdeviceptr address, CUresult *result);

/* The opened memory that holds the address; false: none does. info may be NULL. */
bool gksm_ipc_find(struct gksm *process, CUdeviceptr address, struct gksm_allocation_info *info);

/* true: something is open. */
bool gksm_ipc_any_open(struct gksm *process);

/* Other GPUs may reach the device's memory from now on: also what is open there. Nothing
 * that could meet the hole runs. */
void gksm_ipc_open_to_peers(struct gksm *process, CUdevice device);

/* The context is about to go, and what it has open with it. */
void gksm_ipc_context_gone(struct gksm *process, CUcontext context);

#endif
