/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/outside.h"

#include <stdatomic.h>
#include <stddef.h>

#include "gpu.h"
#include "process.h"
#include "streams.h"

bool gksm_guard_in_force(struct gksm *process, enum gksm_guard guard)
{
	for (size_t i = 0; i < GKSM_GPUS_MAX; i++) {
		struct gksm_gpu *gpu =
			atomic_load_explicit(&process->gpus[i], memory_order_acquire);

		if (gpu && atomic_load_explicit(&gpu->guard, memory_order_relaxed) == guard)
			return true;
	}
	return false;
}

void gksm_wait_outside(struct gksm *process, int timeout_ms)
{
	/* Whatever comes of it, the driver's call follows and says what is wrong. */
	if (gksm_guard_in_force(process, GKSM_GUARD_FAULT))
		gksm_wait_idle(process, NULL, timeout_ms);
}
