/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory: bank files of 64 pages of 2 MiB.
 *
 * An extent is a run of pages of one bank. Whoever uses it has an open file
 * description with a read lock on its bytes: the description of the extent's own fd,
 * of its duplicates in other processes, and of the mappings made of it. The kernel
 * drops the lock with the last of them, so a page is in use exactly as long as some
 * lock covers it. The description's file position says which pages it stands for:
 * first page * 2 MiB + (pages - 1).
 */
#ifndef SIM_VRAM_H
#define SIM_VRAM_H

#include "sim.h"

struct sim_extent {
	struct sim_device *device;
	int fd;		/* -1: closed, mappings keep it */
	uint32_t first; /* page of the device */
	uint32_t pages;
};

int sim_vram_attach(struct sim_device *device);

/*
 * Takes that many free pages, zero-filled, host storage allocated. contiguous: one
 * extent or nothing. *extents is malloc'ed; the caller owns it and the fds.
 * 0, -ENOMEM (device or host storage full), -EMFILE, -EINVAL.
 */
int sim_vram_take(struct sim_device *device, unsigned pages, bool contiguous,
		  struct sim_extent **extents, unsigned *count);

/* After the last fd and mapping of this process are gone: gives the host storage
 * back, if nobody else uses the pages. */
void sim_vram_dropped(const struct sim_extent *extent);

/* A second, own description of pages that are in use. generation: as it was when they
 * were handed out. 0, -ESTALE, -EMFILE. */
int sim_vram_join(struct sim_extent *extent, uint32_t generation);
uint32_t sim_vram_generation(const struct sim_extent *extent);

/* What an fd from somewhere stands for. Duplicates it into extent->fd. 0 or -EINVAL,
 * -EMFILE. */
int sim_vram_identify(int fd, struct sim_extent *extent);

/* Bytes in use by anybody, counted now. */
uint64_t sim_vram_used(struct sim_device *device);

static inline off_t sim_extent_offset(const struct sim_extent *extent)
{
	return (off_t)(extent->first % SIM_BANK_PAGES) * (off_t)SIM_PAGE;
}

static inline size_t sim_extent_bytes(const struct sim_extent *extent)
{
	return (size_t)extent->pages * SIM_PAGE;
}

#endif
