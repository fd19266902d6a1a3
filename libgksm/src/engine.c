/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "gpu.h"

#define PAGE ((size_t)GKSM_PAGE_SIZE)
#define CHUNK (PAGE / GKSM_BOUNCE_CHUNKS)

static int mover_start(struct gksm_mover *mover, const struct gksm_driver *driver,
		       unsigned scratch_pages)
{
	size_t i;

	mover->driver = driver;
	mover->scratch_pages = scratch_pages;
	if (driver->cuMemAddressReserve(&mover->scratch, scratch_pages * PAGE, PAGE, 0, 0))
		return -ENOMEM;
	if (driver->cuMemAllocHost_v2(&mover->bounce, PAGE))
		return -ENOMEM;
	if (driver->cuStreamCreate(&mover->out, CU_STREAM_NON_BLOCKING) ||
	    driver->cuStreamCreate(&mover->in, CU_STREAM_NON_BLOCKING))
		return -ENOMEM;
	for (i = 0; i < GKSM_BOUNCE_CHUNKS; i++)
		if (driver->cuEventCreate(&mover->chunk_out[i], CU_EVENT_DISABLE_TIMING))
			return -ENOMEM;
	return 0;
}

static void mover_stop(struct gksm_mover *mover)
{
	const struct gksm_driver *driver = mover->driver;
	size_t i;

	if (!driver)
		return;
	for (i = 0; i < GKSM_BOUNCE_CHUNKS; i++)
		if (mover->chunk_out[i])
			driver->cuEventDestroy_v2(mover->chunk_out[i]);
	if (mover->in)
		driver->cuStreamDestroy_v2(mover->in);
	if (mover->out)
		driver->cuStreamDestroy_v2(mover->out);
	if (mover->bounce)
		driver->cuMemFreeHost(mover->bounce);
	if (mover->scratch)
		driver->cuMemAddressFree(mover->scratch, mover->scratch_pages * PAGE);
	memset(mover, 0, sizeof(*mover));
}

static void engine_stop(struct gksm_engine *engine)
{
	size_t i;

	mover_stop(&engine->cow);
	mover_stop(&engine->write);
	mover_stop(&engine->load);
	for (i = 0; i < GKSM_LOAD_BATCH; i++)
		if (engine->staging[i])
			engine->gpu->process->driver.cuMemFreeHost(engine->staging[i]);
	memset(engine->staging, 0, sizeof(engine->staging));
	mover_stop(&engine->scan);
	for (i = 0; i < GKSM_SCAN_BATCH; i++)
		if (engine->looked[i])
			engine->gpu->process->driver.cuMemFreeHost(engine->looked[i]);
	memset(engine->looked, 0, sizeof(engine->looked));
}

static struct gksm_engine *engine_make(struct gksm_gpu *gpu, CUcontext context)
{
	const struct gksm_driver *driver = &gpu->process->driver;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct gksm_engine *engine = calloc(1, sizeof(*engine));
	int error;
	size_t i;

	if (!engine)
		return NULL;
	engine->gpu = gpu;
	engine->context = context;
	/* The application may be capturing in another thread: what follows must not
	 * break that. */
	driver->cuThreadExchangeStreamCaptureMode(&mode);
	error = mover_start(&engine->cow, driver, 1);
	if (!error)
		error = mover_start(&engine->write, driver, 1);
	if (!error)
		error = mover_start(&engine->load, driver, GKSM_LOAD_BATCH);
	/* Page by page: pinning 64 MiB at once can hold other threads' driver calls for
	 * tens of milliseconds (h200-facts, "Who blocks the COW thread"). */
	for (i = 0; !error && i < GKSM_LOAD_BATCH; i++)
		if (driver->cuMemAllocHost_v2(&engine->staging[i], PAGE))
			error = -ENOMEM;
	driver->cuThreadExchangeStreamCaptureMode(&mode);
	if (error) {
		engine_stop(engine);
		free(engine);
		return NULL;
	}
	return engine;
}

static struct gksm_engine *engine_find(struct gksm_gpu *gpu, CUcontext context)
{
	struct gksm_engine *engine = atomic_load_explicit(&gpu->engines, memory_order_acquire);

	while (engine && (engine->context != context || atomic_load(&engine->gone)))
		engine = atomic_load_explicit(&engine->next, memory_order_acquire);
	return engine;
}

struct gksm_engine *gksm_engine_get(struct gksm_gpu *gpu, CUcontext context)
{
	struct gksm_engine *engine = engine_find(gpu, context);

