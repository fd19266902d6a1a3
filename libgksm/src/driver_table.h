/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known about the driver's symbols, and the tables of exports.S. Only
 * driver.c, identity.c and resolve.c look in here; everybody else asks driver.h.
 */
#ifndef GKSM_DRIVER_TABLE_H
#define GKSM_DRIVER_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver.h"
#include "driver_path.h"

#define GKSM_IDENTITY_SLOTS 2048 /* a power of two, more than twice GKSM_ENTRY_COUNT */

struct gksm_driver_table {
	struct gksm_driver driver; /* a typed copy of the first entries of real */
	void *handle;		   /* NULL: there is no driver */
	void *(*symbol)(void *handle, const char *name);
	void *real[GKSM_ENTRY_COUNT];
	uint16_t identity[GKSM_IDENTITY_SLOTS]; /* index + 1, by real address */
	char path[GKSM_PATH_MAX];
};

/* exports.S. One row a name; the first rows are the members of struct gksm_driver. */
extern const char *const gksm_entry_names[GKSM_ENTRY_COUNT];
extern void *const gksm_entry_exports[GKSM_ENTRY_COUNT]; /* the stub, or what replaced it */
extern void *const gksm_entry_stubs[GKSM_ENTRY_COUNT];
extern _Atomic(void *) gksm_entry_slots[GKSM_ENTRY_COUNT]; /* where the stubs jump to */

/* Opens the driver if that was not done. NULL: no memory. */
const struct gksm_driver_table *gksm_driver_table(void);

/* Never NULL: the real function, or one that returns the error of its absence. */
void *gksm_entry_target(const struct gksm_driver_table *table, unsigned index);

/* Called by exports.S at the first call through a stub. */
void *gksm_entry_resolve(uint64_t index);

/* true: a function of ours stands in the place of the stub. */
static inline bool gksm_entry_wrapped(unsigned index)
{
	return gksm_entry_exports[index] != gksm_entry_stubs[index];
}

/* Notes that real[index] is the entry point of that name. */
void gksm_identity_add(struct gksm_driver_table *table, unsigned index);

/*
 * The function to hand out for an address that the driver handed out: our wrapper
 * of that very entry point, else the address itself. symbol is what was asked for
 * (a base name); where the driver has one address under several names it decides.
 */
void *gksm_identity_wrap(const struct gksm_driver_table *table, void *address, const char *symbol,
			 bool per_thread);

#endif
