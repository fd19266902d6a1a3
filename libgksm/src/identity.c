/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which entry point an address of the driver is.
 *
 * cuGetProcAddress is asked for a base name, an ABI version and flags, and the
 * driver picks one of several functions. Which one is told by the address, not by
 * guessing at suffixes: a wrapper of another ABI would take the arguments apart
 * wrongly.
 */
#include <string.h>

#include "driver_table.h"
#include "report.h"

static unsigned first_slot(const void *address)
{
	/* Functions are 16-byte aligned; multiply to spread the rest (Knuth). */
	uint64_t spread = ((uint64_t)address >> 4) * 0x9e3779b97f4a7c15ull;

	return (unsigned)(spread >> 32) & (GKSM_IDENTITY_SLOTS - 1);
}

void gksm_identity_add(struct gksm_driver_table *table, unsigned index)
{
	unsigned slot = first_slot(table->real[index]);

	while (table->identity[slot] != 0)
		slot = (slot + 1) & (GKSM_IDENTITY_SLOTS - 1);
	table->identity[slot] = (uint16_t)(index + 1);
}

/* true: name is symbol or one of its variants (_v2, _ptsz, ...). */
static bool is_variant(const char *name, const char *symbol)
{
	size_t length = strlen(symbol);

	return strncmp(name, symbol, length) == 0 && (name[length] == '\0' || name[length] == '_');
}

static bool is_per_thread(const char *name)
{
	const char *end = strrchr(name, '_');

	return end && (strcmp(end, "_ptsz") == 0 || strcmp(end, "_ptds") == 0);
}

static bool family_wrapped(const char *symbol)
{
	for (unsigned i = 0; i < GKSM_ENTRY_COUNT; i++)
		if (gksm_entry_wrapped(i) && is_variant(gksm_entry_names[i], symbol))
			return true;
	return false;
}

void *gksm_identity_wrap(const struct gksm_driver_table *table, void *address, const char *symbol,
			 bool per_thread)
{
	void *wrapper = address;
	bool known = false;

	for (unsigned slot = first_slot(address); table->identity[slot] != 0;
	     slot = (slot + 1) & (GKSM_IDENTITY_SLOTS - 1)) {
		unsigned index = table->identity[slot] - 1u;
		const char *name = gksm_entry_names[index];

		if (table->real[index] != address)
			continue;
		known = true;
		/*
		 * A driver may give one address to many names, of other families too
		 * (whatever it does not support): only the asked one's wrapper fits.
		 */
		if (!gksm_entry_wrapped(index) || !is_variant(name, symbol))
			continue;
		if (wrapper == address || is_per_thread(name) == per_thread)
			wrapper = gksm_entry_exports[index];
	}
	if (!known && family_wrapped(symbol))
		gksm_report(NULL, GKSM_WARNING,
			    "the driver has a variant of %s that libgksm does not know: calls to "
			    "it are not seen",
			    symbol);
	return wrapper;
}
