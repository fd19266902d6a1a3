/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host-to-device copies of pageable memory.
 *
 * A copy waits until everything enqueued before it, as its stream orders it, is done;
 * from then on nothing that the program may rely on can see the difference between
 * bytes moved and a page attached. If that takes too long the copy goes to the driver,
 * which orders it as it always did.
 */
#include "load.h"

#include <errno.h>
#include <string.h>

#include "access.h"
#include "assembly.h"
#include "cow.h"
#include "gpu.h"
#include "streams.h"

#define PAGE ((uint64_t)GKSM_PAGE_SIZE)
#define HOST_PAGE 4096

/* Host memory that half-arrived pages may hold: 512 MiB. */
#define FILLING_MAX 256

/* A stretch of the copy that the driver is to do. */
struct plain {
	CUdeviceptr destination;
	const char *source;
	size_t bytes;
};

static void plain_flush(struct gksm_load *load, struct plain *plain, CUstream stream)
{
	struct gksm_span span = {
		.address = plain->destination,
		.bytes = plain->bytes,
		.flags = GKSM_SPAN_WRITE | GKSM_SPAN_EVERY_BYTE,
	};
	struct gksm_access access;
	CUresult result;

	if (!plain->bytes)
		return;
	result = gksm_access_begin(load->process, &span, 1, &access);
	if (!result) {
		result = load->process->driver.cuMemcpyHtoDAsync_v2(
			plain->destination, plain->source, plain->bytes, stream);
		if (result)
			gksm_access_refused(&access);
		gksm_access_end(&access, stream);
	}
	if (result && !load->result)
		load->result = result;
	plain->bytes = 0;
}

static void plain_add(struct plain *plain, CUdeviceptr destination, const char *source,
		      size_t bytes)
{
	if (!plain->bytes) {
		plain->destination = destination;
		plain->source = source;
	}
	plain->bytes += bytes;
}

/* Reads a byte of every host page, so that a slow file is waited for before the GPU
 * page is taken, when a fault on it would have to wait too. */
static void touch(const char *source, size_t bytes)
{
	volatile const char *byte = source;
	size_t i;

	for (i = 0; i < bytes; i += HOST_PAGE)
		(void)byte[i];
	(void)byte[bytes - 1];
}

/* true: the page goes into the batch (and may still end private). */
static bool wants_full(struct gksm_load *load, uint64_t page)
{
	struct gksm_gpu *gpu = load->gpu;

	if (atomic_load(&gpu->pages[page].pins))
		return false;
	switch (gksm_page_state(gpu, page)) {
	case GKSM_PAGE_UNBACKED:
	case GKSM_PAGE_FILLING:
		return true;
	case GKSM_PAGE_PRIVATE:
	case GKSM_PAGE_MERGING:
	case GKSM_PAGE_SHARED:
	case GKSM_PAGE_BUSY:
		/* Replacing what is mapped opens a hole: only a fault guard closes it. */
		return atomic_load(&gpu->guard) == GKSM_GUARD_FAULT;
	default:
		return false;
	}
}

enum part { PART_STAGED, PART_COMPLETE, PART_PLAIN };

static enum part add_piece(struct gksm_load *load, uint64_t page, enum gksm_page_state from,
			   size_t offset, const char *source, size_t bytes)
{
	struct gksm_gpu *gpu = load->gpu;
	struct gksm_page *entry = &gpu->pages[page];
	int added;

	if (from == GKSM_PAGE_UNBACKED) {
		entry->assembly = gksm_assembly_new();
		if (!entry->assembly) {
			gksm_page_put(gpu, page, from);
			return PART_PLAIN;
		}
	}
	added = gksm_assembly_add(entry->assembly, offset, source, bytes);
	if (added == 1) {
		/* Snapshot, and the pieces are not needed any more. */
		void *staging = gksm_load_add(load, page, NULL);

		memcpy(staging, entry->assembly->bytes, PAGE);
		gksm_assembly_free(entry->assembly);
		entry->assembly = NULL;
		entry->snapshot = staging;
		gksm_page_put(gpu, page, GKSM_PAGE_LOADING);
		return PART_COMPLETE;
	}
	gksm_page_put(gpu, page, GKSM_PAGE_FILLING);
	return added < 0 ? PART_PLAIN : PART_STAGED;
}

static enum part load_part(struct gksm_load *load, uint64_t page, size_t offset, const char *source,
			   size_t bytes)
{
	struct gksm_gpu *gpu = load->gpu;

	if (atomic_load(&gpu->pages[page].pins))
		return PART_PLAIN;
	touch(source, bytes);
	for (;;) {
		enum gksm_page_state state = gksm_page_state(gpu, page);
		struct gksm_page_rule rule = gksm_page_rule(state, GKSM_ON_LOAD_PART);

		if (rule.verdict == GKSM_WAIT_IT) {
			gksm_page_wait(gpu, page, state);
			continue;
		}
		if (rule.verdict != GKSM_GO || rule.next != GKSM_PAGE_FILLING)
			return PART_PLAIN;
		if (state == GKSM_PAGE_UNBACKED &&
		    atomic_load(&gpu->counters.in_state[GKSM_PAGE_FILLING]) >= FILLING_MAX)
			return PART_PLAIN;
		if (gksm_page_take(gpu, page, state))
			return add_piece(load, page, state, offset, source, bytes);
	}
}

