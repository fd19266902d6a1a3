/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built-in kernels of simcuda. There is no compiler in simcuda: a module (or
 * library) whose image is the text below offers these functions, which are C code
 * run by the stream's thread. Their parameters are passed as to any kernel, with
 * kernelParams or CU_LAUNCH_PARAM_BUFFER. Grid and block may be anything valid:
 * the work is the same.
 *
 * Addresses are device addresses, or host memory that the driver knows. A touch of
 * memory that is not mapped, or a store to a read-only page, is a GPU fault.
 */
#ifndef SIMCUDA_KERNELS_H
#define SIMCUDA_KERNELS_H

/* The image; what follows the text up to its NUL or end is ignored. */
#define SIMCUDA_BUILTIN_IMAGE "simcuda builtin"

/* A module has one global, 64 bytes of zeroes. */
#define SIMCUDA_BUILTIN_GLOBAL "scratch"
#define SIMCUDA_BUILTIN_GLOBAL_BYTES 64

/*
 * fill(uint32_t *out, uint64_t count, uint32_t value)
 *	out[i] = value
 * add(uint32_t *out, const uint32_t *a, const uint32_t *b, uint64_t count)
 *	out[i] = a[i] + b[i]
 * sum(uint64_t *out, const uint32_t *in, uint64_t count)
 *	*out = in[0] + ... + in[count - 1]
 * copy(void *to, const void *from, uint64_t bytes)
 *	by the SMs, not by a copy engine
 * write_pages(void *base, uint64_t first, uint64_t count, uint64_t step,
 *	       uint64_t offset, uint32_t value)
 *	writes the word at `offset` of the 2 MiB pages first, first + step, ... (count
 *	of them) that begin at base
 * spin_until(const uint32_t *flag, uint32_t value)
 *	runs until *flag == value
 * hash(uint64_t *out, const void *base, uint64_t pages)
 *	XXH3-128, seed 0, of each 2 MiB page; out[2 i] is its low and out[2 i + 1] its
 *	high half
 * compare(uint32_t *out, const void *a, const void *b, uint64_t pages)
 *	out[i] = 1 when the 2 MiB pages are equal, else 0
 */

#endif
