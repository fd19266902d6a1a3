/* SPDX-License-Identifier: Apache-2.0 */
#include "reclaim.h"

#include "access.h"
#include "gpu.h"
#include "link.h"

#define PATIENCE_MS 1000

/* What the driver has no more of, as far as it can be asked: models that could stay are
 * not to go for what is free. */
static uint64_t lacking(const struct gksm_gpu *gpu, uint64_t bytes)
{
	const struct gksm_driver *driver = &gpu->process->driver;
	size_t free_bytes;
	size_t total_bytes;
	CUdevice device;

	if (driver->cuCtxGetDevice(&device) || device != gpu->device ||
	    driver->cuMemGetInfo_v2(&free_bytes, &total_bytes) || free_bytes >= bytes)
		return bytes;
	return bytes - free_bytes;
}

bool gksm_reclaim(struct gksm_gpu *gpu, uint64_t bytes)
{
	uint64_t freed = 0;

	return !gksm_link_reclaim(gpu->process->link, (unsigned)gpu->device, lacking(gpu, bytes),
				  PATIENCE_MS, &freed) &&
	       freed > 0;
}

bool gksm_reclaim_spans(struct gksm *process, const struct gksm_span *spans, size_t count)
{
	bool freed = false;
	size_t i;

	for (i = 0; i < count; i++) {
		struct gksm_gpu *gpu = gksm_gpu_of(process, spans[i].address, NULL);

		/* A page may be touched at both ends, and needs no more than itself. */
		if (gpu && gksm_reclaim(gpu, spans[i].bytes + 2ull * GKSM_PAGE_SIZE))
			freed = true;
	}
	return freed;
}