static void load_range(struct gksm_load *load, CUdeviceptr destination, const char *source,
		       size_t bytes, CUstream stream)
{
	struct plain plain = {0};

	while (bytes) {
		uint64_t offset = (destination - load->gpu->arena_base) % PAGE;
		uint64_t page = (destination - load->gpu->arena_base) / PAGE;
		size_t part = PAGE - offset < bytes ? PAGE - offset : bytes;
		bool done;

		if (load->count == GKSM_LOAD_BATCH)
			gksm_load_flush(load);
		if (part == PAGE) {
			done = wants_full(load, page);
			if (done)
				gksm_load_add(load, page, source);
		} else {
			done = load_part(load, page, offset, source, part) != PART_PLAIN;
		}
		/* A page that is LOADING already is waited for inside the gate that plain
		 * copies want. */
		if (done && plain.bytes)
			gksm_load_flush(load);
		if (done)
			plain_flush(load, &plain, stream);
		else
			plain_add(&plain, destination, source, part);
		destination += part;
		source += part;
		bytes -= part;
	}
	gksm_load_flush(load);
	plain_flush(load, &plain, stream);
}

static bool pageable(struct gksm *process, const void *source, size_t bytes)
{
	const struct gksm_driver *driver = &process->driver;
	CUdeviceptr first = (CUdeviceptr)(uintptr_t)source;
	unsigned type = 0;

	/* The driver knows pinned, managed and device memory, and nothing else. */
	if (driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first) ==
	    CUDA_SUCCESS)
		return false;
	return driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					     first + bytes - 1) != CUDA_SUCCESS;
}

/* Notes on pages of a copy that came too late in its stream: `explain` tells. */
static void count_unordered(struct gksm_gpu *gpu, size_t bytes)
{
	atomic_fetch_add(&gpu->counters.unshared[GKSM_UNSHARED_ORDER], bytes / PAGE);
}

/* true: some page would not simply be copied by the driver. Small copies into pages
 * that are in use come by all the time; they must not wait for anything. */
static bool worthwhile(struct gksm_load *load, CUdeviceptr destination, size_t bytes)
{
	uint64_t offset = destination - load->gpu->arena_base;
	uint64_t end = offset + bytes;

	while (offset < end) {
		uint64_t page = offset / PAGE;
		enum gksm_page_state state = gksm_page_state(load->gpu, page);

		if (state == GKSM_PAGE_UNBACKED || state == GKSM_PAGE_FILLING)
			return true;
		if (offset % PAGE == 0 && end - offset >= PAGE && wants_full(load, page))
			return true;
		offset = (page + 1) * PAGE;
	}
	return false;
}

static bool prepare(struct gksm_load *load, CUdeviceptr destination, const void *source,
		    size_t bytes, CUstream stream)
{
	CUcontext current = NULL;
	uint64_t page;
	int error;

	load->gpu = gksm_gpu_of(load->process, destination, &page);
	/* Under `seal` nothing is shared before the program says that it is finished: until
	 * then its kernels may write, and nothing would hold their faults. */
	if (!load->gpu || !source || !gksm_gpu_sharing(load->gpu) ||
	    atomic_load(&load->gpu->guard) == GKSM_GUARD_SEAL ||
	    bytes > load->gpu->arena_base + load->gpu->arena_pages * PAGE - destination)
		return false;
	load->engine = load->gpu->pages[page].engine;
	/* From another context the stream would be another one too: the driver's case. */
	if (!load->engine || load->process->driver.cuCtxGetCurrent(&current) ||
	    current != load->engine->context || !worthwhile(load, destination, bytes) ||
	    !pageable(load->process, source, bytes))
		return false;
	error = gksm_wait_order(load->process, stream, (int)load->gpu->terms.order_wait_ms);
	if (error == -ETIMEDOUT)
		count_unordered(load->gpu, bytes);
	if (error)
		return false;
	load->wait_until_ns = gksm_now_ns() + load->gpu->terms.load_wait_ms * 1000000ull;
	return true;
}

/* Every page must belong to an allocation of this engine's context: anything else is
 * a mistake of the program that the driver is to name. */
static bool allocated(const struct gksm_load *load, CUdeviceptr destination, size_t bytes)
{
	uint64_t page = (destination - load->gpu->arena_base) / PAGE;
	uint64_t last = (destination + bytes - 1 - load->gpu->arena_base) / PAGE;

	for (; page <= last; page++)
		if (gksm_page_state(load->gpu, page) == GKSM_PAGE_FREE ||
		    load->gpu->pages[page].engine != load->engine)
			return false;
	return true;
}

bool gksm_load(struct gksm *process, CUdeviceptr destination, const void *source, size_t bytes,
	       CUstream stream, CUresult *result)
{
	struct gksm_load load = {.process = process, .kind = GKSM_KIND_WEIGHTS};
	bool served = false;

	if (!bytes || !prepare(&load, destination, source, bytes, stream))
		return false;
	gksm_mutex_lock(&load.engine->load_lock);
	if (allocated(&load, destination, bytes) && !gksm_engine_enter(load.engine)) {
		load_range(&load, destination, source, bytes, stream);
		gksm_engine_leave(load.engine);
		served = true;
	}
	gksm_mutex_unlock(&load.engine->load_lock);
	if (served) {
		gksm_cow_wake(load.gpu);
		gksm_gpu_report_usage(load.gpu);
		*result = load.result;
	}
	return served;
}
