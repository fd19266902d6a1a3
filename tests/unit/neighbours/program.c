/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses other libraries than the driver's, and prints what became of it. The output
 * must not depend on whether libgksm is preloaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef int create(void **handle);
typedef int ask(int *value);

static void *open_or_say(const char *name, int flags)
{
	void *library;

	errno = 77;
	library = dlopen(name, flags);
	if (!library)
		printf("%s: %s, errno %d\n", name, dlerror(), errno);
	return library;
}

/* Names that begin as the driver's do. */
static int cudnn(void)
{
	void *library = open_or_say("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
	void *handle = NULL;
	create *one, *other;

	if (!library)
		return 1;
	one = (create *)dlsym(library, "cudnnCreate");
	other = (create *)dlsym(library, "cublasCreate_v2");
	if (!one || !other)
		return 1;
	printf("cudnnCreate %d", one(&handle));
	printf(" cublasCreate_v2 %d\n", other(&handle));
	return 0;
}

/* What a wrapped dlopen gets wrong: errors, flags, and whose run path is searched. */
static int loading(void)
{
	Dl_info info;
	create *near;
	void *library;

	open_or_say("libthereisnone.so", RTLD_NOW);
	open_or_say("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
	open_or_say("libcudnn.so.9", 0);
	library = open_or_say("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return 1;
	printf("local: %s\n", dlsym(RTLD_DEFAULT, "cudnnCreate") ? "seen by all" : "not seen");
	near = (create *)dlsym(library, "cudnnCreate");
	if (!near || !dladdr((void *)near, &info))
		return 1;
	printf("found in %s\n", info.dli_fname);
	printf("twice the same: %d\n", dlopen("libcudnn.so.9", RTLD_NOW) == library);
	return 0;
}

static int nvml(void)
{
	static const char *const names[] = {"nvmlInit_v2", "nvmlDeviceGetCount_v2",
					    "nvmlDeviceGetCount", "nvmlShutdown"};
	void *library = open_or_say("libnvidia-ml.so.1", RTLD_LAZY);
	int value = -1;

	if (!library)
		return 1;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		ask *function = (ask *)dlsym(library, names[i]);
		int result = function ? function(&value) : -1;

		if (!function)
			printf("%s: Function Not Found\n", names[i]);
		else
			printf("%s: %d, %d\n", names[i], result, value);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "cudnn") == 0)
		return cudnn();
	if (argc == 2 && strcmp(argv[1], "loading") == 0)
		return loading();
	if (argc == 2 && strcmp(argv[1], "nvml") == 0)
		return nvml();
	return 2;
}
