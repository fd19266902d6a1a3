/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice about managed memory. Its pages do not move here, so advice is only kept, to
 * be answered to cuMemRangeGetAttribute.
 */
#include <stdlib.h>

#include "sim.h"
#include "surface.h"

enum kind { READ_MOSTLY, PREFERRED, PREFETCHED, ACCESSED_BY }; /* + device, CPU last */

#define HOST_PLACE SIM_DEVICES_MAX

/* What was last said of a span. buffer: the allocation's id, never reused, so that
 * advice for memory since freed is not found again. */
struct advice {
	CUdeviceptr start, end;
	unsigned long long buffer;
	int kind;
	int value;
	int type; /* CUmemLocationType of a place */
	struct advice *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct advice *newest;

/* CUDA_SUCCESS and the allocation's id when the span lies in one managed allocation. */
static CUresult span_check(CUdeviceptr address, size_t bytes, unsigned long long *buffer)
{
	CUpointer_attribute wanted[] = {
		CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_BUFFER_ID,
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	unsigned int managed = 0;
	CUdeviceptr start = 0;
	size_t size = 0;
	void *answers[] = {&managed, buffer, &start, &size};
	CUresult result = cuPointerGetAttributes(4, wanted, answers, address);

	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes || !(managed & 0xff) || address - start > size ||
	    bytes > size - (address - start))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult say(CUdeviceptr address, size_t bytes, int kind, int value, int type)
{
	struct advice *made = malloc(sizeof(*made));
	unsigned long long buffer;
	CUresult result = span_check(address, bytes, &buffer);

	if (result == CUDA_SUCCESS && !made)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		free(made);
		return result;
	}
	*made = (struct advice){address, address + bytes, buffer, kind, value, type, NULL};
	pthread_mutex_lock(&lock);
	/* What the new advice wholly replaces goes. */
	for (struct advice **at = &newest; *at;) {
		struct advice *old = *at;

		if (old->kind == kind && old->start >= made->start && old->end <= made->end) {
			*at = old->next;
			free(old);
		} else {
			at = &old->next;
		}
	}
	made->next = newest;
	newest = made;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* NULL: nothing was said of the span, or not one thing of all of it. */
static const struct advice *said(CUdeviceptr address, size_t bytes, unsigned long long buffer,
				 int kind)
{
	for (const struct advice *at = newest; at; at = at->next) {
		if (at->kind != kind || at->buffer != buffer || at->end <= address ||
		    at->start >= address + bytes)
			continue;
		return at->start <= address && at->end >= address + bytes ? at : NULL;
	}
	return NULL;
}

/* The index of a place among ACCESSED_BY kinds; -1: no such place. */
static int place_of(const CUmemLocation *location)
{
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return sim_device(location->id) ? location->id : -1;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return HOST_PLACE;
	default:
		return -1;
	}
}

/* A place as the attributes name it. */
static int place_value(int place)
{
	return place == HOST_PLACE ? CU_DEVICE_CPU : place;
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
			CUmemLocation location)
{
	CUresult result = sim_ready();
	int place;

	if (result != CUDA_SUCCESS)
		return result;
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		return say(address, bytes, READ_MOSTLY, advice == CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		return say(address, bytes, PREFERRED, CU_DEVICE_INVALID,
			   CU_MEM_LOCATION_TYPE_INVALID);
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	place = place_of(&location);
	if (place < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
		return say(address, bytes, PREFERRED, place_value(place), location.type);
	return say(address, bytes, ACCESSED_BY + place, advice == CU_MEM_ADVISE_SET_ACCESSED_BY, 0);
}

static CUmemLocation location_of(CUdevice device)
{
	CUmemLocation location = {0};

	location.type =
		device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
	location.id = device == CU_DEVICE_CPU ? 0 : device;
	return location;
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
	return cuMemAdvise_v2(address, bytes, advice, location_of(device));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
			       unsigned int flags, CUstream handle)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(handle, sim_per_thread_calls > 0, &stream);
	int place;

	if (result != CUDA_SUCCESS)
		return result;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	place = place_of(&location);
	if (place < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (stream->capture)
		return sim_capture_refuse(stream);
	return say(address, bytes, PREFETCHED, place_value(place), location.type);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
	return cuMemPrefetchAsync_v2(address, bytes, location_of(device), 0, stream);
}

/* Every place that the span is accessed by, the CPU last; the rest of the list is
 * CU_DEVICE_INVALID. */
static void accessed_by(int *list, size_t room, CUdeviceptr address, size_t bytes,
			unsigned long long buffer)
{
	size_t found = 0;

	for (int place = 0; place <= HOST_PLACE && found < room; place++) {
		const struct advice *advice = said(address, bytes, buffer, ACCESSED_BY + place);

		if (advice && advice->value)
			list[found++] = place_value(place);
	}
	while (found < room)
		list[found++] = CU_DEVICE_INVALID;
}

CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute,
				CUdeviceptr address, size_t bytes)
{
	unsigned long long buffer;
	const struct advice *advice;
	CUresult result = sim_ready();
	int *value = data;

	if (result == CUDA_SUCCESS)
		result = span_check(address, bytes, &buffer);
	if (result != CUDA_SUCCESS)
		return result;
	if (!data || !size || size % sizeof(int) ||
	    (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && size != sizeof(int)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		advice = said(address, bytes, buffer, READ_MOSTLY);
		*value = advice ? advice->value : 0;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		advice = said(address, bytes, buffer, PREFERRED);
		*value = advice ? advice->value : CU_DEVICE_INVALID;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		advice = said(address, bytes, buffer, PREFETCHED);
		*value = advice ? advice->value : CU_DEVICE_INVALID;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		advice = said(address, bytes, buffer, PREFERRED);
		*value = advice ? advice->type : CU_MEM_LOCATION_TYPE_INVALID;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		advice = said(address, bytes, buffer, PREFETCHED);
		*value = advice ? advice->type : CU_MEM_LOCATION_TYPE_INVALID;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		accessed_by(value, size / sizeof(int), address, bytes, buffer);
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes,
				 size_t count, CUdeviceptr address, size_t bytes)
{
	CUresult result = CUDA_SUCCESS;

	if (!data || !sizes || !attributes || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], address, bytes);
	return result;
}
