/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays: plain pitched device memory behind an opaque handle, so that copies work.
 * Nothing can be sampled: simcuda has no textures.
 */
#include <stdlib.h>

#include "live.h"
#include "sim.h"

#define PITCH_ALIGNMENT ((size_t)256)
#define LEVELS_MAX 16u

struct CUarray_st {
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	struct sim_context *context;
	CUdeviceptr base;
	size_t pitch, rows, slices;
	bool of_mipmap;
};

struct CUmipmappedArray_st {
	unsigned levels;
	CUarray level[LEVELS_MAX];
};

/* Bytes of one channel; 0: not a format of plain texels. */
static size_t format_bytes(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	default:
		return 0;
	}
}

static CUresult array_new(struct sim_context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
			  CUarray *out)
{
	size_t texel = format_bytes(descriptor->Format) * descriptor->NumChannels;
	bool layered = descriptor->Flags & CUDA_ARRAY3D_LAYERED;
	bool cube = descriptor->Flags & CUDA_ARRAY3D_CUBEMAP;
	CUarray array;
	CUresult result;

	if (!texel || !descriptor->Width ||
	    (descriptor->NumChannels != 1 && descriptor->NumChannels != 2 &&
	     descriptor->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (descriptor->Width > 131072 || descriptor->Height > 65536 || descriptor->Depth > 16384)
		return CUDA_ERROR_INVALID_VALUE;
	if (((layered || cube) && !descriptor->Depth) ||
	    (descriptor->Depth && !layered && !descriptor->Height) ||
	    (cube && (descriptor->Width != descriptor->Height || descriptor->Depth % 6)))
		return CUDA_ERROR_INVALID_VALUE;
	if (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return CUDA_ERROR_NOT_SUPPORTED;
	array = calloc(1, sizeof(*array));
	if (!array || sim_live_add(array, SIM_LIVE_ARRAY)) {
		free(array);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	array->descriptor = *descriptor;
	array->context = context;
	array->pitch = (descriptor->Width * texel + PITCH_ALIGNMENT - 1) & ~(PITCH_ALIGNMENT - 1);
	array->rows = descriptor->Height ? descriptor->Height : 1;
	array->slices = descriptor->Depth ? descriptor->Depth : 1;
	result =
		sim_memory_alloc(context, array->pitch * array->rows * array->slices, &array->base);
	if (result != CUDA_SUCCESS) {
		sim_live_remove(array);
		free(array);
		return result;
	}
	*out = array;
	return CUDA_SUCCESS;
}

static void array_free(CUarray array)
{
	sim_live_remove(array);
	/* With the context its memory went too. */
	if (!array->context->destroyed)
		sim_memory_free(array->context, array->base);
	free(array);
}

bool sim_array_layout(CUarray array, CUdeviceptr *base, size_t *pitch, size_t *height)
{
	if (!sim_live_is(array, SIM_LIVE_ARRAY))
		return false;
	*base = array->base;
	*pitch = array->pitch;
	*height = array->rows;
	return true;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!array || !descriptor)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_capture_unsafe_call(context);
	return result == CUDA_SUCCESS ? array_new(context, descriptor, array) : result;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	CUDA_ARRAY3D_DESCRIPTOR solid = {0};

	if (!descriptor)
		return CUDA_ERROR_INVALID_VALUE;
	solid.Width = descriptor->Width;
	solid.Height = descriptor->Height;
	solid.Format = descriptor->Format;
	solid.NumChannels = descriptor->NumChannels;
	return cuArray3DCreate_v2(array, &solid);
}

static CUresult array_check(CUarray array, const void *out)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_live_is(array, SIM_LIVE_ARRAY) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array)
{
	CUresult result = array_check(array, descriptor);

	if (result != CUDA_SUCCESS)
		return result;
	descriptor->Width = array->descriptor.Width;
	descriptor->Height = array->descriptor.Height;
	descriptor->Format = array->descriptor.Format;
	descriptor->NumChannels = array->descriptor.NumChannels;
	return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array)
{
	CUresult result = array_check(array, descriptor);

	if (result == CUDA_SUCCESS)
		*descriptor = array->descriptor;
	return result;
}

/* As cuMemFree, it waits for the work that may still use the memory. */
CUresult cuArrayDestroy(CUarray array)
{
	CUresult result = array_check(array, array);

	if (result != CUDA_SUCCESS)
		return result;
	if (array->of_mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	result = sim_capture_unsafe_call(array->context);
	if (result == CUDA_SUCCESS)
		result = sim_context_quiesce(array->context);
	if (result == CUDA_SUCCESS)
		array_free(array);
	return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
				unsigned int levels)
{
	struct sim_context *context;
	CUDA_ARRAY3D_DESCRIPTOR level;
	CUmipmappedArray made;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!mipmap || !descriptor || !levels)
		return CUDA_ERROR_INVALID_VALUE;
	made = calloc(1, sizeof(*made));
	if (!made || sim_live_add(made, SIM_LIVE_MIPMAP)) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	level = *descriptor;
	for (unsigned i = 0; i < levels && i < LEVELS_MAX && result == CUDA_SUCCESS; i++) {
		result = array_new(context, &level, &made->level[i]);
		if (result != CUDA_SUCCESS)
			break;
		made->level[i]->of_mipmap = true;
		made->levels++;
		if (level.Width <= 1 && level.Height <= 1 &&
		    (level.Depth <= 1 || (level.Flags & CUDA_ARRAY3D_LAYERED)))
			break;
		level.Width = level.Width > 1 ? level.Width / 2 : level.Width;
		level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
		if (!(level.Flags & CUDA_ARRAY3D_LAYERED))
			level.Depth = level.Depth > 1 ? level.Depth / 2 : level.Depth;
	}
	if (result != CUDA_SUCCESS) {
		while (made->levels)
			array_free(made->level[--made->levels]);
		sim_live_remove(made);
		free(made);
		return result;
	}
	*mipmap = made;
	return CUDA_SUCCESS;
}

static CUresult mipmap_check(CUmipmappedArray mipmap, const void *out)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_live_is(mipmap, SIM_LIVE_MIPMAP) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned int level)
{
	CUresult result = mipmap_check(mipmap, array);

	if (result != CUDA_SUCCESS)
		return result;
	if (level >= mipmap->levels)
		return CUDA_ERROR_INVALID_VALUE;
	*array = mipmap->level[level];
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	CUresult result = mipmap_check(mipmap, mipmap);

	if (result == CUDA_SUCCESS)
		result = sim_context_quiesce(mipmap->level[0]->context);
	if (result != CUDA_SUCCESS)
		return result;
	while (mipmap->levels)
		array_free(mipmap->level[--mipmap->levels]);
	sim_live_remove(mipmap);
	free(mipmap);
	return CUDA_SUCCESS;
}
