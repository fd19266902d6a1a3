/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GKSM_NEEDED_H
#define GKSM_NEEDED_H

struct gksm_driver;

/* The first entry point that libgksm calls without asking and the driver lacks;
 * NULL: it has them all. */
const char *gksm_driver_lacks(const struct gksm_driver *driver);

#endif
