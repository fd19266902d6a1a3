/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's arena: made at first use, found by address, its pages moved by state. */
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cow.h"
#include "guard.h"
#include "link.h"
#include "rdma.h"
#include "refusal.h"
#include "report.h"
#include "scan.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)

/* Virtual address space is free; an arena four times the memory lets fragmentation
 * and over-commit be somebody else's worry. */
#define ARENA_FACTOR 4
#define GIB (1024ull * 1024 * 1024)

struct gksm_gpu *gksm_gpu_of(struct gksm *process, CUdeviceptr address, uint64_t *page)
{
	int i;

	for (i = 0; i < GKSM_GPUS_MAX; i++) {
		struct gksm_gpu *gpu =
			atomic_load_explicit(&process->gpus[i], memory_order_acquire);

		if (!gpu)
			continue;
		if (address - gpu->arena_base < gpu->arena_pages * PAGE) {
			if (page)
				*page = (address - gpu->arena_base) / PAGE;
			return gpu;
		}
	}
	return NULL;
}

static void describe(struct gksm_gpu *gpu)
{
	gpu->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	gpu->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	gpu->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	gpu->prop.location.id = gpu->device;
	gpu->read_write.location = gpu->prop.location;
	gpu->read_write.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	gpu->read_only.location = gpu->prop.location;
	gpu->read_only.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
}

