/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the C library that libgksm must not link to: dlopen, dlsym and
 * pthread_create moved between libraries and got new symbol versions in glibc
 * 2.34, so a reference made on a new system keeps the library from loading on an
 * old one. They are found at run time in the objects the process has loaded.
 */
#ifndef GKSM_LIBC_SYMBOLS_H
#define GKSM_LIBC_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One loaded object, as the dynamic linker sees it. */
struct gksm_object {
	const char *path;   /* "" for the program itself */
	const char *soname; /* NULL: it has none */
	ElfW(Addr) base;
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash; /* NULL: none */
	const uint32_t *hash;	  /* NULL: none */
};

/* Calls visit for each loaded object, in the order they were loaded, until it
 * returns true. visit must not load or unload anything. */
void gksm_objects_each(bool (*visit)(const struct gksm_object *object, void *user), void *user);

/* The address of a function that the object defines; NULL: it does not. */
void *gksm_object_function(const struct gksm_object *object, const char *name);

/* A function of the C library proper (libc, libdl, libpthread), whatever other
 * objects define it too. NULL: none has it. */
void *gksm_libc_function(const char *name);

/* The function a plain program would get for that name: the first object's that
 * defines it, so that a sanitizer's pthread_create is honoured. */
void *gksm_global_function(const char *name);

#endif
