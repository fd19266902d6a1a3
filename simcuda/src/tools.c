/* SPDX-License-Identifier: Apache-2.0 */
/* Switches of tools: profiling, core dumps, checkpoints. Nothing is profiled or dumped. */
#include <string.h>

#include "sim.h"

/* cudaProfiler.h is not in every package of headers. */
SIM_API CUresult cuProfilerInitialize(const char *config, const char *output, int mode);
SIM_API CUresult cuProfilerStart(void);
SIM_API CUresult cuProfilerStop(void);

CUresult cuProfilerInitialize(const char *config, const char *output, int mode)
{
	(void)config, (void)output, (void)mode;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuProfilerStart(void)
{
	struct sim_context *context;

	return sim_current(&context);
}

CUresult cuProfilerStop(void)
{
	struct sim_context *context;

	return sim_current(&context);
}

#define NAME_MAX_BYTES 1024

static struct {
	pthread_mutex_t lock;
	bool switches[CU_COREDUMP_MAX];
	int generation;
	char file[NAME_MAX_BYTES], pipe[NAME_MAX_BYTES];
} coredump = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.switches = {[CU_COREDUMP_TRIGGER_HOST] = true},
};

/* Where an attribute is kept, and how many bytes it has room for. */
static void *coredump_field(CUcoredumpSettings attribute, size_t *room)
{
	switch (attribute) {
	case CU_COREDUMP_ENABLE_ON_EXCEPTION:
	case CU_COREDUMP_TRIGGER_HOST:
	case CU_COREDUMP_LIGHTWEIGHT:
	case CU_COREDUMP_ENABLE_USER_TRIGGER:
		*room = sizeof(bool);
		return &coredump.switches[attribute];
	case CU_COREDUMP_FILE:
		*room = sizeof(coredump.file);
		return coredump.file;
	case CU_COREDUMP_PIPE:
		*room = sizeof(coredump.pipe);
		return coredump.pipe;
	case CU_COREDUMP_GENERATION_FLAGS:
		*room = sizeof(coredump.generation);
		return &coredump.generation;
	default:
		return NULL;
	}
}

/* value NULL asks for the size. Texts are cut to what the caller has room for. */
CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attribute, void *value, size_t *size)
{
	CUresult result = sim_ready();
	size_t room;
	const void *field;

	if (result != CUDA_SUCCESS)
		return result;
	field = coredump_field(attribute, &room);
	if (!field || !size)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&coredump.lock);
	bool text = room == NAME_MAX_BYTES;
	if (text)
		room = strlen(field) + 1;
	if (value && *size < room && !text) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (value && *size) {
		room = *size < room ? *size : room;
		memcpy(value, field, room);
		if (text)
			((char *)value)[room - 1] = '\0';
	}
	*size = room;
	pthread_mutex_unlock(&coredump.lock);
	return result;
}

CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attribute, void *value, size_t *size)
{
	CUresult result = sim_ready();
	size_t room;
	char *field;

	if (result != CUDA_SUCCESS)
		return result;
	field = coredump_field(attribute, &room);
	if (!field || !value || !size || *size > room || (*size < room && room != NAME_MAX_BYTES))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&coredump.lock);
	memcpy(field, value, *size);
	if (room == NAME_MAX_BYTES)
		field[*size < room ? *size : room - 1] = '\0';
	pthread_mutex_unlock(&coredump.lock);
	return CUDA_SUCCESS;
}

/* No process can be checkpointed, so none has a state to tell. */
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	(void)pid, (void)state;
	CUresult result = sim_ready();

	return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : result;
}