static int reserve_arena(struct gksm_gpu *gpu, size_t total_bytes)
{
	const struct gksm_driver *driver = &gpu->process->driver;
	size_t granularity = 0;
	uint64_t bytes = (total_bytes * ARENA_FACTOR + 16 * GIB) & ~(PAGE - 1);

	if (!driver->cuMemAddressReserve || !driver->cuMemGetAllocationGranularity)
		return -ENOSYS;
	if (driver->cuMemGetAllocationGranularity(&granularity, &gpu->prop,
						  CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
	    granularity != PAGE)
		return -EOPNOTSUPP;
	if (driver->cuMemAddressReserve(&gpu->arena_base, bytes, PAGE, 0, 0))
		return -ENOMEM;
	gpu->arena_pages = bytes / PAGE;
	gpu->pages = calloc(gpu->arena_pages, sizeof(*gpu->pages));
	if (!gpu->pages || gksm_extents_init(&gpu->extents, gpu->arena_pages)) {
		driver->cuMemAddressFree(gpu->arena_base, bytes);
		free(gpu->pages);
		return -ENOMEM;
	}
	atomic_store(&gpu->counters.in_state[GKSM_PAGE_FREE], gpu->arena_pages);
	return 0;
}

static void open_at_daemon(struct gksm_gpu *gpu, size_t total_bytes)
{
	struct gksm_gpu_open open = {
		.total_bytes = total_bytes,
		.arena_base = gpu->arena_base,
		.arena_pages = gpu->arena_pages,
	};
	struct gksm_gpu_opened opened;

	memcpy(open.uuid, gpu->uuid, sizeof(open.uuid));
	gpu->process->driver.cuDeviceGetName(open.name, sizeof(open.name) - 1, gpu->device);
	/* Remembered by the link: without a daemon now, the answer comes later. */
	if (!gksm_link_gpu_open(gpu->process->link, (unsigned)gpu->device, &open, &opened))
		gksm_guard_start(gpu, &opened);
}

static struct gksm_gpu *make(struct gksm *process, CUdevice device)
{
	const char *refusal = gksm_refusal(process, device);
	struct gksm_gpu *gpu;
	size_t total_bytes = 0;
	CUuuid uuid;
	int error;

	if (refusal) {
		gksm_report(process, GKSM_WARNING, "GPU %d is left alone: %s", (int)device,
			    refusal);
		return NULL;
	}
	gpu = calloc(1, sizeof(*gpu));
	if (!gpu)
		return NULL;
	gpu->process = process;
	gpu->device = device;
	gpu->guard_fd = -1;
	describe(gpu);
	if (process->driver.cuDeviceGetUuid_v2 ? process->driver.cuDeviceGetUuid_v2(&uuid, device)
					       : process->driver.cuDeviceGetUuid(&uuid, device))
		error = -ENODEV;
	else if (process->driver.cuDeviceTotalMem_v2(&total_bytes, device))
		error = -ENODEV;
	else
		error = reserve_arena(gpu, total_bytes);
	if (error) {
		gksm_report(process, GKSM_WARNING, "GPU %d is left alone: %s", (int)device,
			    error == -EOPNOTSUPP ? "its pages are not 2 MiB"
						 : "no address space or memory for its arena");
		free(gpu);
		return NULL;
	}
	gksm_rdma_settle(gpu);
	memcpy(gpu->uuid, &uuid, sizeof(gpu->uuid));
	/* Published before gksmd hears of it: its answer may come on the link thread. */
	atomic_store(&gpu->opening, true);
	atomic_store_explicit(&process->gpus[device], gpu, memory_order_release);
	if (process->link)
		open_at_daemon(gpu, total_bytes);
	atomic_store(&gpu->opening, false);
	return gpu;
}

struct gksm_gpu *gksm_gpu_get(struct gksm *process, CUdevice device)
{
	struct gksm_gpu *gpu;

	if (device < 0 || device >= GKSM_GPUS_MAX)
		return NULL;
	gpu = atomic_load_explicit(&process->gpus[device], memory_order_acquire);
	/* While another thread opens it, its guard is not known: wait, or what is
	 * allocated now would never be shared. */
	if (gpu && !atomic_load(&gpu->opening))
		return gpu;
	gksm_mutex_lock(&process->gpus_lock);
	gpu = atomic_load_explicit(&process->gpus[device], memory_order_acquire);
	if (!gpu && !process->gpu_refused[device]) {
		gpu = make(process, device);
		process->gpu_refused[device] = !gpu;
	}
	gksm_mutex_unlock(&process->gpus_lock);
	return gpu;
}

bool gksm_gpu_sharing(const struct gksm_gpu *gpu)
{
	return atomic_load(&gpu->guard) != GKSM_GUARD_OFF && atomic_load(&gpu->allowed) &&
	       !atomic_load(&gpu->process->paused) && gpu->process->link &&
	       gksm_link_is_up(gpu->process->link);
}

void gksm_gpu_usage(struct gksm_gpu *gpu, struct gksm_usage *filled)
{
	struct gksm_counters *counters = &gpu->counters;
	struct gksm_usage usage = {.gpu = (uint32_t)gpu->device};
	uint64_t in_state[GKSM_PAGE_LOST + 1];
	size_t i;

	for (i = 0; i <= GKSM_PAGE_LOST; i++)
		in_state[i] = atomic_load(&counters->in_state[i]);
	usage.virtual_pages = gpu->arena_pages - in_state[GKSM_PAGE_FREE];
	usage.unbacked_pages = in_state[GKSM_PAGE_UNBACKED] + in_state[GKSM_PAGE_FILLING] +
			       in_state[GKSM_PAGE_LOADING];
	/* A page in BUSY has, or is about to have, a page of its own: the careful side. */
	usage.private_pages = in_state[GKSM_PAGE_PRIVATE] + in_state[GKSM_PAGE_RELOAD] +
			      in_state[GKSM_PAGE_MERGING] + in_state[GKSM_PAGE_BUSY];
	usage.shared_pages = in_state[GKSM_PAGE_SHARED];
	usage.spare_pages = atomic_load(&counters->spare_pages);
	usage.cow_events = atomic_load(&counters->cow_events);
	usage.cow_ns_total = atomic_load(&counters->cow_ns_total);
	usage.cow_ns_max = atomic_load(&counters->cow_ns_max);
	usage.api_detaches = atomic_load(&counters->api_detaches);
	usage.first_touches = atomic_load(&counters->first_touches);
	usage.loaded_pages = atomic_load(&counters->loaded_pages);
	usage.attached_pages = atomic_load(&counters->attached_pages);
	for (i = 0; i < 16; i++)
		usage.unshared[i] = atomic_load(&counters->unshared[i]);
	usage.zero_pages = atomic_load(&counters->zero_pages);
	usage.full_scans = atomic_load(&counters->full_scans);
	usage.scanned_pages = atomic_load(&counters->scanned_pages);
	usage.stable_pages = atomic_load(&counters->stable_pages);
	usage.volatile_pages = atomic_load(&counters->volatile_pages);
	usage.merged_pages = atomic_load(&counters->merged_pages);
	usage.dropped_merges = atomic_load(&counters->dropped_merges);
	usage.churned_merges = atomic_load(&counters->churned_merges);
	usage.scan_ns_total = atomic_load(&counters->scan_ns_total);
	usage.scan_pass = gksm_scan_passed(gpu);
	*filled = usage;
}

void gksm_gpu_report_usage(struct gksm_gpu *gpu)
{
	struct gksm_usage usage;

	if (!gpu->process->link)
		return;
	gksm_gpu_usage(gpu, &usage);
	gksm_link_usage(gpu->process->link, (unsigned)gpu->device, &usage);
}

static void count(struct gksm_gpu *gpu, enum gksm_page_state from, enum gksm_page_state to)
{
	atomic_fetch_add_explicit(&gpu->counters.in_state[to], 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&gpu->counters.in_state[from], 1, memory_order_relaxed);
}

static void set_guard_state(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state state)
{
	_Atomic uint8_t *states = atomic_load_explicit(&gpu->guard_states, memory_order_acquire);

	/* Release: the guard must see the byte no later than the mapping that follows. */
	if (states)
		atomic_store_explicit(&states[page], gksm_page_guard_state(state),
				      memory_order_release);
}

bool gksm_page_step(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from,
		    enum gksm_page_state next)
{
	uint32_t expected = from;

	if (!atomic_compare_exchange_strong(&gpu->pages[page].state, &expected, next))
		return false;
	count(gpu, from, next);
	gksm_futex_wake(&gpu->pages[page].state, INT32_MAX);
	return true;
}

bool gksm_page_take(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state from)
{
	uint32_t expected = from;

	if (!atomic_compare_exchange_strong(&gpu->pages[page].state, &expected, GKSM_PAGE_BUSY))
		return false;
	count(gpu, from, GKSM_PAGE_BUSY);
	set_guard_state(gpu, page, GKSM_PAGE_BUSY);
	return true;
}

void gksm_page_put(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state next)
{
	set_guard_state(gpu, page, next);
	count(gpu, GKSM_PAGE_BUSY, next);
	atomic_store(&gpu->pages[page].state, next);
	gksm_futex_wake(&gpu->pages[page].state, INT32_MAX);
}

void gksm_page_wait(struct gksm_gpu *gpu, uint64_t page, enum gksm_page_state seen)
{
	/* Bounded, so that a lost wake-up costs a look, not a hang. */
	gksm_futex_wait(&gpu->pages[page].state, seen, 10 * 1000 * 1000);
}

void gksm_page_enters_shared(struct gksm_gpu *gpu, uint64_t page, bool zero)
{
	atomic_store(&gpu->pages[page].zero, zero);
	if (zero)
		atomic_fetch_add(&gpu->counters.zero_pages, 1);
}

void gksm_page_leaves_shared(struct gksm_gpu *gpu, uint64_t page, bool written)
{
	struct gksm_page *entry = &gpu->pages[page];

	if (atomic_exchange(&entry->zero, 0))
		atomic_fetch_sub(&gpu->counters.zero_pages, 1);
	if (written && entry->merged_pass && gksm_scan_recent(gpu, entry->merged_pass))
		atomic_fetch_add(&gpu->counters.churned_merges, 1);
	entry->merged_pass = 0;
}

enum gksm_kind gksm_page_kind(const struct gksm_gpu *gpu, uint64_t page)
{
	uint8_t hint = atomic_load(&gpu->pages[page].hint);

	return hint ? (enum gksm_kind)(hint - 1)
		    : (enum gksm_kind)atomic_load(&gpu->pages[page].kind);
}
