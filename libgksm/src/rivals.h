/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GKSM_RIVALS_H
#define GKSM_RIVALS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * true: another preloaded library exports cuInit, so it stands between the
 * application and the driver as we do; its path is put into path. What two such
 * libraries make of one allocation nobody can foresee. A library that the program
 * links or loads itself (stubs that look the driver up, a second driver) is none.
 */
bool gksm_rival_find(char *path, size_t bytes);

#endif
