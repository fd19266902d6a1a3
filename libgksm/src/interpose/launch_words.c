/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/launch_words.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "wrap.h"

/* A kernel has at most 32,764 bytes of parameters. */
#define PARAMETERS_MAX 4096u

void gksm_words_init(struct gksm_words *words)
{
	words->items = words->inline_items;
	words->count = 0;
	words->capacity = GKSM_WORDS_INLINE;
}

void gksm_words_free(struct gksm_words *words)
{
	if (words->items != words->inline_items)
		free(words->items);
	words->items = NULL;
}

void gksm_words_unknown(struct gksm_words *words)
{
	gksm_words_free(words);
	words->count = 0;
}

static void add(struct gksm_words *words, const char *bytes, size_t size)
{
	size_t count = size / sizeof(uint64_t);
	uint64_t *items;

	if (!words->items)
		return;
	if (words->count + count > words->capacity) {
		size_t capacity = (words->count + count) * 2;

		items = malloc(capacity * sizeof(*items));
		if (!items) {
			gksm_words_unknown(words);
			return;
		}
		memcpy(items, words->items, words->count * sizeof(*items));
		if (words->items != words->inline_items)
			free(words->items);
		words->items = items;
		words->capacity = capacity;
	}
	/* Parameters are aligned as their types are, and pointers to 8 bytes. */
	memcpy(words->items + words->count, bytes, count * sizeof(uint64_t));
	words->count += count;
}

static CUresult parameter(CUfunction function, bool kernel, size_t index, size_t *size)
{
	size_t offset;

	return kernel ? GKSM_REAL(cuKernelGetParamInfo)((CUkernel)function, index, &offset, size)
		      : GKSM_REAL(cuFuncGetParamInfo)(function, index, &offset, size);
}

static void add_array(struct gksm_words *words, CUfunction function, void **parameters)
{
	CUresult result = CUDA_SUCCESS;
	bool kernel = false;
	size_t size = 0;

	/* A launch takes functions and kernels (12.0) under one type. */
	if (parameter(function, kernel, 0, &size) != CUDA_SUCCESS)
		kernel = parameter(function, true, 0, &size) == CUDA_SUCCESS;
	for (size_t i = 0; i < PARAMETERS_MAX && words->items; i++) {
		result = parameter(function, kernel, i, &size);
		/* The end of the list. */
		if (result == CUDA_ERROR_INVALID_VALUE)
			return;
		if (result != CUDA_SUCCESS || !parameters[i])
			break;
		add(words, parameters[i], size);
	}
	gksm_words_unknown(words);
}

static void add_buffer(struct gksm_words *words, void **extra)
{
	const char *buffer = NULL;
	size_t size = 0;

	for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[i + 1];
		else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = *(const size_t *)extra[i + 1];
		else
			break;
	}
	if (buffer)
		add(words, buffer, size);
	else
		gksm_words_unknown(words);
}

void gksm_words_kernel(struct gksm_words *words, CUfunction function, void **parameters,
		       void **extra)
{
	if (parameters)
		add_array(words, function, parameters);
	else if (extra)
		add_buffer(words, extra);
	/* else: none; every word of none is known */
}
