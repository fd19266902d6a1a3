/* SPDX-License-Identifier: Apache-2.0 */
#include "libc_symbols.h"

#include <string.h>

struct walk {
	bool (*visit)(const struct gksm_object *object, void *user);
	void *user;
};

struct search {
	const char *name;
	bool libc_only;
	void *found;
};

/*
 * glibc rewrites the addresses in an object's dynamic section when it loads it,
 * but cannot in the vDSO, and other C libraries never do.
 */
static const void *dynamic_address(const struct dl_phdr_info *info, ElfW(Addr) value)
{
	return (const void *)(value < info->dlpi_addr ? info->dlpi_addr + value : value);
}

static bool describe(const struct dl_phdr_info *info, struct gksm_object *object)
{
	const ElfW(Dyn) *dynamic = NULL;
	ElfW(Xword) soname = 0;
	bool has_soname = false;

	memset(object, 0, sizeof(*object));
	object->path = info->dlpi_name ? info->dlpi_name : "";
	object->base = info->dlpi_addr;
	for (size_t i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	if (!dynamic)
		return false;
	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		const void *address = dynamic_address(info, dynamic->d_un.d_ptr);

		switch (dynamic->d_tag) {
		case DT_SYMTAB:
			object->symbols = address;
			break;
		case DT_STRTAB:
			object->strings = address;
			break;
		case DT_GNU_HASH:
			object->gnu_hash = address;
			break;
		case DT_HASH:
			object->hash = address;
			break;
		case DT_SONAME:
			soname = dynamic->d_un.d_val;
			has_soname = true;
			break;
		default:
			break;
		}
	}
	if (!object->symbols || !object->strings)
		return false;
	if (has_soname)
		object->soname = object->strings + soname;
	return true;
}

static int visit_object(struct dl_phdr_info *info, size_t bytes, void *user)
{
	struct walk *walk = user;
	struct gksm_object object;

	(void)bytes;
	return describe(info, &object) && walk->visit(&object, walk->user);
}

void gksm_objects_each(bool (*visit)(const struct gksm_object *object, void *user), void *user)
{
	struct walk walk = {.visit = visit, .user = user};

	dl_iterate_phdr(visit_object, &walk);
}

static bool is_function(const struct gksm_object *object, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &object->symbols[index];
	unsigned type = ELF64_ST_TYPE(symbol->st_info);

	/* No STT_GNU_IFUNC: its value is a resolver. None of the functions wanted is one. */
	return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
	       (type == STT_FUNC || type == STT_NOTYPE) &&
	       strcmp(object->strings + symbol->st_name, name) == 0;
}

/* 0 is the null symbol: not found. Of several versions of a name any will do: those
 * of the functions wanted have the same code. */
static uint32_t find_gnu(const struct gksm_object *object, const char *name)
{
	const uint32_t *table = object->gnu_hash;
	uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
	const uint32_t *bucket = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = bucket + buckets;
	uint32_t hash = 5381, index;

	if (buckets == 0)
		return 0;
	for (const unsigned char *c = (const unsigned char *)name; *c; c++)
		hash = hash * 33 + *c;
	index = bucket[hash % buckets];
	if (index < first)
		return 0;
	for (;; index++) {
		uint32_t entry = chain[index - first];

		if ((entry | 1) == (hash | 1) && is_function(object, index, name))
			return index;
		if (entry & 1)
			return 0;
	}
}

static uint32_t find_sysv(const struct gksm_object *object, const char *name)
{
	const uint32_t *table = object->hash;
	uint32_t buckets = table[0], chains = table[1];
	const uint32_t *bucket = table + 2, *chain = bucket + buckets;
	uint32_t hash = 0, high;

	if (buckets == 0)
		return 0;
	for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
		hash = (hash << 4) + *c;
		high = hash & 0xf0000000u;
		hash = (hash ^ (high >> 24)) & ~high;
	}
	for (uint32_t i = bucket[hash % buckets]; i != 0 && i < chains; i = chain[i])
		if (is_function(object, i, name))
			return i;
	return 0;
}

void *gksm_object_function(const struct gksm_object *object, const char *name)
{
	uint32_t index = 0;

	if (object->gnu_hash)
		index = find_gnu(object, name);
	else if (object->hash)
		index = find_sysv(object, name);
	if (index == 0)
		return NULL;
	return (void *)(object->base + object->symbols[index].st_value);
}

static bool is_libc(const struct gksm_object *object)
{
	static const char *const sonames[] = {"libc.so.6", "libdl.so.2", "libpthread.so.0"};

	for (size_t i = 0; i < sizeof(sonames) / sizeof(sonames[0]); i++)
		if (object->soname && strcmp(object->soname, sonames[i]) == 0)
			return true;
	return false;
}

static bool visit_search(const struct gksm_object *object, void *user)
{
	struct search *search = user;

	if (!search->libc_only || is_libc(object))
		search->found = gksm_object_function(object, search->name);
	return search->found != NULL;
}

void *gksm_libc_function(const char *name)
{
	struct search search = {.name = name, .libc_only = true};

	gksm_objects_each(visit_search, &search);
	return search.found;
}

void *gksm_global_function(const char *name)
{
	struct search search = {.name = name};

	gksm_objects_each(visit_search, &search);
	return search.found;
}
