/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation, versions, error texts and the look-up of entry points. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "surface.h"

/* The version of the newest headers, or a lower one to play an older driver. */
static int driver_version(void)
{
	const char *text = getenv("SIMCUDA_DRIVER_VERSION");
	int version = text ? atoi(text) : 0;

	return version >= 11000 && version < CUDA_VERSION ? version : CUDA_VERSION;
}

CUresult cuInit(unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_start();
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = driver_version();
	return CUDA_SUCCESS;
}

static const struct sim_error *find_error(CUresult code)
{
	for (unsigned i = 0; i < sim_error_count; i++)
		if (sim_errors[i].code == (int)code)
			return &sim_errors[i];
	return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
	const struct sim_error *found = find_error(error);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = found ? found->name : NULL;
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	const struct sim_error *found = find_error(error);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = found ? found->text : NULL;
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/*
 * The newest ABI version of the symbol that is not newer than the caller's CUDA
 * version. The per-thread variant is wanted only where there is one: most entry
 * points have no stream.
 */
static CUresult lookup(const char *symbol, void **address, int version, cuuint64_t flags,
		       CUdriverProcAddressQueryResult *status)
{
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	bool known = false;
	const struct sim_lookup *best = NULL;

	for (unsigned i = 0; i < sim_lookup_count; i++) {
		const struct sim_lookup *entry = &sim_lookups[i];

		if (strcmp(entry->symbol, symbol) != 0 || entry->version > driver_version())
			continue;
		known = true;
		if (entry->version > version || (entry->per_thread && !per_thread))
			continue;
		if (!best || entry->per_thread > best->per_thread ||
		    (entry->per_thread == best->per_thread && entry->version > best->version))
			best = entry;
	}
	*address = best ? best->address : NULL;
	*status = best	  ? CU_GET_PROC_ADDRESS_SUCCESS
		  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
			  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static bool lookup_arguments_bad(const char *symbol, void **address, int version, cuuint64_t flags)
{
	cuuint64_t both =
		CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

	return !symbol || !*symbol || !address || version <= 0 || (flags & ~both) || flags == both;
}

CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status;

	if (lookup_arguments_bad(symbol, address, version, flags))
		return CUDA_ERROR_INVALID_VALUE;
	return lookup(symbol, address, version, flags, &status);
}

/* From version 2 on the call succeeds also when nothing was found: a NULL address and
 * the status tell. */
CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult own;

	if (lookup_arguments_bad(symbol, address, version, flags))
		return CUDA_ERROR_INVALID_VALUE;
	lookup(symbol, address, version, flags, &own);
	if (status)
		*status = own;
	return CUDA_SUCCESS;
}

/* No header declares this one, and programs built for per-thread streams may call it. */
SIM_API CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **address, int version,
					  cuuint64_t flags, CUdriverProcAddressQueryResult *status);

CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **address, int version, cuuint64_t flags,
				  CUdriverProcAddressQueryResult *status)
{
	if (!(flags &
	      (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
		flags |= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	return cuGetProcAddress_v2(symbol, address, version, flags, status);
}

/* Private tables are no part of the interface: none is known here. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
