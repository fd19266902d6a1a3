/* SPDX-License-Identifier: Apache-2.0 */
#include "peers.h"

#include <errno.h>
#include <stdlib.h>

#include "access.h"
#include "gpu.h"
#include "ipc.h"
#include "map.h"
#include "marks.h"
#include "report.h"
#include "streams.h"
#include "stream_work.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)
#define DRAIN_MS 20
#define PAUSE_NS 1000000ull

struct peer_pair {
	CUcontext from;
	CUcontext to;
	CUdevice from_device;
	CUdevice to_device;
};

struct gksm_peers {
	struct gksm_mutex lock; /* one change at a time; before a gpu's range_lock */
	size_t count;
	size_t capacity;
	struct peer_pair *pairs;
};

static struct gksm_peers *peers_of(struct gksm *process)
{
	struct gksm_peers *peers = __atomic_load_n(&process->peers, __ATOMIC_ACQUIRE);
	struct gksm_peers *fresh;

	if (peers)
		return peers;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	if (__atomic_compare_exchange_n(&process->peers, &peers, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	free(fresh);
	return peers;
}

static bool managed(CUdevice device)
{
	return device >= 0 && device < GKSM_GPUS_MAX;
}

size_t gksm_peers_access(struct gksm *process, CUdevice device, CUmemAccess_flags flags,
			 CUmemAccessDesc *access)
{
	uint64_t mask = managed(device) ? atomic_load(&process->peer_devices[device]) : 0;
	size_t count = 0;

	access[count++] = (CUmemAccessDesc){
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};
	for (int peer = 0; mask; peer++, mask >>= 1)
		if ((mask & 1) && peer != device)
			access[count++] = (CUmemAccessDesc){
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
				.flags = flags};
	return count;
}

bool gksm_peers_reach(struct gksm *process, CUdevice from, CUdevice device)
{
	return managed(from) && managed(device) &&
	       (atomic_load(&process->peer_devices[device]) >> from & 1);
}

bool gksm_peers_any(const struct gksm_gpu *gpu)
{
	return atomic_load(&gpu->process->peer_devices[gpu->device]);
}

static struct gksm_span span_of(const struct gksm_gpu *gpu,
				const struct gksm_allocation *allocation)
{
	return (struct gksm_span){.address = gksm_page_address(gpu, allocation->first_page),
				  .bytes = allocation->pages * PAGE,
				  .flags = GKSM_SPAN_WRITE};
}

/* The next allocation from *slot on that is exposed, or not; marked as wanted. */
static bool step(struct gksm_gpu *gpu, uint32_t *slot, bool exposed, bool mark,
		 struct gksm_allocation *allocation)
{
	bool found = false;

	gksm_mutex_lock(&gpu->range_lock);
	for (; !found && *slot < gpu->allocation_slots; ++*slot) {
		struct gksm_allocation *at = &gpu->allocations[*slot];

		found = at->pages && !at->dying && at->exposed == exposed;
		if (found) {
			at->exposed = mark;
			*allocation = *at;
		}
	}
	gksm_mutex_unlock(&gpu->range_lock);
	return found;
}

/* Backs, un-shares and pins everything. */
static CUresult expose(struct gksm_gpu *gpu)
{
	struct gksm_allocation allocation;
	CUresult result = CUDA_SUCCESS;
	uint32_t slot = 0;

	while (!result && step(gpu, &slot, false, true, &allocation)) {
		struct gksm_span span = span_of(gpu, &allocation);

		result = gksm_pin(gpu->process, &span, 1);
		if (result) {
			gksm_mutex_lock(&gpu->range_lock);
			gpu->allocations[slot - 1].exposed = false;
			gksm_mutex_unlock(&gpu->range_lock);
		}
	}
	return result;
}

/* What is written from now on may be shared again. Rights that peers have stay until the
 * page is remapped: to take them back would make a hole, and nobody needs it. */
static void conceal(struct gksm_gpu *gpu)
{
	struct gksm_allocation allocation;
	uint32_t slot = 0;

	while (step(gpu, &slot, true, false, &allocation)) {
		struct gksm_span span = span_of(gpu, &allocation);

		gksm_unpin(gpu->process, &span, 1);
	}
}

/* false: somebody is at the page; look again. */
static bool open_page(struct gksm_gpu *gpu, uint64_t page)
{
	enum gksm_page_state state = gksm_page_state(gpu, page);

	if (state == GKSM_PAGE_RELOAD || state == GKSM_PAGE_BUSY)
		return false;
	/* Not mapped read-write now: whoever does it gives the peers their rights. */
	if (state != GKSM_PAGE_PRIVATE)
		return true;
	if (!gksm_page_take(gpu, page, state))
		return false;
	gksm_looks_wait(gpu, page);
	gksm_protect(gpu, gksm_page_address(gpu, page), &gpu->read_write);
	gksm_page_put(gpu, page, state);
	return true;
}

/* Waits for no page: whoever is at one may wait for the gate. gpu NULL: no arena. */
static bool open_pages(struct gksm_gpu *gpu)
{
	bool all = true;
	uint64_t page;

	for (page = 0; gpu && page < gpu->arena_pages; page++)
		if (atomic_load(&gpu->pages[page].allocation) &&
		    atomic_load(&gpu->pages[page].pins))
			all = open_page(gpu, page) && all;
	return all;
}

/*
 * Gives the peers their rights to what is mapped already. That makes a hole in each page,
 * which no copy may meet, and without a fault guard no kernel: so nothing runs, and
 * launches wait at the gate too.
 */
static void open_to_peers(struct gksm *process, CUdevice device)
{
	struct gksm_gpu *gpu = atomic_load(&process->gpus[device]);
	bool reported = false;
	bool done = false;

	atomic_fetch_add(&process->gated_gpus, 1);
	while (!done) {
		if (gksm_gate_close(&process->gate, DRAIN_MS * 1000000ll) == 0) {
			if (gksm_wait_all_idle(process, DRAIN_MS) == 0) {
				gksm_ipc_open_to_peers(process, device);
				done = open_pages(gpu);
			}
			gksm_gate_open(&process->gate);
		}
		if (done)
			break;
		if (!reported)
			gksm_report(process, GKSM_INFO,
				    "cuCtxEnablePeerAccess waits for work that runs");
		reported = true;
		gksm_sleep_ns(PAUSE_NS);
	}
	atomic_fetch_sub(&process->gated_gpus, 1);
}

/* Under peers->lock: who may reach the device, as the pairs say. */
static uint64_t mask_of(const struct gksm_peers *peers, CUdevice device)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < peers->count; i++)
		if (peers->pairs[i].to_device == device)
			mask |= 1ull << peers->pairs[i].from_device;
	return mask;
}

