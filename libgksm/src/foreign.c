/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table of blocks with linear probing, and a short list of pools. */
#include "foreign.h"

#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "process.h"

#define ROOM_FIRST 64

/* delta may be negative: the sums wrap back. */
static void account(struct gksm_foreign *foreign, CUdevice device, uint64_t delta, bool whole)
{
	if (device < 0 || device >= GKSM_FOREIGN_DEVICES)
		return;
	atomic_fetch_add_explicit(&foreign->bytes[device], delta, memory_order_relaxed);
	if (whole)
		atomic_fetch_add_explicit(&foreign->whole_bytes[device], delta,
					  memory_order_relaxed);
}

static uint32_t place_of(const struct gksm_foreign *foreign, uint64_t name)
{
	/* Addresses differ in their upper bits, handles in their lower ones. */
	return (uint32_t)((name ^ name >> 21) * 0x9e3779b97f4a7c15ull >> 32) & (foreign->room - 1);
}

/* The block of that name, or the empty place where it would stand. The table has one. */
static struct gksm_foreign_block *find(struct gksm_foreign *foreign, uint64_t name)
{
	uint32_t at = place_of(foreign, name);

	while (foreign->blocks[at].name && foreign->blocks[at].name != name)
		at = (at + 1) & (foreign->room - 1);
	return &foreign->blocks[at];
}

static bool make_room(struct gksm_foreign *foreign)
{
	struct gksm_foreign_block *old = foreign->blocks;
	uint32_t old_room = foreign->room;
	struct gksm_foreign_block *grown;
	uint32_t i;

	if (foreign->used < old_room / 2)
		return true;
	grown = calloc(old_room ? old_room * 2 : ROOM_FIRST, sizeof(*grown));
	if (!grown)
		return false;
	foreign->blocks = grown;
	foreign->room = old_room ? old_room * 2 : ROOM_FIRST;
	for (i = 0; i < old_room; i++)
		if (old[i].name)
			*find(foreign, old[i].name) = old[i];
	free(old);
	return true;
}

/* Later blocks that stood in its way move up. */
static void take_out(struct gksm_foreign *foreign, struct gksm_foreign_block *block)
{
	uint32_t mask = foreign->room - 1;
	uint32_t hole = (uint32_t)(block - foreign->blocks);
	uint32_t at = hole;

	foreign->used--;
	account(foreign, block->device, -block->bytes, block->bytes >= GKSM_PAGE_SIZE);
	for (;;) {
		uint32_t home;

		foreign->blocks[hole].name = 0;
		do {
			at = (at + 1) & mask;
			if (!foreign->blocks[at].name)
				return;
			home = place_of(foreign, foreign->blocks[at].name);
		} while (((at - home) & mask) < ((at - hole) & mask));
		foreign->blocks[hole] = foreign->blocks[at];
		hole = at;
	}
}

void gksm_foreign_add(struct gksm *process, uint64_t name, uint64_t bytes, CUdevice device,
		      CUcontext context)
{
	struct gksm_foreign *foreign = &process->foreign;
	struct gksm_foreign_block *block;

	if (!name)
		return;
	gksm_mutex_lock(&foreign->lock);
	if (make_room(foreign)) {
		block = find(foreign, name);
		/* A free that nobody told of: the name is in use again. */
		if (block->name) {
			take_out(foreign, block);
			block = find(foreign, name);
		}
		foreign->used++;
		account(foreign, device, bytes, bytes >= GKSM_PAGE_SIZE);
		*block = (struct gksm_foreign_block){.name = name,
						     .bytes = bytes,
						     .context = context,
						     .device = device,
						     .references = 1};
	}
	gksm_mutex_unlock(&foreign->lock);
}

void gksm_foreign_retain(struct gksm *process, uint64_t name)
{
	struct gksm_foreign *foreign = &process->foreign;

	gksm_mutex_lock(&foreign->lock);
	if (foreign->room && find(foreign, name)->name)
		find(foreign, name)->references++;
	gksm_mutex_unlock(&foreign->lock);
}

