/* SPDX-License-Identifier: Apache-2.0 */
#include "shortage.h"

#include <errno.h>

#include "gpu.h"
#include "link.h"
#include "map.h"
#include "privatize.h"

/* Asked for at once: who has no page left will soon want some more. */
#define RELIEF_BYTES (32ull * GKSM_PAGE_SIZE)
#define HOPELESS_NS 1000000000ull
#define PAUSE_NS 1000000ull

int gksm_shortage_create(struct gksm_gpu *gpu, unsigned timeout_ms,
			 CUmemGenericAllocationHandle *handle)
{
	uint64_t now = gksm_now_ns();
	uint64_t until = now + timeout_ms * 1000000ull;
	uint64_t refused = atomic_load(&gpu->no_relief_ns);
	uint64_t freed = 0;

	if (!gpu->process->link || (refused && now - refused < HOPELESS_NS))
		return -ENOMEM;
	if (!gksm_link_reclaim(gpu->process->link, (unsigned)gpu->device, RELIEF_BYTES, timeout_ms,
			       &freed) &&
	    freed) {
		do {
			if (!gksm_handle_create(gpu, handle))
				return 0;
			gksm_sleep_ns(PAUSE_NS);
		} while (gksm_now_ns() < until);
	}
	atomic_store(&gpu->no_relief_ns, gksm_now_ns());
	*handle = 0;
	return -ENOMEM;
}

int gksm_shortage_privatize(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
			    struct gksm_privatize *how, unsigned timeout_ms)
{
	int error = gksm_shortage_create(gpu, timeout_ms, &how->backing.handle);

	if (error)
		return error;
	error = gksm_page_take(gpu, page, from) ? gksm_privatize(gpu, page, from, how) : -EAGAIN;
	if (error)
		gksm_handle_release(gpu, how->backing.handle);
	return error;
}
