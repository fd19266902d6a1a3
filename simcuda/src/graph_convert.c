/* SPDX-License-Identifier: Apache-2.0 */
/* Between the shapes of graph nodes and those that copies and sets are made of. */
#include "graph.h"

void sim_copy_from_3d(struct sim_copy *copy, const CUDA_MEMCPY3D *from)
{
	*copy = (struct sim_copy){
		.graph = true,
		.shape =
			{
				.srcXInBytes = from->srcXInBytes,
				.srcY = from->srcY,
				.srcZ = from->srcZ,
				.srcLOD = from->srcLOD,
				.srcMemoryType = from->srcMemoryType,
				.srcHost = from->srcHost,
				.srcDevice = from->srcDevice,
				.srcArray = from->srcArray,
				.srcPitch = from->srcPitch,
				.srcHeight = from->srcHeight,
				.dstXInBytes = from->dstXInBytes,
				.dstY = from->dstY,
				.dstZ = from->dstZ,
				.dstLOD = from->dstLOD,
				.dstMemoryType = from->dstMemoryType,
				.dstHost = from->dstHost,
				.dstDevice = from->dstDevice,
				.dstArray = from->dstArray,
				.dstPitch = from->dstPitch,
				.dstHeight = from->dstHeight,
				.WidthInBytes = from->WidthInBytes,
				.Height = from->Height,
				.Depth = from->Depth,
			},
	};
}

void sim_copy_to_3d(CUDA_MEMCPY3D *to, const struct sim_copy *copy)
{
	const CUDA_MEMCPY3D_PEER *from = &copy->shape;

	*to = (CUDA_MEMCPY3D){
		.srcXInBytes = from->srcXInBytes,
		.srcY = from->srcY,
		.srcZ = from->srcZ,
		.srcLOD = from->srcLOD,
		.srcMemoryType = from->srcMemoryType,
		.srcHost = from->srcHost,
		.srcDevice = from->srcDevice,
		.srcArray = from->srcArray,
		.srcPitch = from->srcPitch,
		.srcHeight = from->srcHeight,
		.dstXInBytes = from->dstXInBytes,
		.dstY = from->dstY,
		.dstZ = from->dstZ,
		.dstLOD = from->dstLOD,
		.dstMemoryType = from->dstMemoryType,
		.dstHost = from->dstHost,
		.dstDevice = from->dstDevice,
		.dstArray = from->dstArray,
		.dstPitch = from->dstPitch,
		.dstHeight = from->dstHeight,
		.WidthInBytes = from->WidthInBytes,
		.Height = from->Height,
		.Depth = from->Depth,
	};
}

void sim_set_from_params(struct sim_set *set, const CUDA_MEMSET_NODE_PARAMS_v2 *params)
{
	*set = (struct sim_set){
		.address = params->dst,
		.pitch = params->pitch,
		.value = params->value,
		.element = params->elementSize,
		.width = params->width,
		.height = params->height,
		.graph = true,
	};
}
