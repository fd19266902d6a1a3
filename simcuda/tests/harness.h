/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about the simulated driver, each a function. `program NAME` runs one and exits
 * 0 if it held; `program` lists the names. Processes are made by fork before cuInit.
 */
#ifndef SIM_TEST_HARNESS_H
#define SIM_TEST_HARNESS_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "simcuda/kernels.h"

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)

#define CHECK(condition)                                                                \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

#define IS(call, expected)                                                                     \
	do {                                                                                   \
		CUresult got_ = (call);                                                        \
		if (got_ != (expected)) {                                                      \
			fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, got_); \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

#define OK(call) IS(call, CUDA_SUCCESS)

struct fact {
	const char *name;
	void (*run)(void);
};

#define FACT(name) {#name, name}

static inline int run_facts(const struct fact *facts, size_t count, int argc, char **argv)
{
	for (size_t i = 0; i < count; i++) {
		if (argc < 2)
			puts(facts[i].name);
		else if (!strcmp(argv[1], facts[i].name))
			return facts[i].run(), 0;
	}
	return argc < 2 ? 0 : 2;
}

/* cuInit and a context of one's own on device 0. */
CUcontext begin(void);

/* Used bytes of device 0. */
size_t used(void);

CUmemGenericAllocationHandle handle_new(size_t bytes);
void access_set(CUdeviceptr at, size_t bytes, CUmemAccess_flags flags);
/* A page of its own at an address; *handle may be NULL. */
CUdeviceptr page_new(CUmemAccess_flags flags, CUmemGenericAllocationHandle *handle);
CUdeviceptr reserve(size_t bytes);

/* The built-in kernels. */
CUfunction kernel(const char *name);
void launch_fill(CUstream stream, CUdeviceptr out, uint64_t count, uint32_t value);
void launch_spin(CUstream stream, CUdeviceptr flag, uint32_t value);
void launch_sum(CUstream stream, CUdeviceptr out, CUdeviceptr in, uint64_t count);

/* Another process, that runs body(fds to talk through); its end of the socket is
 * `other`, ours is returned. */
struct child {
	pid_t pid;
	int channel;
};

struct child child_start(void (*body)(int channel));
/* 0 exit status or the test fails. */
void child_end(struct child child);
void child_kill(struct child child);
/* One byte each way: what two processes wait for each other with. */
void tell(int channel);
void wait_for(int channel);
/* true: something was told within the time. */
bool told_within(int channel, int milliseconds);
void fd_send(int channel, int fd);
int fd_receive(int channel);

#endif
