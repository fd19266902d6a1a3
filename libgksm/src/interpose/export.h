/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that somebody outside this process's CUDA calls will reach. */
#ifndef GKSM_EXPORT_H
#define GKSM_EXPORT_H

#include <stddef.h>

#include "cuda_abi.h"

struct gksm;
struct gksm_allocation_info;

/* Makes the pages of the range private for as long as they are allocated. Nothing to
 * do for memory that is not ours. */
CUresult gksm_export_pin(struct gksm *process, CUdeviceptr address, size_t bytes);

/* Takes one such pin back: the export did not come about. */
void gksm_export_unpin(struct gksm *process, CUdeviceptr address, size_t bytes);

/* The whole allocation, once however often it is asked for. */
CUresult gksm_export_allocation(struct gksm *process, const struct gksm_allocation_info *info);

#endif
