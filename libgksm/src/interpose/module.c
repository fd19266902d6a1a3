/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading code, and limits that make the driver allocate: they may wait for the GPU
 * inside the driver (outside.h). What a module's memory holds is the driver's.
 */
#include "interpose/outside.h"
#include "wrap.h"

static void wait_outside(void)
{
	struct gksm *process = gksm_process();

	if (process)
		gksm_wait_outside(process, GKSM_OUTSIDE_MS);
}

GKSM_WRAP(cuModuleLoad)(CUmodule *module, const char *path)
{
	wait_outside();
	return GKSM_REAL(cuModuleLoad)(module, path);
}

GKSM_WRAP(cuModuleLoadData)(CUmodule *module, const void *image)
{
	wait_outside();
	return GKSM_REAL(cuModuleLoadData)(module, image);
}

GKSM_WRAP(cuModuleLoadDataEx)(CUmodule *module, const void *image, unsigned int option_count,
			      CUjit_option *options, void **values)
{
	wait_outside();
	return GKSM_REAL(cuModuleLoadDataEx)(module, image, option_count, options, values);
}

GKSM_WRAP(cuModuleLoadFatBinary)(CUmodule *module, const void *binary)
{
	wait_outside();
	return GKSM_REAL(cuModuleLoadFatBinary)(module, binary);
}

GKSM_WRAP(cuLibraryLoadData)(CUlibrary *library, const void *code, CUjit_option *jit_options,
			     void **jit_values, unsigned int jit_count, CUlibraryOption *options,
			     void **values, unsigned int count)
{
	wait_outside();
	return GKSM_REAL(cuLibraryLoadData)(library, code, jit_options, jit_values, jit_count,
					    options, values, count);
}

GKSM_WRAP(cuLibraryLoadFromFile)(CUlibrary *library, const char *path, CUjit_option *jit_options,
				 void **jit_values, unsigned int jit_count,
				 CUlibraryOption *options, void **values, unsigned int count)
{
	wait_outside();
	return GKSM_REAL(cuLibraryLoadFromFile)(library, path, jit_options, jit_values, jit_count,
						options, values, count);
}

/* Libraries are loaded into a context when they are first asked for something. */
GKSM_WRAP(cuLibraryGetModule)(CUmodule *module, CUlibrary library)
{
	wait_outside();
	return GKSM_REAL(cuLibraryGetModule)(module, library);
}

GKSM_WRAP(cuLibraryGetGlobal)(CUdeviceptr *address, size_t *bytes, CUlibrary library,
			      const char *name)
{
	wait_outside();
	return GKSM_REAL(cuLibraryGetGlobal)(address, bytes, library, name);
}

GKSM_WRAP(cuFuncLoad)(CUfunction function)
{
	wait_outside();
	return GKSM_REAL(cuFuncLoad)(function);
}

GKSM_WRAP(cuCtxSetLimit)(CUlimit limit, size_t value)
{
	wait_outside();
	return GKSM_REAL(cuCtxSetLimit)(limit, value);
}
