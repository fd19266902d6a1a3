/* SPDX-License-Identifier: Apache-2.0 */
#include "spares.h"

#include <errno.h>
#include <string.h>

#include "gpu.h"
#include "map.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)

/* Few shared pages are written to in a burst: one spare for 64, at least two. */
#define SHARED_PAGES_A_SPARE 64
#define SPARES_MIN 2
#define SPARES_SHORT 1 /* while memory is short */

static CUdeviceptr address(const struct gksm_spares *spares, unsigned slot)
{
	return spares->base + slot * PAGE;
}

int gksm_spares_init(struct gksm_spares *spares, struct gksm_gpu *gpu)
{
	memset(spares, 0, sizeof(*spares));
	spares->gpu = gpu;
	return gpu->process->driver.cuMemAddressReserve(&spares->base, GKSM_SPARES_MAX * PAGE, PAGE,
							0, 0)
		       ? -ENOMEM
		       : 0;
}

bool gksm_spares_take(struct gksm_spares *spares, struct gksm_backing *backing)
{
	unsigned slot;

	for (slot = 0; slot < GKSM_SPARES_MAX; slot++) {
		if (spares->state[slot] != GKSM_SPARE_READY)
			continue;
		spares->state[slot] = GKSM_SPARE_USED;
		backing->handle = spares->handle[slot];
		backing->scratch = address(spares, slot);
		return true;
	}
	return false;
}

void gksm_spares_return(struct gksm_spares *spares, const struct gksm_backing *backing)
{
	unsigned slot = (unsigned)((backing->scratch - spares->base) / PAGE);

	spares->state[slot] = GKSM_SPARE_READY;
}

void gksm_spares_spoil(struct gksm_spares *spares, const struct gksm_backing *backing)
{
	unsigned slot = (unsigned)((backing->scratch - spares->base) / PAGE);

	/* USED: the scratch mapping, and the memory with it, goes at the next refill. */
	gksm_handle_release(spares->gpu, spares->handle[slot]);
	spares->state[slot] = GKSM_SPARE_USED;
}

static unsigned target(const struct gksm_gpu *gpu)
{
	uint64_t shared = atomic_load(&gpu->counters.in_state[GKSM_PAGE_SHARED]);
	uint64_t wanted = shared / SHARED_PAGES_A_SPARE;
	uint64_t most = gpu->terms.spare_pages;

	/* Only held faults are in a hurry. */
	if (!shared || atomic_load(&gpu->draining) || atomic_load(&gpu->guard) != GKSM_GUARD_FAULT)
		return 0;
	if (atomic_load(&gpu->memory_short))
		return SPARES_SHORT;
	if (wanted < SPARES_MIN)
		wanted = SPARES_MIN;
	if (most && wanted > most)
		wanted = most;
	return wanted < GKSM_SPARES_MAX ? (unsigned)wanted : GKSM_SPARES_MAX;
}

static bool prepare(struct gksm_spares *spares, unsigned slot)
{
	struct gksm_gpu *gpu = spares->gpu;

	if (gksm_handle_create(gpu, &spares->handle[slot]))
		return false;
	if (gksm_map(gpu, address(spares, slot), spares->handle[slot], &gpu->read_write)) {
		gksm_handle_release(gpu, spares->handle[slot]);
		return false;
	}
	spares->state[slot] = GKSM_SPARE_READY;
	return true;
}

void gksm_spares_refill(struct gksm_spares *spares)
{
	unsigned wanted = target(spares->gpu);
	unsigned ready = 0;
	unsigned slot;

	for (slot = 0; slot < GKSM_SPARES_MAX; slot++) {
		if (spares->state[slot] == GKSM_SPARE_USED) {
			gksm_unmap(spares->gpu, address(spares, slot));
			spares->state[slot] = GKSM_SPARE_EMPTY;
		}
		if (spares->state[slot] != GKSM_SPARE_READY)
			continue;
		if (ready < wanted) {
			ready++;
			continue;
		}
		gksm_unmap(spares->gpu, address(spares, slot));
		gksm_handle_release(spares->gpu, spares->handle[slot]);
		spares->state[slot] = GKSM_SPARE_EMPTY;
	}
	for (slot = 0; ready < wanted && slot < GKSM_SPARES_MAX; slot++) {
		if (spares->state[slot] != GKSM_SPARE_EMPTY)
			continue;
		if (!prepare(spares, slot))
			break;
		ready++;
	}
	atomic_store(&spares->gpu->counters.spare_pages, ready);
}
