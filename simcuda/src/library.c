/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries and their kernels: code without a context, loaded into each on demand. */
#include <stdlib.h>

#include "context_api.h"
#include "live.h"
#include "module.h"

/* Every library, newest first. sim_modules_lock. */
static struct CUlib_st *libraries;

static CUresult load(CUlibrary *library, CUresult checked)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	if (checked != CUDA_SUCCESS)
		return checked;
	struct CUlib_st *made = calloc(1, sizeof(*made));
	if (made)
		made->kernels = calloc(sim_kernel_count, sizeof(*made->kernels));
	if (!made || !made->kernels || sim_live_add(made, SIM_LIVE_LIBRARY)) {
		if (made)
			free(made->kernels);
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (unsigned i = 0; i < sim_kernel_count; i++) {
		made->kernels[i] = (struct CUkern_st){
			.library = made,
			.kernel = &sim_kernels[i],
			.settings = SIM_FUNCTION_SETTINGS,
		};
		/* Out of memory here only makes this one kernel unusable. */
		sim_live_add(&made->kernels[i], SIM_LIVE_KERNEL);
	}
	pthread_mutex_lock(&sim_modules_lock);
	made->next = libraries;
	libraries = made;
	pthread_mutex_unlock(&sim_modules_lock);
	*library = made;
	return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
			   void **jit_values, unsigned int jit_count, CUlibraryOption *options,
			   void **values, unsigned int count)
{
	if ((jit_count && (!jit_options || !jit_values)) || (count && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	return load(library, sim_image_check(code));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
			       void **jit_values, unsigned int jit_count, CUlibraryOption *options,
			       void **values, unsigned int count)
{
	if ((jit_count && (!jit_options || !jit_values)) || (count && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	return load(library, sim_image_file_check(path));
}

static CUresult library_check(CUlibrary library, const void *out)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_live_is(library, SIM_LIVE_LIBRARY) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The library's modules in every context go with it. contexts_lock, modules lock. */
static void unload_everywhere(struct CUlib_st *library)
{
	for (struct sim_context *context = sim_root.contexts; context; context = context->next) {
		struct sim_surface *surface = context->surface;

		for (struct CUmod_st *module = surface ? surface->modules : NULL, *next; module;
		     module = next) {
			next = module->next;
			if (module->library == library)
				sim_module_free(module, true);
		}
	}
}

CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult result = library_check(library, library);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_root.contexts_lock);
	pthread_mutex_lock(&sim_modules_lock);
	for (struct CUlib_st **at = &libraries; *at; at = &(*at)->next) {
		if (*at == library) {
			*at = library->next;
			break;
		}
	}
	unload_everywhere(library);
	for (unsigned i = 0; i < sim_kernel_count; i++)
		sim_live_remove(&library->kernels[i]);
	sim_live_remove(library);
	pthread_mutex_unlock(&sim_modules_lock);
	pthread_mutex_unlock(&sim_root.contexts_lock);
	free(library->kernels);
	free(library);
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	CUresult result = library_check(library, kernel);

	if (result != CUDA_SUCCESS)
		return result;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_kernel *found = sim_kernel_named(name);
	if (!found)
		return CUDA_ERROR_NOT_FOUND;
	*kernel = &library->kernels[found - sim_kernels];
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	CUresult result = library_check(library, count);

	if (result == CUDA_SUCCESS)
		*count = sim_kernel_count;
	return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
	CUresult result = library_check(library, kernels);

	if (result != CUDA_SUCCESS)
		return result;
	if (count > sim_kernel_count)
		count = sim_kernel_count;
	for (unsigned i = 0; i < count; i++)
		kernels[i] = &library->kernels[i];
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result == CUDA_SUCCESS)
		result = library_check(library, module);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_modules_lock);
	*module = sim_module_of_library(context, library);
	pthread_mutex_unlock(&sim_modules_lock);
	return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
			    const char *name)
{
	CUmodule module;
	CUresult result = cuLibraryGetModule(&module, library);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_modules_lock);
	result = sim_module_global(module, name, address, bytes);
	pthread_mutex_unlock(&sim_modules_lock);
	return result;
}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
			     const char *name)
{
	CUresult result = library_check(library, name);

	(void)address, (void)bytes;
	return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *symbol)
{
	CUresult result = library_check(library, symbol);

	(void)function;
	return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_live_is(kernel, SIM_LIVE_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sim_modules_lock);
	struct CUmod_st *module = sim_module_of_library(context, kernel->library);
	if (module)
		*function = &module->functions[kernel->kernel - sim_kernels];
	pthread_mutex_unlock(&sim_modules_lock);
	return module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!library)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_live_is(kernel, SIM_LIVE_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	*library = kernel->library;
	return CUDA_SUCCESS;
}
