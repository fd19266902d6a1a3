/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Textures over linear memory. The driver looks at what an address is when a texture
 * is made over it, and an unbacked page is nothing: the pages are private while it
 * looks. Afterwards a texture is only an address, and a fetch through it is an access
 * by a kernel like any other.
 */
#include "access.h"
#include "wrap.h"

/* real_call with the pages of the bytes from start on private. */
#define BOUND(start, length, real_call)                                                    \
	({                                                                                 \
		struct gksm *process_ = gksm_process();                                    \
		struct gksm_span span_ = {.address = (start), .bytes = (length)};          \
		CUresult bound_ = process_ ? gksm_pin(process_, &span_, 1) : CUDA_SUCCESS; \
                                                                                           \
		if (bound_ == CUDA_SUCCESS) {                                              \
			bound_ = (real_call);                                              \
			if (process_)                                                      \
				gksm_unpin(process_, &span_, 1);                           \
		}                                                                          \
		bound_;                                                                    \
	})

GKSM_WRAP(cuTexObjectCreate)(CUtexObject *texture, const CUDA_RESOURCE_DESC *resource,
			     const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view)
{
	CUdeviceptr address = 0;
	size_t bytes = 0;

	if (gksm_process() && resource && resource->resType == CU_RESOURCE_TYPE_LINEAR) {
		address = resource->res.linear.devPtr;
		bytes = resource->res.linear.sizeInBytes;
	} else if (gksm_process() && resource && resource->resType == CU_RESOURCE_TYPE_PITCH2D) {
		address = resource->res.pitch2D.devPtr;
		bytes = resource->res.pitch2D.pitchInBytes * resource->res.pitch2D.height;
	}
	return BOUND(address, bytes, GKSM_REAL(cuTexObjectCreate)(texture, resource, how, view));
}

GKSM_WRAP(cuTexRefSetAddress_v2)(size_t *offset, CUtexref texture, CUdeviceptr address,
				 size_t bytes)
{
	return BOUND(address, bytes,
		     GKSM_REAL(cuTexRefSetAddress_v2)(offset, texture, address, bytes));
}

static size_t rows(const CUDA_ARRAY_DESCRIPTOR *shape)
{
	return gksm_process() && shape ? shape->Height : 0;
}

GKSM_WRAP(cuTexRefSetAddress2D_v2)(CUtexref texture, const CUDA_ARRAY_DESCRIPTOR *shape,
				   CUdeviceptr address, size_t pitch)
{
	return BOUND(address, pitch * rows(shape),
		     GKSM_REAL(cuTexRefSetAddress2D_v2)(texture, shape, address, pitch));
}

GKSM_WRAP(cuTexRefSetAddress2D_v3)(CUtexref texture, const CUDA_ARRAY_DESCRIPTOR *shape,
				   CUdeviceptr address, size_t pitch)
{
	return BOUND(address, pitch * rows(shape),
		     GKSM_REAL(cuTexRefSetAddress2D_v3)(texture, shape, address, pitch));
}
