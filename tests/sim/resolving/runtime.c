/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the CUDA runtime makes of the driver it finds. */
#include <cuda_runtime_api.h>
#include <stdio.h>

int main(void)
{
	int version = -1, devices = -1;
	void *memory = NULL;
	cudaError_t error = cudaDriverGetVersion(&version);

	printf("driver version %d: %d\n", version, (int)error);
	error = cudaGetDeviceCount(&devices);
	printf("%d devices: %d %s\n", devices, (int)error, cudaGetErrorString(error));
	error = cudaMalloc(&memory, (size_t)8 << 20);
	printf("malloc: %d %s\n", (int)error, cudaGetErrorName(error));
	return 0;
}
