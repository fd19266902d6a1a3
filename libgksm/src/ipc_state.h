/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of legacy IPC share. */
#ifndef GKSM_IPC_STATE_H
#define GKSM_IPC_STATE_H

#include <stdatomic.h>

#include "ipc.h"
#include "sync.h"

#define IPC_WANTED_MAX 64
#define IPC_TICKET_BYTES 16

struct gksm_gpu;

struct ipc_ticket {
	uint8_t bytes[IPC_TICKET_BYTES];
};

/* An allocation of ours that others may open. */
struct ipc_export {
	struct ipc_export *next;
	struct ipc_ticket ticket;
	struct gksm_gpu *gpu;
	uint64_t first_page;
	uint64_t pages;
	size_t bytes;
	uint64_t buffer_id; /* of the allocation: never used again */
};

/* Somebody else's allocation, open in one of our contexts. */
struct ipc_opened {
	struct ipc_opened *next;
	struct ipc_ticket ticket;
	struct gksm_allocation_info info; /* what is said of its addresses */
	CUdevice device;		  /* of the context it is open in */
	uint64_t pages;
	unsigned users;
};

struct gksm_ipc {
	struct gksm_mutex export_lock; /* one export comes about at a time */

	/* Held while pages are exported, so that they are not freed meanwhile; taken
	 * before a gpu's range_lock. */
	struct gksm_mutex lock;
	struct ipc_export *exports;

	struct gksm_mutex opened_lock; /* a leaf */
	struct ipc_opened *opened;

	struct gksm_mutex wanted_lock; /* a leaf, never held for longer than a copy */
	struct gksm_ipc_wanted wanted[IPC_WANTED_MAX];
	unsigned wanted_count;
	bool renew;
	bool answering;	       /* the thread runs; under export_lock */
	_Atomic uint32_t work; /* a futex: there is something for it */
};

/* Made at first use; NULL: no memory. */
struct gksm_ipc *ipc_of(struct gksm *process);
/* NULL: it was never used. */
struct gksm_ipc *ipc_if_used(struct gksm *process);

/* ipc_handle.c */
int ipc_ticket_make(struct ipc_ticket *ticket); /* 0 or -EIO: no randomness to be had */
void ipc_handle_make(CUipcMemHandle *handle, const struct ipc_ticket *ticket);
bool ipc_handle_read(const CUipcMemHandle *handle, struct ipc_ticket *ticket);
bool ipc_ticket_equal(const struct ipc_ticket *left, const struct ipc_ticket *right);

/*
 * ipc_map.c: the pages of a ticket, read-write for the device and its peers, at addresses of
 * their own. 0 or a negative errno; -ENOENT: gksmd knows no such ticket for us.
 */
int ipc_map(struct gksm *process, const struct ipc_ticket *ticket, CUdevice device,
	    CUdeviceptr *base, struct gksm_ipc_opened *about);
void ipc_unmap(struct gksm *process, CUdeviceptr base, uint64_t pages);
/* Who may reach the device's memory has changed. 0 or -EIO. */
int ipc_give_rights(struct gksm *process, CUdevice device, CUdeviceptr base, uint64_t pages);

/* ipc_answer.c: the thread that answers those who open our memory. 0 or a negative
 * errno. */
int ipc_answer_start(struct gksm *process);

/* true: the export's allocation lives, and will for as long as ipc->lock is held. */
bool ipc_export_alive(const struct ipc_export *export);

#endif
