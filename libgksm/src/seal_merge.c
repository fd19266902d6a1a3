/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing shares pages that are already backed, on a driver that cannot hold faults.
 * The content comes from the device instead of from a host source; from there on a
 * sealed page is a loaded page: the batch of load_batch.c does the rest, and replaces
 * mappings only behind a closed gate with nothing running.
 */
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "gpu.h"
#include "load.h"
#include "seal.h"
#include "streams.h"

/* Reads the page back into the batch's staging page. */
static int add_from_device(struct gksm_load *load, uint64_t page)
{
	struct gksm_mover *mover = &load->engine->load;
	void *staging;
	int error;

	error = gksm_mover_read_page(mover, gksm_page_address(load->gpu, page));
	if (error)
		return error;
	staging = gksm_load_add(load, page, NULL);
	memcpy(staging, mover->bounce, GKSM_PAGE_SIZE);
	return 0;
}

static bool wanted(const struct gksm_gpu *gpu, const struct gksm_engine *engine, uint64_t page)
{
	return atomic_load(&gpu->pages[page].sealed) && !atomic_load(&gpu->pages[page].pins) &&
	       atomic_load(&gpu->pages[page].engine) == engine &&
	       gksm_page_state(gpu, page) == GKSM_PAGE_PRIVATE;
}

int gksm_seal_pages(struct gksm_gpu *gpu, uint64_t first, uint64_t end)
{
	struct gksm_load load = {
		.process = gpu->process,
		.gpu = gpu,
		.engine = atomic_load(&gpu->pages[first].engine),
		.kind = GKSM_KIND_WEIGHTS,
		.sealing = true,
	};
	uint64_t page;
	int error = 0;

	if (!load.engine || atomic_load(&gpu->guard) != GKSM_GUARD_SEAL || !gksm_gpu_sharing(gpu))
		return 0;
	load.wait_until_ns = gksm_now_ns() + gpu->terms.load_wait_ms * 1000000ull;
	/* What was enqueued before may still be writing. */
	if (gksm_wait_idle(gpu->process, load.engine->context, (int)gpu->terms.load_wait_ms))
		return 0;
	gksm_mutex_lock(&load.engine->load_lock);
	if (gksm_engine_enter(load.engine)) {
		gksm_mutex_unlock(&load.engine->load_lock);
		return 0;
	}
	for (page = first; !error && page < end; page++) {
		if (!wanted(gpu, load.engine, page))
			continue;
		error = add_from_device(&load, page);
		if (load.count == GKSM_LOAD_BATCH)
			gksm_load_flush(&load);
	}
	gksm_load_flush(&load);
	gksm_engine_leave(load.engine);
	gksm_mutex_unlock(&load.engine->load_lock);
	gksm_gpu_report_usage(gpu);
	return error ? error : load.result ? -EIO : 0;
}
