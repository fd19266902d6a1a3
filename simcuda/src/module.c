/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of a context. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context_api.h"
#include "live.h"
#include "module.h"
#include "simcuda/kernels.h"

pthread_mutex_t sim_modules_lock = PTHREAD_MUTEX_INITIALIZER;

/* Real images are told apart from garbage: the first have no code for this GPU. */
CUresult sim_image_check(const void *image)
{
	static const char elf[] = "\177ELF", fatbin[] = "\x50\xed\x55\xba";

	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	if (strncmp(image, SIMCUDA_BUILTIN_IMAGE, strlen(SIMCUDA_BUILTIN_IMAGE)) == 0)
		return CUDA_SUCCESS;
	if (strncmp(image, elf, 4) == 0 || strncmp(image, fatbin, 4) == 0)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return CUDA_ERROR_INVALID_IMAGE;
}

CUresult sim_image_file_check(const char *path)
{
	char image[64] = "";
	FILE *file;

	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	file = fopen(path, "rbe");
	if (!file)
		return CUDA_ERROR_FILE_NOT_FOUND;
	size_t bytes = fread(image, 1, sizeof(image) - 1, file);
	image[bytes] = '\0';
	fclose(file);
	return sim_image_check(image);
}

static struct CUmod_st *module_new(struct sim_context *context, struct CUlib_st *library)
{
	struct sim_surface *surface = sim_surface_of(context);
	struct CUmod_st *module = calloc(1, sizeof(*module));

	if (!surface || !module)
		goto fail;
	module->functions = calloc(sim_kernel_count, sizeof(*module->functions));
	if (!module->functions || sim_live_add(module, SIM_LIVE_MODULE))
		goto fail;
	for (unsigned i = 0; i < sim_kernel_count; i++) {
		module->functions[i] = (struct CUfunc_st){
			.module = module,
			.kernel = &sim_kernels[i],
			.settings = SIM_FUNCTION_SETTINGS,
		};
		if (sim_live_add(&module->functions[i], SIM_LIVE_FUNCTION)) {
			while (i--)
				sim_live_remove(&module->functions[i]);
			sim_live_remove(module);
			goto fail;
		}
	}
	module->context = context;
	module->library = library;
	module->next = surface->modules;
	surface->modules = module;
	return module;
fail:
	if (module)
		free(module->functions);
	free(module);
	return NULL;
}

void sim_module_free(struct CUmod_st *module, bool with_memory)
{
	struct sim_surface *surface = module->context->surface;

	for (struct CUmod_st **at = surface ? &surface->modules : NULL; at && *at;
	     at = &(*at)->next) {
		if (*at == module) {
			*at = module->next;
			break;
		}
	}
	for (unsigned i = 0; i < sim_kernel_count; i++)
		sim_live_remove(&module->functions[i]);
	sim_live_remove(module);
	if (with_memory && module->global)
		sim_memory_free(module->context, module->global);
	free(module->functions);
	free(module);
}

void sim_modules_context_gone(struct sim_surface *surface)
{
	pthread_mutex_lock(&sim_modules_lock);
	while (surface->modules) {
		struct CUmod_st *module = surface->modules;

		surface->modules = module->next;
		sim_module_free(module, false);
	}
	pthread_mutex_unlock(&sim_modules_lock);
}

struct CUmod_st *sim_module_of_library(struct sim_context *context, struct CUlib_st *library)
{
	struct sim_surface *surface = sim_surface_of(context);

	for (struct CUmod_st *module = surface ? surface->modules : NULL; module;
	     module = module->next)
		if (module->library == library)
			return module;
	return module_new(context, library);
}

CUresult sim_module_global(struct CUmod_st *module, const char *name, CUdeviceptr *address,
			   size_t *bytes)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (strcmp(name, SIMCUDA_BUILTIN_GLOBAL) != 0)
		return CUDA_ERROR_NOT_FOUND;
	if (!module->global) {
		CUresult result = sim_memory_alloc(module->context, SIMCUDA_BUILTIN_GLOBAL_BYTES,
						   &module->global);
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (address)
		*address = module->global;
	if (bytes)
		*bytes = SIMCUDA_BUILTIN_GLOBAL_BYTES;
	return CUDA_SUCCESS;
}

static CUresult load(CUmodule *module, CUresult checked)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (checked != CUDA_SUCCESS)
		return checked;
	result = sim_capture_unsafe_call(context);
	/* As measured: loading code sits behind the context's work. */
	if (result == CUDA_SUCCESS)
		result = sim_context_quiesce(context);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_modules_lock);
	*module = module_new(context, NULL);
	pthread_mutex_unlock(&sim_modules_lock);
	return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	return load(module, sim_image_file_check(path));
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	return load(module, sim_image_check(image));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
			    CUjit_option *options, void **values)
{
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	return load(module, sim_image_check(image));
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return load(module, sim_image_check(image));
}

CUresult cuModuleUnload(CUmodule module)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_live_is(module, SIM_LIVE_MODULE) || module->library)
		return CUDA_ERROR_INVALID_HANDLE;
	result = sim_capture_unsafe_call(context);
	if (result == CUDA_SUCCESS)
		result = sim_context_wait(module->context);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_modules_lock);
	if (sim_live_is(module, SIM_LIVE_MODULE))
		sim_module_free(module, true);
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&sim_modules_lock);
	return result;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_EAGER_LOADING;
	return CUDA_SUCCESS;
}

/* Common to all that take a module: a current context and a live handle. */
static CUresult module_check(CUmodule module, const void *out)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_live_is(module, SIM_LIVE_MODULE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult result = module_check(module, function);

	if (result != CUDA_SUCCESS)
		return result;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_kernel *kernel = sim_kernel_named(name);
	if (!kernel)
		return CUDA_ERROR_NOT_FOUND;
	*function = &module->functions[kernel - sim_kernels];
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
	CUresult result = module_check(module, count);

	if (result == CUDA_SUCCESS)
		*count = sim_kernel_count;
	return result;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module)
{
	CUresult result = module_check(module, functions);

	if (result != CUDA_SUCCESS)
		return result;
	if (count > sim_kernel_count)
		count = sim_kernel_count;
	for (unsigned i = 0; i < count; i++)
		functions[i] = &module->functions[i];
	return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
			      const char *name)
{
	CUresult result = module_check(module, module);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_modules_lock);
	result = sim_module_global(module, name, address, bytes);
	pthread_mutex_unlock(&sim_modules_lock);
	return result;
}
