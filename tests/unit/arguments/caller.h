/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls every function of the driver through libgksm and looks at what arrived.
 *
 * caller DRIVER off: arguments are patterns that nobody may follow.
 * caller DRIVER on:  libgksm is active, so its wrappers follow pointers: these lead
 *                    to zeroed memory, numbers are small, and device addresses are
 *                    not ours.
 */
#define _GNU_SOURCE
#include "recorded.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES 65536
#define BUFFERS 16

static struct recording *seen;
static unsigned char expected[256], buffers[BUFFERS][BUFFER_BYTES];
static const char *current = "";
static int current_number;
static CUresult current_result;
static unsigned used, checked, wrong;
static int active;
static void *library;

static void crashed(int number)
{
	printf("%s: signal %d\n", current, number);
	fflush(stdout);
	_Exit(1);
}

static void *begin(int number, const char *name, CUresult result)
{
	void *function = dlsym(library, name);

	current = name;
	current_number = number;
	current_result = result;
	used = 0;
	memset(seen->functions, 0, sizeof(seen->functions));
	seen->wanted = number;
	seen->result = result;
	if (!function) {
		wrong++;
		printf("%s: not exported\n", name);
	}
	return function;
}

static void expect(const void *argument, unsigned bytes)
{
	memcpy(expected + used, argument, bytes);
	used += bytes;
}

/* Every byte tells its place; never a NaN, which might not survive a move. */
static void fill_pattern(void *argument, unsigned bytes, unsigned index)
{
	for (unsigned i = 0; i < bytes; i++)
		((unsigned char *)argument)[i] = (unsigned char)(0x11 + 7 * index + i);
}

static void fill_sensible(void *argument, unsigned bytes, unsigned index, int is_address,
			  int is_pointer)
{
	unsigned long long value = index + 1;

	if (is_address)
		value = 0x7100000000ull + 0x1000 * index;
	else if (is_pointer)
		value = (unsigned long long)(uintptr_t)buffers[index];
	memset(argument, 0, bytes);
	memcpy(argument, &value, bytes < sizeof(value) ? bytes : sizeof(value));
}

#define POINTER_CLASS 5 /* of __builtin_classify_type */
#define FILL(argument, index, is_address)                                                  \
	do {                                                                               \
		if (active)                                                                \
			fill_sensible(&(argument), sizeof(argument), index, is_address,    \
				      __builtin_classify_type(argument) == POINTER_CLASS); \
		else                                                                       \
			fill_pattern(&(argument), sizeof(argument), index);                \
		expect(&(argument), sizeof(argument));                                     \
	} while (0)

/* The driver writes nowhere, so nobody may. */
static void expect_untouched(void)
{
	static const unsigned char zeros[4096];

	for (int i = 0; i < BUFFERS; i++) {
		if (memcmp(buffers[i], zeros, sizeof(zeros)) == 0)
			continue;
		wrong++;
		printf("%s: wrote to what argument %d points at\n", current, i);
		memset(buffers[i], 0, sizeof(buffers[i]));
	}
}

static void end(CUresult result)
{
	struct recorded *arrived = &seen->functions[current_number];

	checked++;
	expect_untouched();
	if (result != current_result || arrived->calls != 1 || arrived->bytes != used ||
	    memcmp(arrived->arguments, expected, used) != 0) {
		wrong++;
		printf("%s: returned %d instead of %d, the driver was called %u times%s\n", current,
		       (int)result, (int)current_result, arrived->calls,
		       memcmp(arrived->arguments, expected, used) ? " with other arguments" : "");
	}
	seen->wanted = -1;
}

static void call_all(CUresult result);

int main(int argc, char **argv)
{
	void *driver;
	size_t (*records)(char *text, size_t bytes);
	static char text[16384];

	if (argc != 3)
		return 2;
	active = strcmp(argv[2], "on") == 0;
	signal(SIGSEGV, crashed);
	signal(SIGABRT, crashed);
	library = dlopen("libcuda.so.1", RTLD_NOW);
	driver = dlopen(argv[1], RTLD_NOW);
	records = dlsym(library, "gksm_records");
	seen = driver ? dlsym(driver, "recording") : NULL;
	if (!seen || !records)
		return 2;
	if (active) {
		int (*init)(unsigned flags) = dlsym(library, "cuInit");

		if (init(0) != 0)
			return 2;
		records(text, sizeof(text));
		if (strstr(text, "off:")) {
			printf("%s", text);
			return 2;
		}
	}
	call_all((CUresult)707);
	if (active)
		call_all(CUDA_SUCCESS);
	printf("%u checked, %u wrong\n", checked, wrong);
	return wrong != 0;
}
