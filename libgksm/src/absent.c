/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an application meets where there is no driver. Without libgksm it could not
 * have loaded libcuda.so.1 at all; with it the library is there, so these few
 * answer such that programs come to the same conclusion: version 0 makes the CUDA
 * runtime say "insufficient driver", as it does when the file is missing; cuInit
 * says "no device" (init.c); error texts are real strings, because programs print
 * them without a check. All else says "not initialized" (driver.c).
 */
#include "wrap.h"

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
};

static CUresult describe(CUresult error, const char **text, bool name)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = NULL;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error)
			*text = name ? errors[i].name : errors[i].text;
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GKSM_WRAP(cuDriverGetVersion)(int *driverVersion)
{
	if (gksm_driver())
		return GKSM_REAL(cuDriverGetVersion)(driverVersion);
	if (!driverVersion)
		return CUDA_ERROR_INVALID_VALUE;
	*driverVersion = 0;
	return CUDA_SUCCESS;
}

GKSM_WRAP(cuGetErrorString)(CUresult error, const char **pStr)
{
	return gksm_driver() ? GKSM_REAL(cuGetErrorString)(error, pStr)
			     : describe(error, pStr, false);
}

GKSM_WRAP(cuGetErrorName)(CUresult error, const char **pStr)
{
	return gksm_driver() ? GKSM_REAL(cuGetErrorName)(error, pStr) : describe(error, pStr, true);
}
