/* SPDX-License-Identifier: Apache-2.0 */
/* The library that does the work, and one as NVML is. */
int cudnnCreate(void **handle);
int cudnnCreate(void **handle)
{
	*handle = handle;
	return 11;
}

int cublasCreate_v2(void **handle);
int cublasCreate_v2(void **handle)
{
	*handle = handle;
	return 12;
}

int nvmlInit_v2(int *value);
int nvmlInit_v2(int *value)
{
	*value = 1;
	return 0;
}

int nvmlDeviceGetCount_v2(int *value);
int nvmlDeviceGetCount_v2(int *value)
{
	*value = 8;
	return 0;
}

int nvmlShutdown(int *value);
int nvmlShutdown(int *value)
{
	*value = 0;
	return 0;
}
