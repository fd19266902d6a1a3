/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of gksm.h. */
#include "gksm/gksm.h"

#include <errno.h>
#include <string.h>

#include "access.h"
#include "gpu.h"
#include "seal.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

struct pages {
	struct gksm *process;
	struct gksm_gpu *gpu;
	uint64_t first;
	uint64_t end; /* of pages that the range touches */
};

static int pages_of(uint64_t ptr, size_t bytes, struct pages *pages)
{
	uint64_t last;

	pages->process = gksm_process();
	if (!pages->process)
		return -ENOSYS;
	pages->gpu = gksm_gpu_of(pages->process, ptr, &pages->first);
	if (!pages->gpu)
		return -ENOENT;
	if (!bytes || bytes > pages->gpu->arena_base + pages->gpu->arena_pages * PAGE - ptr)
		return -EINVAL;
	last = (ptr + bytes - 1 - pages->gpu->arena_base) / PAGE;
	pages->end = last + 1;
	return 0;
}

static void mark(const struct pages *pages, uint64_t first, uint64_t end, bool sealed)
{
	uint64_t page;

	for (page = first; page < end; page++)
		atomic_store(&pages->gpu->pages[page].sealed, sealed);
}

/* The pages that lie wholly inside; there may be none (first >= end). */
static int whole_pages_of(uint64_t ptr, size_t bytes, struct pages *pages)
{
	int error = pages_of(ptr, bytes, pages);

	if (error)
		return error;
	pages->first = (ptr + PAGE - 1 - pages->gpu->arena_base) / PAGE;
	pages->end = (ptr + bytes - pages->gpu->arena_base) / PAGE;
	return 0;
}

GKSM_EXPORT int gksm_seal(uint64_t ptr, size_t bytes)
{
	struct pages pages;
	int error = whole_pages_of(ptr, bytes, &pages);

	if (error || pages.first >= pages.end)
		return error;
	mark(&pages, pages.first, pages.end, true);
	return gksm_seal_pages(pages.gpu, pages.first, pages.end);
}

GKSM_EXPORT int gksm_unseal(uint64_t ptr, size_t bytes)
{
	struct gksm_span span = {.address = ptr, .bytes = bytes, .flags = GKSM_SPAN_WRITE};
	struct gksm_access access;
	struct pages pages;
	int error = pages_of(ptr, bytes, &pages);

	if (error)
		return error;
	mark(&pages, pages.first, pages.end, false);
	if (gksm_access_begin(pages.process, &span, 1, &access)) {
		mark(&pages, pages.first, pages.end, true);
		return -ENOMEM;
	}
	gksm_access_drop(&access);
	return 0;
}

GKSM_EXPORT int gksm_set_kind(uint64_t ptr, size_t bytes, int kind)
{
	struct pages pages;
	uint64_t page;
	int error = whole_pages_of(ptr, bytes, &pages);

	if (error)
		return error;
	if (kind < GKSM_KIND_WEIGHTS || kind > GKSM_KIND_OTHER)
		return -EINVAL;
	for (page = pages.first; page < pages.end; page++)
		atomic_store(&pages.gpu->pages[page].hint, (uint8_t)(kind + 1));
	return 0;
}

GKSM_EXPORT int gksm_is_shared(uint64_t ptr, size_t bytes, size_t *shared_bytes)
{
	struct pages pages;
	uint64_t page;
	int error;

	if (!shared_bytes)
		return -EINVAL;
	*shared_bytes = 0;
	error = pages_of(ptr, bytes, &pages);
	for (page = pages.first; !error && page < pages.end; page++) {
		uint64_t start = gksm_page_address(pages.gpu, page);
		uint64_t end = start + PAGE;

		if (gksm_page_state(pages.gpu, page) != GKSM_PAGE_SHARED)
			continue;
		if (start < ptr)
			start = ptr;
		if (end > ptr + bytes)
			end = ptr + bytes;
		*shared_bytes += end - start;
	}
	return error;
}

static struct gksm_gpu *gpu_of_current_context(struct gksm *process)
{
	CUdevice device;

	if (process->driver.cuCtxGetDevice(&device) || device < 0 || device >= GKSM_GPUS_MAX)
		return NULL;
	return atomic_load(&process->gpus[device]);
}

GKSM_EXPORT int gksm_get_statistics(uint64_t ptr, struct gksm_statistics *statistics)
{
	struct gksm *process = gksm_process();
	struct gksm_statistics now = {0};
	struct gksm_usage usage;
	struct gksm_gpu *gpu;
	size_t bytes;

	if (!process)
		return -ENOSYS;
	if (!statistics || statistics->bytes < sizeof(statistics->bytes))
		return -EINVAL;
	gpu = ptr ? gksm_gpu_of(process, ptr, NULL) : gpu_of_current_context(process);
	if (!gpu)
		return -ENOENT;
	gksm_gpu_usage(gpu, &usage);
	now.guard = atomic_load(&gpu->guard);
	now.virtual_pages = usage.virtual_pages;
	now.unbacked_pages = usage.unbacked_pages;
	now.private_pages = usage.private_pages;
	now.shared_pages = usage.shared_pages;
	now.spare_pages = usage.spare_pages;
	now.cow_events = usage.cow_events;
	now.cow_ns_total = usage.cow_ns_total;
	now.cow_ns_max = usage.cow_ns_max;
	now.api_detaches = usage.api_detaches;
	now.first_touches = usage.first_touches;
	now.loaded_pages = usage.loaded_pages;
	now.attached_pages = usage.attached_pages;
	now.zero_pages = usage.zero_pages;
	now.stable_pages = usage.stable_pages;
	now.full_scans = usage.full_scans;
	now.merged_pages = usage.merged_pages;
	now.dropped_merges = usage.dropped_merges;
	now.churned_merges = usage.churned_merges;
	/* A caller built against an older header has room for less. */
	bytes = statistics->bytes < sizeof(now) ? statistics->bytes : sizeof(now);
	now.bytes = (uint32_t)bytes;
	memcpy(statistics, &now, bytes);
	return 0;
}
