/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints in which file each name is found, looked up again and again in every way
 * there is. The output must not depend on whether libgksm is preloaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *file_of(void *address)
{
	Dl_info info;

	if (!address)
		return "nowhere";
	return dladdr(address, &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : "?";
}

int main(void)
{
	static const char *const names[] = {
		"malloc",	  "free",	 "dlsym",	"dlopen",
		"pthread_create", "mkl_malloc",	 "cudnnCreate", "cublasCreate_v2",
		"cudaMalloc",	  "cufftPlan1d", "cupti",	"cu",
		"curl_easy_init", "fork",	 "memcpy",	"clock_gettime",
		"write",	  "exit",
	};

	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
			printf("%s default %s next %s\n", names[i],
			       file_of(dlsym(RTLD_DEFAULT, names[i])),
			       file_of(dlsym(RTLD_NEXT, names[i])));
	return 0;
}
