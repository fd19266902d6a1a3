/* SPDX-License-Identifier: Apache-2.0 */
/* What the recording driver and the calling program share. */
#ifndef RECORDED_H
#define RECORDED_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

struct recorded {
	unsigned calls;
	unsigned bytes;
	unsigned char arguments[256];
};

struct recording {
	int wanted;	 /* the function under test; -1: none */
	CUresult result; /* that it is to return */
	struct recorded functions[FUNCTIONS];
};

#endif
