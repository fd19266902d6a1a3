/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the real driver, once, at the first call of anything, and keeps what its
 * symbols are.
 *
 * No lock: dlopen takes the loader's own and runs constructors that may call back
 * into us, so a lock of ours around it could deadlock against another thread that
 * holds the loader's. Threads that come at once each look the symbols up (the
 * loader gives all the same object) and the first to finish publishes.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver_path.h"
#include "driver_table.h"
#include "libc_symbols.h"
#include "report.h"
#include "wrap.h"

/* What no other library exports. */
#define OWN_MARK "gksm_records"

typedef void *open_function(const char *path, int flags);
typedef void *symbol_function(void *handle, const char *name);
typedef int close_function(void *handle);
typedef char *error_function(void);

struct loader {
	open_function *open;
	symbol_function *symbol;
	close_function *close;
	error_function *error;
};

struct opening {
	struct loader loader;
	struct gksm_driver_table *table;
};

_Static_assert(sizeof(struct gksm_driver) <= sizeof(void *) * GKSM_ENTRY_COUNT,
	       "the table begins with the members of struct gksm_driver");

static _Atomic(struct gksm_driver_table *) published;

/* What a call to a symbol that the driver lacks returns: there is no such function,
 * and a newer driver might have it. */
static CUresult missing_symbol(void)
{
	return CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
}

/* Without a driver nothing can have been initialised. cuInit says NO_DEVICE. */
static CUresult missing_driver(void)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}

/*
 * Before glibc 2.34 dlopen lives in libdl.so.2, which a program that is linked
 * with -lcuda alone has not loaded: the driver would have brought it, and we stand
 * in the driver's place. libc of those days has a dlopen for its own use.
 */
static bool find_loader(struct loader *loader)
{
	loader->open = (open_function *)gksm_libc_function("dlopen");
	if (!loader->open) {
		open_function *internal = (open_function *)gksm_libc_function("__libc_dlopen_mode");

		if (!internal || !internal("libdl.so.2", (int)(RTLD_NOW | 0x80000000u)))
			return false;
		loader->open = (open_function *)gksm_libc_function("dlopen");
	}
	loader->symbol = (symbol_function *)gksm_libc_function("dlsym");
	loader->close = (close_function *)gksm_libc_function("dlclose");
	loader->error = (error_function *)gksm_libc_function("dlerror");
	return loader->open && loader->symbol && loader->close && loader->error;
}

static bool try_path(const char *path, void *user)
{
	struct opening *opening = user;
	struct loader *loader = &opening->loader;
	void *handle = loader->open(path, RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		gksm_report(NULL, GKSM_WARNING, "cannot load the driver %s: %s", path,
			    loader->error());
		return false;
	}
	/* It may be this library, by another path, or another copy of it. */
	if (loader->symbol(handle, OWN_MARK) || !loader->symbol(handle, "cuInit")) {
		loader->close(handle);
		return false;
	}
	opening->table->handle = handle;
	snprintf(opening->table->path, sizeof(opening->table->path), "%s", path);
	return true;
}

static void look_up(struct opening *opening)
{
	struct gksm_driver_table *table = opening->table;

	for (unsigned i = 0; i < GKSM_ENTRY_COUNT; i++) {
		table->real[i] = opening->loader.symbol(table->handle, gksm_entry_names[i]);
		if (table->real[i])
			gksm_identity_add(table, i);
	}
	memcpy(&table->driver, table->real, sizeof(table->driver));
}

static struct gksm_driver_table *open_driver(void)
{
	struct opening opening = {0};
	struct gksm_driver_table *nobody = NULL;
	/* Not from malloc: the application's own may not be up yet. */
	void *memory = mmap(NULL, sizeof(*opening.table), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	opening.table = memory;
	if (find_loader(&opening.loader)) {
		gksm_driver_candidates(try_path, &opening);
		if (opening.table->handle)
			look_up(&opening);
		else
			gksm_report(NULL, GKSM_INFO,
				    "no libcuda.so.1 was found: CUDA calls answer "
				    "as without a driver");
		/* The application's next dlerror() must not tell of our misses. */
		opening.loader.error();
		opening.table->symbol = opening.loader.symbol;
	} else {
		gksm_report(NULL, GKSM_ERROR, "this C library has no dlopen: no driver");
	}
	if (!atomic_compare_exchange_strong_explicit(&published, &nobody, opening.table,
						     memory_order_acq_rel, memory_order_acquire)) {
		munmap(memory, sizeof(*opening.table));
		return nobody;
	}
	for (unsigned i = 0; i < GKSM_ENTRY_COUNT; i++)
		atomic_store_explicit(&gksm_entry_slots[i], gksm_entry_target(opening.table, i),
				      memory_order_release);
	return opening.table;
}

const struct gksm_driver_table *gksm_driver_table(void)
{
	struct gksm_driver_table *table = atomic_load_explicit(&published, memory_order_acquire);

	return table ? table : open_driver();
}

void *gksm_entry_target(const struct gksm_driver_table *table, unsigned index)
{
	if (!table || !table->handle)
		return (void *)missing_driver;
	return table->real[index] ? table->real[index] : (void *)missing_symbol;
}

void *gksm_entry_resolve(uint64_t index)
{
	return gksm_entry_target(gksm_driver_table(), (unsigned)index);
}

const struct gksm_driver *gksm_driver(void)
{
	const struct gksm_driver_table *table = gksm_driver_table();

	return table && table->handle ? &table->driver : NULL;
}

void *gksm_real(size_t member_offset)
{
	return gksm_entry_target(gksm_driver_table(), (unsigned)(member_offset / sizeof(void *)));
}

void *gksm_driver_handle(void)
{
	const struct gksm_driver_table *table = gksm_driver_table();

	return table ? table->handle : NULL;
}

void *gksm_driver_symbol(const char *name)
{
	const struct gksm_driver_table *table = gksm_driver_table();

	return table && table->handle ? table->symbol(table->handle, name) : NULL;
}

const char *gksm_driver_path(void)
{
	const struct gksm_driver_table *table = gksm_driver_table();

	return table ? table->path : "";
}
