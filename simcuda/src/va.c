/* SPDX-License-Identifier: Apache-2.0 */
#include "va.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPAN_BYTES ((size_t)256 << 30)
#define SPAN_BYTES_LEAST ((size_t)16 << 30)
#define HOLE_NS_MAX 200000u

uintptr_t sim_va_base, sim_va_end;
ptrdiff_t sim_va_distance;

/*
 * By system call: a sanitizer's mmap would set up shadow memory for spans that no
 * instrumented code ever touches.
 */
static void *host_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

static void host_protect(void *at, size_t bytes, int protection)
{
	syscall(SYS_mprotect, at, bytes, protection);
}

static void host_dontfork(void *at, size_t bytes)
{
	syscall(SYS_madvise, at, bytes, MADV_DONTFORK);
}

static void *alias(CUdeviceptr address)
{
	return (void *)((uintptr_t)address + (uintptr_t)sim_va_distance);
}

static size_t index_of(CUdeviceptr address)
{
	return (size_t)(address - sim_va_base) >> SIM_PAGE_SHIFT;
}

int sim_va_start(void)
{
	struct sim_va *va = calloc(1, sizeof(*va));
	size_t span = SPAN_BYTES;
	void *at;

	if (!va)
		return -ENOMEM;
	for (;; span /= 2) {
		at = host_mmap(NULL, 2 * span + SIM_PAGE, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at != MAP_FAILED || span <= SPAN_BYTES_LEAST)
			break;
	}
	if (at == MAP_FAILED) {
		free(va);
		return -ENOMEM;
	}
	host_dontfork(at, 2 * span + SIM_PAGE);
	sim_va_base = ((uintptr_t)at + SIM_PAGE - 1) & ~(SIM_PAGE - 1);
	sim_va_end = sim_va_base + span;
	sim_va_distance = (ptrdiff_t)span;
	va->pages = span >> SIM_PAGE_SHIFT;
	va->entries = calloc(va->pages, sizeof(*va->entries));
	va->access = calloc(va->pages, sizeof(*va->access));
	va->reach = calloc(va->pages, sizeof(*va->reach));
	if (!va->entries || !va->access || !va->reach) {
		free(va->entries);
		free((void *)va->access);
		free((void *)va->reach);
		free(va);
		return -ENOMEM;
	}
	sim_root.va = va;
	return 0;
}

static bool range_free(size_t first, size_t pages)
{
	if (first + pages > sim_root.va->pages || first + pages < first)
		return false;
	for (size_t i = first; i < first + pages; i++)
		if (sim_root.va->entries[i].region)
			return false;
	return true;
}

static size_t range_search(size_t from, size_t to, size_t pages, size_t align_pages)
{
	size_t base_page = sim_va_base >> SIM_PAGE_SHIFT;
	size_t run = 0;

	for (size_t i = from; i < to; i++) {
		if (sim_root.va->entries[i].region) {
			run = 0;
			continue;
		}
		/* A run starts only where the address is aligned. */
		if (!run && (base_page + i) % align_pages)
			continue;
		if (++run == pages)
			return i + 1 - pages;
	}
	return SIZE_MAX;
}

struct sim_region *sim_va_reserve(size_t pages, size_t align_pages, CUdeviceptr hint)
{
	struct sim_va *va = sim_root.va;
	size_t first = SIZE_MAX;
	struct sim_region *region;

	if (!align_pages)
		align_pages = 1;
	if (hint && sim_va_inside(hint) && hint % (align_pages * SIM_PAGE) == 0 &&
	    range_free(index_of(hint), pages))
		first = index_of(hint);
	/* Onwards from the last one first: an address just freed is not reused at once,
	 * so that a use after free is seen. */
	if (first == SIZE_MAX)
		first = range_search(va->rotor, va->pages, pages, align_pages);
	if (first == SIZE_MAX)
		first = range_search(0, va->pages, pages, align_pages);
	if (first == SIZE_MAX)
		return NULL;
	region = calloc(1, sizeof(*region));
	if (!region)
		return NULL;
	region->base = sim_va_base + (first << SIM_PAGE_SHIFT);
	region->pages = pages;
	for (size_t i = first; i < first + pages; i++)
		va->entries[i].region = region;
	va->rotor = first + pages;
	return region;
}

