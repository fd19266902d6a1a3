/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to look. The interval between two passes doubles while they find nothing and is
 * back at its base once one does, or once a page got all its bytes from another one,
 * which is what a duplicate in the making looks like.
 */
#include "scan.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu.h"
#include "scan_state.h"

#define MS 1000000ull
#define RECENT_PASSES 4

#define DEFAULT_INTERVAL_MS 1000
#define DEFAULT_MAX_INTERVAL_MS 16000
#define DEFAULT_STABLE_HASHES 3
#define DEFAULT_MAX_PERCENT 10

static void wake(struct gksm_gpu *gpu)
{
	atomic_fetch_add(&gpu->scan_wake, 1);
	gksm_futex_wake(&gpu->scan_wake, 1);
}

static void read_terms(struct gksm_scan *scan)
{
	struct gksm_scan_terms *terms = &scan->terms;

	gksm_mutex_lock(&scan->gpu->scan_lock);
	*terms = scan->gpu->scan_terms;
	gksm_mutex_unlock(&scan->gpu->scan_lock);
	if (!terms->interval_ms)
		terms->interval_ms = DEFAULT_INTERVAL_MS;
	if (!terms->max_interval_ms)
		terms->max_interval_ms = DEFAULT_MAX_INTERVAL_MS;
	if (terms->max_interval_ms < terms->interval_ms)
		terms->max_interval_ms = terms->interval_ms;
	if (!terms->stable_hashes)
		terms->stable_hashes = DEFAULT_STABLE_HASHES;
	if (!terms->max_percent || terms->max_percent > 100)
		terms->max_percent = DEFAULT_MAX_PERCENT;
}

void gksm_scan_yield(struct gksm_scan *scan, uint64_t started_ns)
{
	uint64_t took = gksm_now_ns() - started_ns;

	atomic_fetch_add(&scan->gpu->counters.scan_ns_total, took);
	if (!scan->unhurried)
		return;
	/* Woken by an order: whoever gave it waits for the end of this pass, too. */
	if (!gksm_futex_wait(
		    &scan->gpu->scan_wake, scan->woken,
		    (int64_t)(took * (100 - scan->terms.max_percent) / scan->terms.max_percent)) ||
	    atomic_load(&scan->gpu->scan_wake) != scan->woken)
		scan->unhurried = false;
}

struct gksm_engine *gksm_scan_enter(struct gksm_scan *scan, uint64_t page)
{
	struct gksm_engine *engine = atomic_load(&scan->gpu->pages[page].engine);

	if (!engine)
		return NULL;
	gksm_mutex_lock(&engine->scan_lock);
	if (!gksm_engine_enter(engine)) {
		if (!gksm_engine_prepare_scan(engine))
			return engine;
		gksm_engine_leave(engine);
	}
	gksm_mutex_unlock(&engine->scan_lock);
	return NULL;
}

void gksm_scan_leave(struct gksm_engine *engine)
{
	gksm_engine_leave(engine);
	gksm_mutex_unlock(&engine->scan_lock);
}

static size_t look_and_merge(struct gksm_scan *scan)
{
	size_t merged;

	if (!gksm_gpu_sharing(scan->gpu))
		return 0;
	gksm_scan_pass(scan);
	merged = gksm_scan_offer(scan);
	atomic_fetch_add(&scan->gpu->counters.full_scans, 1);
	return merged;
}

static size_t offer_again(struct gksm_scan *scan)
{
	if (!atomic_exchange(&scan->offer_again, 0) || !gksm_gpu_sharing(scan->gpu))
		return 0;
	return gksm_scan_offer(scan);
}

static void *run(void *argument)
{
	struct gksm_scan *scan = argument;
	struct gksm_gpu *gpu = scan->gpu;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t interval = 0; /* 0: the base */
	uint64_t last = gksm_now_ns();

	gpu->process->driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (;;) {
		uint32_t seen = atomic_load(&gpu->scan_wake);
		uint64_t base, now;
		bool ordered, hurried;

		read_terms(scan);
		base = scan->terms.interval_ms * MS;
		ordered = scan->terms.pass && scan->terms.pass != atomic_load(&scan->passed);
		hurried = atomic_exchange(&scan->hurry, 0) && scan->terms.run;
		scan->woken = seen;
		scan->unhurried = !ordered && !hurried;
		if (interval < base || interval > scan->terms.max_interval_ms * MS)
			interval = base;
		if (offer_again(scan) || atomic_exchange(&gpu->copied, false))
			interval = base;
		now = gksm_now_ns();
		if (ordered || hurried || (scan->terms.run && now - last >= interval)) {
			interval = look_and_merge(scan) ? base : interval * 2;
			last = gksm_now_ns();
			if (ordered)
				atomic_store(&scan->passed, scan->terms.pass);
			gksm_gpu_report_usage(gpu);
			continue;
		}
		/* Not for the whole interval: what shortens it wakes nobody. */
		gksm_futex_wait(&gpu->scan_wake, seen, (int64_t)base);
	}
	return NULL;
}

int gksm_scan_start(struct gksm_gpu *gpu)
{
	struct gksm_scan *scan = calloc(1, sizeof(*scan));
	int error = -ENOMEM;

	if (!scan)
		return error;
	scan->gpu = gpu;
	scan->pages = calloc(gpu->arena_pages, sizeof(*scan->pages));
	if (scan->pages) {
		atomic_store(&gpu->scan, scan);
		error = gksm_thread_start(run, scan, "gksm-scan");
	}
	if (error) {
		atomic_store(&gpu->scan, NULL);
		free(scan->pages);
		free(scan);
	}
	return error;
}

void gksm_scan_terms_set(struct gksm_gpu *gpu, const struct gksm_scan_terms *terms)
{
	gksm_mutex_lock(&gpu->scan_lock);
	gpu->scan_terms = *terms;
	gksm_mutex_unlock(&gpu->scan_lock);
	wake(gpu);
	/* Nobody scans here: whoever waits for the pass is to hear so. */
	if (!atomic_load(&gpu->scan))
		gksm_gpu_report_usage(gpu);
}

void gksm_scan_offer_again(struct gksm_gpu *gpu)
{
	struct gksm_scan *scan = atomic_load(&gpu->scan);

	if (!scan)
		return;
	atomic_store(&scan->offer_again, 1);
	wake(gpu);
}

void gksm_scan_hurry(struct gksm_gpu *gpu)
{
	struct gksm_scan *scan = atomic_load(&gpu->scan);

	if (!scan)
		return;
	atomic_store(&scan->hurry, 1);
	wake(gpu);
}

uint32_t gksm_scan_passed(struct gksm_gpu *gpu)
{
	struct gksm_scan *scan = atomic_load(&gpu->scan);
	uint32_t asked;

	if (scan)
		return atomic_load(&scan->passed);
	gksm_mutex_lock(&gpu->scan_lock);
	asked = gpu->scan_terms.pass;
	gksm_mutex_unlock(&gpu->scan_lock);
	return asked;
}

bool gksm_scan_recent(const struct gksm_gpu *gpu, uint32_t pass)
{
	struct gksm_scan *scan = atomic_load(&gpu->scan);

	return scan && atomic_load(&scan->pass) - pass < RECENT_PASSES;
}
