/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks functions that play the GPU: they touch memory that sanitizers know nothing
 * of, and must not become calls of memcpy or memset, which are instrumented too.
 */
#ifndef SIM_DEVICE_CODE_H
#define SIM_DEVICE_CODE_H

#define SIM_DEVICE_CODE                                                                \
	__attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined, \
		       optimize("O2", "no-tree-loop-distribute-patterns")))

#endif