static CUresult let_reach(struct gksm *process, struct gksm_peers *peers, CUdevice device)
{
	uint64_t mask = mask_of(peers, device);
	uint64_t before = atomic_exchange(&process->peer_devices[device], mask);
	struct gksm_gpu *gpu = atomic_load(&process->gpus[device]);
	CUresult result = CUDA_SUCCESS;

	if (before == mask)
		return CUDA_SUCCESS;
	if (gpu)
		result = expose(gpu);
	if (result == CUDA_SUCCESS) {
		if (gpu || gksm_ipc_any_open(process))
			open_to_peers(process, device);
		return CUDA_SUCCESS;
	}
	atomic_store(&process->peer_devices[device], before);
	if (!before)
		conceal(gpu);
	gksm_report(process, GKSM_ERROR,
		    "cuCtxEnablePeerAccess: GPU %d has no memory for private copies of all pages "
		    "that are shared now, which a peer's access needs; free some, or set "
		    "GKSM_DISABLE=1",
		    (int)device);
	return result;
}

CUresult gksm_peers_enabled(struct gksm *process, CUcontext from, CUcontext to)
{
	struct gksm_peers *peers = peers_of(process);
	struct gksm_streams *streams = gksm_streams_of(process);
	struct peer_pair pair = {.from = from, .to = to};
	CUresult result = CUDA_SUCCESS;

	if (!peers || !streams)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (gksm_device_of(process, streams, &pair.from, &pair.from_device) ||
	    gksm_device_of(process, streams, &pair.to, &pair.to_device) ||
	    !managed(pair.from_device) || !managed(pair.to_device))
		return CUDA_SUCCESS;
	gksm_mutex_lock(&peers->lock);
	if (peers->count == peers->capacity) {
		size_t capacity = peers->capacity * 2 + 8;
		struct peer_pair *grown = realloc(peers->pairs, capacity * sizeof(*grown));

		if (grown) {
			peers->pairs = grown;
			peers->capacity = capacity;
		} else {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (result == CUDA_SUCCESS) {
		peers->pairs[peers->count++] = pair;
		result = let_reach(process, peers, pair.to_device);
		if (result)
			peers->count--;
	}
	gksm_mutex_unlock(&peers->lock);
	return result;
}

/* Under peers->lock: some pairs are gone. */
static void look_again(struct gksm *process, struct gksm_peers *peers)
{
	for (CUdevice device = 0; device < GKSM_GPUS_MAX; device++) {
		uint64_t mask = mask_of(peers, device);
		uint64_t before = atomic_exchange(&process->peer_devices[device], mask);
		struct gksm_gpu *gpu = atomic_load(&process->gpus[device]);

		if (before && !mask && gpu)
			conceal(gpu);
	}
}

/* to NULL: whatever context `from` has to do with. */
static void forget(struct gksm *process, CUcontext from, CUcontext to)
{
	struct gksm_peers *peers = __atomic_load_n(&process->peers, __ATOMIC_ACQUIRE);
	size_t kept = 0;

	if (!peers)
		return;
	gksm_mutex_lock(&peers->lock);
	for (size_t i = 0; i < peers->count; i++) {
		const struct peer_pair *pair = &peers->pairs[i];
		bool gone = to ? pair->from == from && pair->to == to
			       : pair->from == from || pair->to == from;

		if (!gone)
			peers->pairs[kept++] = *pair;
	}
	if (kept != peers->count) {
		peers->count = kept;
		look_again(process, peers);
	}
	gksm_mutex_unlock(&peers->lock);
}

void gksm_peers_disabled(struct gksm *process, CUcontext from, CUcontext to)
{
	forget(process, from, to);
}

void gksm_peers_context_gone(struct gksm *process, CUcontext context)
{
	forget(process, context, NULL);
}

int gksm_peers_cover(struct gksm_gpu *gpu, uint32_t slot)
{
	struct gksm_allocation allocation;
	struct gksm_span span;
	bool pin;

	gksm_mutex_lock(&gpu->range_lock);
	pin = !gpu->allocations[slot].exposed;
	gpu->allocations[slot].exposed = true;
	allocation = gpu->allocations[slot];
	gksm_mutex_unlock(&gpu->range_lock);
	span = span_of(gpu, &allocation);
	if (pin && gksm_pin(gpu->process, &span, 1))
		return -ENOMEM;
	/* Mapped maybe before the access was given. Nobody can be using it yet. */
	for (uint64_t page = 0; page < allocation.pages; page++)
		while (!open_page(gpu, allocation.first_page + page))
			gksm_page_wait(gpu, allocation.first_page + page,
				       gksm_page_state(gpu, allocation.first_page + page));
	return 0;
}
