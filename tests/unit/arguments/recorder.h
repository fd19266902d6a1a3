/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver whose functions note their arguments. The one under test returns what it
 * is told to; all others, which only libgksm itself can have called, refuse. cuInit
 * succeeds when it is not under test.
 */
#include "recorded.h"

#include <string.h>

struct recording recording = {.wanted = -1};

static void note(int number, const void *argument, unsigned bytes)
{
	struct recorded *recorded = &recording.functions[number];

	memcpy(recorded->arguments + recorded->bytes, argument, bytes);
	recorded->bytes += bytes;
}

static CUresult answer(int number, const char *name)
{
	if (number == recording.wanted)
		return recording.result;
	return strcmp(name, "cuInit") == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

#define BEGIN(number)                         \
	int number_ = (number);               \
	recording.functions[number_].calls++; \
	recording.functions[number_].bytes = 0
#define NOTE(argument, index, is_address) note(number_, &(argument), sizeof(argument))
#define END(number) answer(number, __func__)
