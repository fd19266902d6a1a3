/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_AUDIT: writes into the file AUDIT who got which name that begins with cu out
 * of which library, for all look-ups by dlsym.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned int la_version(unsigned int version)
{
	return version;
}

unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
	(void)space;
	*cookie = (uintptr_t)map;
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

static const char *name_of(const uintptr_t *cookie)
{
	const char *name = ((const struct link_map *)*cookie)->l_name;

	return *name ? name : "program";
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to,
		       unsigned int *flags, const char *name)
{
	const char *path = getenv("AUDIT");
	FILE *file;

	(void)index;
	if (!(*flags & LA_SYMB_DLSYM) || strncmp(name, "cu", 2) || !path)
		return symbol->st_value;
	file = fopen(path, "a");
	if (file) {
		fprintf(file, "%s %s %s\n", name_of(from), name, name_of(to));
		fclose(file);
	}
	return symbol->st_value;
}
