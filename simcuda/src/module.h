/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "kernels.h"

/* What can be set on a function or kernel; 0 or the hardware's default at first. */
struct sim_function_settings {
	int dynamic_shared; /* bytes */
	int carveout;	    /* percent; -1: the driver's choice */
	int cluster[3];
	int cluster_required;
	int cluster_policy;
	int non_portable_cluster;
};

struct CUfunc_st {
	struct CUmod_st *module;
	const struct sim_kernel *kernel;
	struct sim_function_settings settings;
};

struct CUmod_st {
	struct sim_context *context;
	struct CUlib_st *library; /* NULL: loaded as a module */
	CUdeviceptr global;	  /* 0: not asked for yet */
	struct CUmod_st *next;	  /* sim_surface.modules */
	struct CUfunc_st *functions;
};

struct CUkern_st {
	struct CUlib_st *library;
	const struct sim_kernel *kernel;
	struct sim_function_settings settings;
};

struct CUlib_st {
	struct CUlib_st *next;
	struct CUkern_st *kernels;
};

#define SIM_FUNCTION_SETTINGS \
	((struct sim_function_settings){.dynamic_shared = 49152, .carveout = -1})

/* Guards modules, libraries and what hangs off them. */
extern pthread_mutex_t sim_modules_lock;

/* CUDA_SUCCESS: simcuda's own image. */
CUresult sim_image_check(const void *image);
/* The image in a file, checked. */
CUresult sim_image_file_check(const char *path);

/* The library's module in the context, made when there is none. sim_modules_lock. */
struct CUmod_st *sim_module_of_library(struct sim_context *context, struct CUlib_st *library);
/* Unlinks and frees; the memory of its global stays with the context when it ends. */
void sim_module_free(struct CUmod_st *module, bool with_memory);
CUresult sim_module_global(struct CUmod_st *module, const char *name, CUdeviceptr *address,
			   size_t *bytes);

/*
 * The kernel behind a CUfunction handle, which may be a CUkernel too, as launches
 * allow. NULL: neither. settings may be NULL.
 */
const struct sim_kernel *sim_function_kernel(CUfunction function,
					     struct sim_function_settings **settings);

#endif
