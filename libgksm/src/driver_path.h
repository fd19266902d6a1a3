/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the real libcuda.so.1 may be. The loader cannot be asked: it would answer
 * with libgksm itself, which bears that name.
 */
#ifndef GKSM_DRIVER_PATH_H
#define GKSM_DRIVER_PATH_H

#include <stdbool.h>

#define GKSM_PATH_MAX 4096

/*
 * Calls try_path with one path after another until it returns true. GKSM_DRIVER,
 * if set, is the only candidate; otherwise the files named libcuda.so.1 in the
 * loader's own order: LD_LIBRARY_PATH, /etc/ld.so.cache, the default directories.
 * (An RPATH of the program is not looked at.) A program that runs with more
 * rights than its user has (AT_SECURE) is not steered by the environment.
 */
void gksm_driver_candidates(bool (*try_path)(const char *path, void *user), void *user);

#endif
