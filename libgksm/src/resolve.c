/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress, how nearly everybody finds the driver's functions. The driver
 * answers first and its status, NULLs and errors stand; only an address it hands
 * out is exchanged for our wrapper of that same function.
 *
 * cuGetExportTable is not touched: what it returns is private to NVIDIA's own
 * libraries, and it is called before anything is initialised.
 */
#include "driver_table.h"
#include "wrap.h"

static CUresult nothing_found(void **pfn, CUdriverProcAddressQueryResult *status)
{
	if (pfn)
		*pfn = NULL;
	if (status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_ERROR_NOT_FOUND;
}

static void exchange(const char *symbol, void **pfn, cuuint64_t flags)
{
	const struct gksm_driver_table *table = gksm_driver_table();

	if (table && symbol && pfn && *pfn)
		*pfn = gksm_identity_wrap(table, *pfn, symbol,
					  flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
}

GKSM_WRAP(cuGetProcAddress)(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	const struct gksm_driver *driver = gksm_driver();
	CUresult result;

	if (!driver)
		return nothing_found(pfn, NULL);
	result = GKSM_REAL(cuGetProcAddress)(symbol, pfn, cudaVersion, flags);
	if (result == CUDA_SUCCESS)
		exchange(symbol, pfn, flags);
	return result;
}

/* Drivers before 12.0 have only the function without a status. */
static CUresult ask_without_status(const struct gksm_driver *driver, const char *symbol, void **pfn,
				   int version, cuuint64_t flags,
				   CUdriverProcAddressQueryResult *status)
{
	CUresult result = driver->cuGetProcAddress(symbol, pfn, version, flags);

	if (status)
		*status = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS
						 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return result;
}

GKSM_WRAP(cuGetProcAddress_v2)
(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
 CUdriverProcAddressQueryResult *symbolStatus)
{
	const struct gksm_driver *driver = gksm_driver();
	CUresult result;

	if (!driver)
		return nothing_found(pfn, symbolStatus);
	if (!driver->cuGetProcAddress_v2 && driver->cuGetProcAddress)
		result = ask_without_status(driver, symbol, pfn, cudaVersion, flags, symbolStatus);
	else
		result = GKSM_REAL(cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags,
							symbolStatus);
	if (result == CUDA_SUCCESS)
		exchange(symbol, pfn, flags);
	return result;
}

/* What an application compiled with per-thread default streams calls: it asks for
 * per-thread variants unless the flags say otherwise. */
GKSM_WRAP(cuGetProcAddress_v2_ptsz)
(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
 CUdriverProcAddressQueryResult *symbolStatus)
{
	const struct gksm_driver *driver = gksm_driver();
	cuuint64_t chosen =
		CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	CUresult result;

	if (!driver)
		return nothing_found(pfn, symbolStatus);
	if ((flags & chosen) == 0)
		flags |= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	if (!driver->cuGetProcAddress_v2_ptsz)
		return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
	result = driver->cuGetProcAddress_v2_ptsz(symbol, pfn, cudaVersion, flags, symbolStatus);
	if (result == CUDA_SUCCESS)
		exchange(symbol, pfn, flags);
	return result;
}
