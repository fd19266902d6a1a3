/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts and devices on which sharing is not sound, or was never tried. */
#ifndef GKSM_REFUSAL_H
#define GKSM_REFUSAL_H

#include "cuda_abi.h"

struct gksm;

/* Why the device must be left alone, as the end of a sentence; NULL: no reason. */
const char *gksm_refusal(const struct gksm *process, CUdevice device);

#endif
