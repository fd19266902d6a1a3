/* SPDX-License-Identifier: Apache-2.0 */
/* A library as cuDNN's is: its functions look themselves up in the library that does
 * the work. Whoever answers with the caller's own address makes it call itself. */
#include <dlfcn.h>

typedef int create(void **handle);

static int forward(const char *name, void **handle)
{
	static int depth;
	void *worker = dlopen("libcudnn_ops.so.9", RTLD_NOW | RTLD_LOCAL);
	create *real = worker ? (create *)dlsym(worker, name) : 0;
	int result = -1;

	if (!real || depth++)
		return -2;
	result = real(handle);
	depth--;
	return result;
}

int cudnnCreate(void **handle);
int cudnnCreate(void **handle)
{
	return forward("cudnnCreate", handle);
}

int cublasCreate_v2(void **handle);
int cublasCreate_v2(void **handle)
{
	return forward("cublasCreate_v2", handle);
}