void sim_va_release(struct sim_region *region)
{
	size_t first = index_of(region->base);

	for (size_t i = first; i < first + region->pages; i++)
		sim_root.va->entries[i].region = NULL;
	free(region);
}

struct sim_region *sim_va_region(CUdeviceptr address)
{
	return sim_va_inside(address) ? sim_root.va->entries[index_of(address)].region : NULL;
}

struct sim_mapping *sim_va_find(CUdeviceptr address)
{
	return sim_va_inside(address) ? sim_root.va->entries[index_of(address)].mapping : NULL;
}

enum sim_access sim_va_access(CUdeviceptr address)
{
	if (!sim_va_inside(address))
		return SIM_ACCESS_NONE;
	return atomic_load(&sim_root.va->access[index_of(address)]);
}

static void note_access(const struct sim_mapping *mapping, enum sim_access access)
{
	size_t first = index_of(mapping->base);

	for (size_t i = first; i < first + mapping->pages; i++)
		atomic_store(&sim_root.va->access[i], (uint8_t)access);
}

static void host_unmap(CUdeviceptr base, size_t pages)
{
	host_mmap(alias(base), pages * SIM_PAGE, PROT_NONE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	host_dontfork(alias(base), pages * SIM_PAGE);
}

int sim_va_map(struct sim_mapping *mapping, const struct sim_extent *extents, unsigned count)
{
	struct sim_va *va = sim_root.va;
	size_t first = index_of(mapping->base);
	CUdeviceptr at = mapping->base;

	for (unsigned i = 0; i < count; i++) {
		size_t bytes = sim_extent_bytes(&extents[i]);

		if (host_mmap(alias(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, extents[i].fd,
			      sim_extent_offset(&extents[i])) == MAP_FAILED) {
			int error = -errno;

			host_unmap(mapping->base, mapping->pages);
			return error;
		}
		host_dontfork(alias(at), bytes);
		at += bytes;
	}
	for (size_t i = first; i < first + mapping->pages; i++)
		va->entries[i].mapping = mapping;
	mapping->access = SIM_ACCESS_NONE;
	mapping->next = va->mappings;
	mapping->link = &va->mappings;
	if (va->mappings)
		va->mappings->link = &mapping->next;
	va->mappings = mapping;
	return 0;
}

void sim_va_unmap(struct sim_mapping *mapping)
{
	size_t first = index_of(mapping->base);

	note_access(mapping, SIM_ACCESS_NONE);
	host_unmap(mapping->base, mapping->pages);
	for (size_t i = first; i < first + mapping->pages; i++)
		sim_root.va->entries[i].mapping = NULL;
	*mapping->link = mapping->next;
	if (mapping->next)
		mapping->next->link = mapping->link;
}

void sim_va_protect(struct sim_mapping *mapping, enum sim_access access, bool changed)
{
	static const int protections[] = {
		[SIM_ACCESS_NONE] = PROT_NONE,
		[SIM_ACCESS_READ] = PROT_READ,
		[SIM_ACCESS_READ_WRITE] = PROT_READ | PROT_WRITE,
	};
	size_t bytes = mapping->pages * SIM_PAGE;

	if (mapping->access == access && !changed)
		return;
	if (mapping->access != SIM_ACCESS_NONE) {
		note_access(mapping, SIM_ACCESS_NONE);
		host_protect(alias(mapping->base), bytes, PROT_NONE);
		if (access != SIM_ACCESS_NONE) {
			struct timespec hole = {.tv_nsec = (long)(sim_random() % HOLE_NS_MAX)};

			nanosleep(&hole, NULL);
		}
	}
	sim_reach_note(mapping);
	host_protect(alias(mapping->base), bytes, protections[access]);
	note_access(mapping, access);
	mapping->access = access;
}
