/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulated device counts, for all processes together since its folder was made. */
#ifndef SIMCUDA_COUNTERS_H
#define SIMCUDA_COUNTERS_H

#include <stdint.h>

/* Bytes that copies brought from the host into the device's memory. After cuInit. 0, or
 * -ENODEV: there is no such device. Look it up with dlsym on the driver's handle. */
int simcudaHostToDeviceBytes(int device, uint64_t *bytes);

#endif