void gksm_foreign_drop(struct gksm *process, uint64_t name)
{
	struct gksm_foreign *foreign = &process->foreign;

	gksm_mutex_lock(&foreign->lock);
	if (name && foreign->room) {
		struct gksm_foreign_block *block = find(foreign, name);

		if (block->name && --block->references == 0)
			take_out(foreign, block);
	}
	gksm_mutex_unlock(&foreign->lock);
}

void gksm_foreign_context_gone(struct gksm *process, CUcontext context)
{
	struct gksm_foreign *foreign = &process->foreign;
	uint32_t at = 0;

	gksm_mutex_lock(&foreign->lock);
	while (at < foreign->room) {
		/* Another block may have moved into the place. */
		if (foreign->blocks[at].name && foreign->blocks[at].context == context)
			take_out(foreign, &foreign->blocks[at]);
		else
			at++;
	}
	gksm_mutex_unlock(&foreign->lock);
}

/* Under the lock. */
static void set_pool(struct gksm_foreign *foreign, size_t i, CUmemoryPool pool, CUdevice device,
		     uint64_t bytes)
{
	account(foreign, foreign->pool_device[i], -foreign->pool_bytes[i], true);
	account(foreign, device, bytes, true);
	foreign->pools[i] = pool;
	foreign->pool_device[i] = device;
	foreign->pool_bytes[i] = bytes;
}

static void note_pool(struct gksm_foreign *foreign, CUmemoryPool pool, CUdevice device,
		      uint64_t bytes)
{
	size_t i, empty = GKSM_FOREIGN_POOLS;

	gksm_mutex_lock(&foreign->lock);
	for (i = 0; i < GKSM_FOREIGN_POOLS && foreign->pools[i] != pool; i++)
		if (!foreign->pools[i] && empty == GKSM_FOREIGN_POOLS)
			empty = i;
	if (i == GKSM_FOREIGN_POOLS)
		i = empty;
	if (i < GKSM_FOREIGN_POOLS)
		set_pool(foreign, i, pool, device, bytes);
	gksm_mutex_unlock(&foreign->lock);
}

static void ask_pool(struct gksm *process, CUmemoryPool pool, CUdevice device)
{
	cuuint64_t bytes;

	if (!process->driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
						   &bytes))
		note_pool(&process->foreign, pool, device, bytes);
}

void gksm_foreign_pool_used(struct gksm *process, CUmemoryPool pool)
{
	const struct gksm_driver *driver = &process->driver;
	CUdevice device;

	if (!driver->cuMemPoolGetAttribute || !driver->cuDeviceGetMemPool ||
	    driver->cuCtxGetDevice(&device))
		return;
	if (pool || !driver->cuDeviceGetMemPool(&pool, device))
		ask_pool(process, pool, device);
}

void gksm_foreign_pools_ask(struct gksm *process)
{
	struct gksm_foreign *foreign = &process->foreign;
	CUmemoryPool pools[GKSM_FOREIGN_POOLS];
	CUdevice devices[GKSM_FOREIGN_POOLS];
	size_t i;

	gksm_mutex_lock(&foreign->lock);
	memcpy(pools, foreign->pools, sizeof(pools));
	memcpy(devices, foreign->pool_device, sizeof(devices));
	gksm_mutex_unlock(&foreign->lock);
	for (i = 0; i < GKSM_FOREIGN_POOLS; i++)
		if (pools[i])
			ask_pool(process, pools[i], devices[i]);
}

void gksm_foreign_pool_gone(struct gksm *process, CUmemoryPool pool)
{
	struct gksm_foreign *foreign = &process->foreign;
	size_t i;

	gksm_mutex_lock(&foreign->lock);
	for (i = 0; i < GKSM_FOREIGN_POOLS; i++)
		if (foreign->pools[i] == pool)
			set_pool(foreign, i, NULL, foreign->pool_device[i], 0);
	gksm_mutex_unlock(&foreign->lock);
}

uint64_t gksm_foreign_bytes(const struct gksm_gpu *gpu, bool whole)
{
	const struct gksm_foreign *foreign = &gpu->process->foreign;

	return atomic_load(whole ? &foreign->whole_bytes[gpu->device]
				 : &foreign->bytes[gpu->device]);
}
