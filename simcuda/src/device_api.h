/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_DEVICE_API_H
#define SIM_DEVICE_API_H

#include "sim.h"

/* False: the driver knows no such attribute. */
bool sim_device_attribute(const struct sim_device *device, CUdevice_attribute attribute,
			  int *value);

/* The number of the device's PCI bus; domain and device are 0. */
int sim_device_bus(const struct sim_device *device);

/* cuInit was called and the device exists: CUDA_SUCCESS and *device. */
CUresult sim_device_get(CUdevice ordinal, struct sim_device **device);

#endif
