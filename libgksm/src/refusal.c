/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What DESIGN.md 6 switches off and the driver tells of: MPS (clients share one
 * context: a fatal fault of one takes all), Tegra (no memory of the GPU's own), WSL (no
 * UVM of the host's). vGPU and confidential computing cannot be seen from in here:
 * gksmctl doctor looks for them.
 */
#include "refusal.h"

#include <unistd.h>

#include "process.h"

static int attribute(const struct gksm *process, CUdevice_attribute which, CUdevice device)
{
	int value = 0;

	/* A driver too old for the attribute has not what it asks about either. */
	if (process->driver.cuDeviceGetAttribute(&value, which, device))
		return 0;
	return value;
}

const char *gksm_refusal(const struct gksm *process, CUdevice device)
{
	if (attribute(process, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device))
		return "it is used through MPS, whose clients die together";
	if (attribute(process, CU_DEVICE_ATTRIBUTE_INTEGRATED, device))
		return "it has no memory of its own (Tegra)";
	if (!access("/dev/dxg", F_OK))
		return "this is WSL, whose driver was never tried";
	return NULL;
}