	if (engine)
		return engine;
	gksm_mutex_lock(&gpu->engines_lock);
	engine = engine_find(gpu, context);
	if (!engine) {
		engine = engine_make(gpu, context);
		if (engine) {
			atomic_store(&engine->next, atomic_load(&gpu->engines));
			atomic_store_explicit(&gpu->engines, engine, memory_order_release);
		}
	}
	gksm_mutex_unlock(&gpu->engines_lock);
	return engine;
}

int gksm_engine_prepare_scan(struct gksm_engine *engine)
{
	const struct gksm_driver *driver = &engine->gpu->process->driver;
	size_t i;

	if (engine->looked[GKSM_SCAN_BATCH - 1])
		return 0;
	if (mover_start(&engine->scan, driver, 2))
		goto failed;
	for (i = 0; i < GKSM_SCAN_BATCH; i++)
		if (driver->cuMemAllocHost_v2(&engine->looked[i], PAGE))
			goto failed;
	return 0;
failed:
	for (i = 0; i < GKSM_SCAN_BATCH; i++) {
		if (engine->looked[i])
			driver->cuMemFreeHost(engine->looked[i]);
		engine->looked[i] = NULL;
	}
	mover_stop(&engine->scan);
	return -ENOMEM;
}

int gksm_engine_enter(struct gksm_engine *engine)
{
	if (atomic_load(&engine->gone) ||
	    engine->gpu->process->driver.cuCtxPushCurrent_v2(engine->context))
		return -ENODEV;
	return 0;
}

void gksm_engine_leave(struct gksm_engine *engine)
{
	CUcontext popped;

	engine->gpu->process->driver.cuCtxPopCurrent_v2(&popped);
}

void gksm_engine_retire(struct gksm_engine *engine)
{
	gksm_mutex_lock(&engine->load_lock);
	gksm_mutex_lock(&engine->write_lock);
	gksm_mutex_lock(&engine->cow_lock);
	gksm_mutex_lock(&engine->scan_lock);
	atomic_store(&engine->gone, true);
	engine_stop(engine);
	gksm_mutex_unlock(&engine->scan_lock);
	gksm_mutex_unlock(&engine->cow_lock);
	gksm_mutex_unlock(&engine->write_lock);
	gksm_mutex_unlock(&engine->load_lock);
}

int gksm_mover_copy_page(struct gksm_mover *mover, CUdeviceptr destination, CUdeviceptr source)
{
	const struct gksm_driver *driver = mover->driver;
	size_t i;

	for (i = 0; i < GKSM_BOUNCE_CHUNKS; i++) {
		char *host = (char *)mover->bounce + i * CHUNK;

		if (driver->cuMemcpyDtoHAsync_v2(host, source + i * CHUNK, CHUNK, mover->out) ||
		    driver->cuEventRecord(mover->chunk_out[i], mover->out) ||
		    driver->cuStreamWaitEvent(mover->in, mover->chunk_out[i], 0) ||
		    driver->cuMemcpyHtoDAsync_v2(destination + i * CHUNK, host, CHUNK, mover->in))
			return -EIO;
	}
	return driver->cuStreamSynchronize(mover->in) ? -EIO : 0;
}

int gksm_mover_write(struct gksm_mover *mover, CUdeviceptr destination, const void *source,
		     size_t bytes)
{
	memcpy(mover->bounce, source, bytes);
	if (gksm_mover_enqueue(mover, destination, mover->bounce, bytes))
		return -EIO;
	return gksm_mover_finish(mover);
}

int gksm_mover_read_page(struct gksm_mover *mover, CUdeviceptr source)
{
	if (gksm_mover_enqueue_read(mover, mover->bounce, source))
		return -EIO;
	return gksm_mover_finish_reads(mover);
}

int gksm_mover_enqueue_read(struct gksm_mover *mover, void *pinned, CUdeviceptr source)
{
	return mover->driver->cuMemcpyDtoHAsync_v2(pinned, source, PAGE, mover->out) ? -EIO : 0;
}

int gksm_mover_finish_reads(struct gksm_mover *mover)
{
	return mover->driver->cuStreamSynchronize(mover->out) ? -EIO : 0;
}

int gksm_mover_enqueue(struct gksm_mover *mover, CUdeviceptr destination, const void *pinned,
		       size_t bytes)
{
	return mover->driver->cuMemcpyHtoDAsync_v2(destination, pinned, bytes, mover->in) ? -EIO
											  : 0;
}

int gksm_mover_finish(struct gksm_mover *mover)
{
	return mover->driver->cuStreamSynchronize(mover->in) ? -EIO : 0;
}
