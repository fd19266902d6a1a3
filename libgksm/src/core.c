/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the core, and what gksmd says unasked. */
#include <errno.h>
#include <string.h>

#include "cow.h"
#include "gpu.h"
#include "guard.h"
#include "hash.h"
#include "ipc.h"
#include "link.h"
#include "process.h"
#include "report.h"
#include "scan.h"

#ifndef GKSM_BUILD_ID
#define GKSM_BUILD_ID "0.1.0"
#endif

static void on_up(void *user, const struct gksm_welcome *welcome)
{
	struct gksm *process = user;

	atomic_store(&process->paused, !welcome->sharing);
	gksm_ipc_renew(process);
}

/* Maybe before the root knows its link: the ring keeps the record until then. */
static void on_turned_away(void *user, const char *reason)
{
	struct gksm *process = user;

	atomic_store(&process->turned_away, true);
	gksm_report(NULL, GKSM_WARNING, "gksmd does not serve this process: %s", reason);
}

static void on_down(void *user)
{
	/* Nothing: gksm_gpu_sharing asks the link, and what is mapped stays mapped. */
	(void)user;
}

/* Of one GPU, while gksmd lets go of it. */
static void drain(struct gksm *process, uint32_t index, bool draining)
{
	struct gksm_gpu *gpu = index < GKSM_GPUS_MAX ? atomic_load(&process->gpus[index]) : NULL;

	if (!gpu)
		return;
	atomic_store(&gpu->draining, draining);
	gksm_cow_wake(gpu); /* the spares go, or come back */
}

static void memory_pressure(struct gksm *process, const struct gksm_control *control)
{
	uint32_t index = control->gpu - 1;
	struct gksm_gpu *gpu = index < GKSM_GPUS_MAX ? atomic_load(&process->gpus[index]) : NULL;
	bool now_short = control->level != GKSM_PRESSURE_NONE;
	bool was_short;

	if (!gpu)
		return;
	was_short = atomic_load(&gpu->memory_short);
	gksm_cow_pressure(gpu, now_short, control->pages);
	if (now_short && !was_short)
		gksm_scan_hurry(gpu);
}

static void on_gpu_control(struct gksm *process, const struct gksm_control *control)
{
	switch (control->action) {
	case GKSM_CONTROL_DRAIN:
	case GKSM_CONTROL_RESUME:
		drain(process, control->gpu - 1, control->action == GKSM_CONTROL_DRAIN);
		break;
	case GKSM_CONTROL_PRESSURE:
		memory_pressure(process, control);
		break;
	default: /* a newer gksmd's: what it means is not known here */
		break;
	}
}

static void on_control(void *user, const struct gksm_control *control)
{
	struct gksm *process = user;
	int i;

	if (control->gpu) {
		on_gpu_control(process, control);
		return;
	}
	switch (control->action) {
	case GKSM_CONTROL_PAUSE:
		atomic_store(&process->paused, true);
		break;
	case GKSM_CONTROL_RESUME:
		atomic_store(&process->paused, false);
		break;
	case GKSM_CONTROL_UNSHARE:
		atomic_store(&process->paused, true);
		for (i = 0; i < GKSM_GPUS_MAX; i++) {
			struct gksm_gpu *gpu = atomic_load(&process->gpus[i]);

			if (gpu)
				gksm_cow_unshare(gpu);
		}
		break;
	case GKSM_CONTROL_OFFER_AGAIN:
		for (i = 0; i < GKSM_GPUS_MAX; i++) {
			struct gksm_gpu *gpu = atomic_load(&process->gpus[i]);

			if (gpu)
				gksm_scan_offer_again(gpu);
		}
		break;
	default: /* a newer gksmd's: what it means is not known here */
		break;
	}
}

static void on_ipc_wanted(void *user, const struct gksm_ipc_wanted *wanted)
{
	gksm_ipc_wanted(user, wanted);
}

static void on_gpu_opened(void *user, unsigned index, const struct gksm_gpu_opened *opened)
{
	struct gksm *process = user;
	struct gksm_gpu *gpu = index < GKSM_GPUS_MAX ? atomic_load(&process->gpus[index]) : NULL;

	if (!gpu)
		return;
	/* gksmd says so anew if it still holds. */
	atomic_store(&gpu->draining, false);
	gksm_guard_start(gpu, opened);
	gksm_gpu_report_usage(gpu);
}

static void on_scan_terms(void *user, unsigned index, const struct gksm_scan_terms *terms)
{
	struct gksm *process = user;
	struct gksm_gpu *gpu = index < GKSM_GPUS_MAX ? atomic_load(&process->gpus[index]) : NULL;

	if (gpu)
		gksm_scan_terms_set(gpu, terms);
}

static size_t on_announce(void *user, unsigned index, size_t *cursor,
			  struct gksm_page_entry *entries, size_t capacity)
{
	struct gksm *process = user;
	struct gksm_gpu *gpu = index < GKSM_GPUS_MAX ? atomic_load(&process->gpus[index]) : NULL;
	size_t count = 0;

	if (!gpu)
		return 0;
	while (count < capacity && *cursor < gpu->arena_pages) {
		uint64_t page = (*cursor)++;
		uint64_t page_id = atomic_load(&gpu->pages[page].page_id);

		enum gksm_page_state state = gksm_page_state(gpu, page);

		/* A page that leaves right now says so in a DETACHED that queues behind
		 * this; one in BUSY may yet stay. */
		if ((state != GKSM_PAGE_SHARED && state != GKSM_PAGE_BUSY) || !page_id)
			continue;
		entries[count] = (struct gksm_page_entry){
			.page_id = page_id,
			.hash.low = atomic_load(&gpu->pages[page].hash_low),
			.hash.high = atomic_load(&gpu->pages[page].hash_high),
			.mappings = 1,
		};
		count++;
	}
	return count;
}

static const struct gksm_link_events events = {
	.up = on_up,
	.down = on_down,
	.control = on_control,
	.ipc_wanted = on_ipc_wanted,
	.gpu_opened = on_gpu_opened,
	.scan_terms = on_scan_terms,
	.announce = on_announce,
	.turned_away = on_turned_away,
};

static void say_hello(struct gksm *process, struct gksm_hello *hello)
{
	memset(hello, 0, sizeof(*hello));
	hello->protocol_min = GKSM_PROTOCOL_MIN;
	hello->protocol_max = GKSM_PROTOCOL_MAX;
	hello->features = GKSM_FEATURE_HOST_COPIES | GKSM_FEATURE_COMMIT | GKSM_FEATURE_RECLAIM |
			  GKSM_FEATURE_SCAN | GKSM_FEATURE_IPC;
	hello->guards = gksm_guards_possible(process);
	strncpy(hello->build_id, GKSM_BUILD_ID, sizeof(hello->build_id) - 1);
	strncpy(hello->framework, program_invocation_short_name, sizeof(hello->framework) - 1);
}

int gksm_core_start(struct gksm *process)
{
	struct gksm_welcome welcome;
	struct gksm_hello hello;

	say_hello(process, &hello);
	process->link = gksm_link_start(process->settings.socket_path, &hello, &events, process);
	if (!process->link)
		return -ENOMEM;
	/* No threads to be had is no reason to stay away: the callers do the work then. */
	process->pool = gksm_pool_start(0);
	if (gksm_link_wait(process->link, (int)process->settings.hello_wait_ms, &welcome) &&
	    !atomic_load(&process->turned_away))
		gksm_report(process, GKSM_INFO,
			    "gksmd does not answer at %s: private until it does",
			    process->settings.socket_path);
	return 0;
}
