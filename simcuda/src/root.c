/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "fault.h"
#include "host.h"
#include "sim.h"
#include "va.h"

struct sim sim_root = {
	.contexts_lock = PTHREAD_MUTEX_INITIALIZER,
	.memory_lock = PTHREAD_MUTEX_INITIALIZER,
	.queue_lock = PTHREAD_MUTEX_INITIALIZER,
	.progress = PTHREAD_COND_INITIALIZER,
};

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t sim_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t sim_next_id(void)
{
	return atomic_fetch_add(&sim_root.next_id, 1) + 1;
}

/* splitmix64: every caller gets another number of the seed's sequence. */
uint64_t sim_random(void)
{
	uint64_t z = atomic_fetch_add(&sim_root.random, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

CUresult sim_ready(void)
{
	return atomic_load(&sim_root.started) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

struct sim_device *sim_device(CUdevice ordinal)
{
	if (ordinal < 0 || ordinal >= sim_root.device_count)
		return NULL;
	return &sim_root.devices[ordinal];
}

/* Digits with K, M or G; rounded down to whole pages. false: anything else. */
static bool parse_bytes(const char *text, uint64_t *bytes)
{
	char *end;
	unsigned long long value;
	unsigned shift = 0;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text)
		return false;
	switch (*end) {
	case 'K':
		shift = 10;
		break;
	case 'M':
		shift = 20;
		break;
	case 'G':
		shift = 30;
		break;
	}
	end += shift != 0;
	if (value > UINT64_MAX >> shift)
		return false;
	value <<= shift;
	value = value / SIM_PAGE * SIM_PAGE;
	*bytes = value;
	return !*end && value && value / SIM_PAGE <= SIM_PAGES_MAX;
}

static bool config_read(struct sim_config *config)
{
	const char *dir = getenv("SIMCUDA_DIR");
	const char *devices = getenv("SIMCUDA_DEVICES");
	const char *vram = getenv("SIMCUDA_VRAM");
	const char *guard = getenv("SIMCUDA_GUARD");
	const char *seed = getenv("SIMCUDA_SEED");
	const char *claim = getenv("SIMCUDA_CLAIM");
	const char *rdma = getenv("SIMCUDA_RDMA");

	if (!dir || !*dir || strlen(dir) >= sizeof(config->dir))
		return false;
	strcpy(config->dir, dir);
	config->devices = devices && *devices ? atoi(devices) : 1;
	if (config->devices < 0 || config->devices > SIM_DEVICES_MAX)
		return false;
	config->vram = 0;
	if (vram && *vram && !parse_bytes(vram, &config->vram))
		return false;
	config->guard = !guard || strcmp(guard, "0");
	config->seed = seed && *seed ? strtoull(seed, NULL, 0) : sim_now_ns() ^ (uint64_t)getpid();
	config->claim = SIM_CLAIM_NONE;
	if (claim && !strcmp(claim, "mps"))
		config->claim = SIM_CLAIM_MPS;
	else if (claim && !strcmp(claim, "mig"))
		config->claim = SIM_CLAIM_MIG;
	config->rdma = SIM_RDMA_NONE;
	if (rdma && !strcmp(rdma, "1"))
		config->rdma = SIM_RDMA_OFFERED;
	else if (rdma && !strcmp(rdma, "unmappable"))
		config->rdma = SIM_RDMA_UNMAPPABLE;
	return true;
}

static void forked_child(void)
{
	if (!atomic_load(&sim_root.started))
		return;
	/* Nothing of the parent's can be used here: locks may be held by threads that do
	 * not exist, the memory is not mapped. */
	atomic_store(&sim_root.started, false);
	atomic_store(&sim_root.forked, true);
	for (int i = 0; i < sim_root.device_count; i++)
		sim_device_forked(&sim_root.devices[i]);
}

/* A handle is a descriptor here, unlike with a real driver. */
static void raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

static CUresult start_locked(void)
{
	CUresult result = CUDA_SUCCESS;

	if (!config_read(&sim_root.config) || !sim_root.config.devices)
		return CUDA_ERROR_NO_DEVICE;
	atomic_store(&sim_root.random, sim_root.config.seed);
	if (!sim_root.va && (sim_va_start() || sim_host_start()))
		return CUDA_ERROR_OUT_OF_MEMORY;
	raise_fd_limit();
	/* A first cuInit may have failed half-way: what is attached stays. */
	while (result == CUDA_SUCCESS && sim_root.device_count < sim_root.config.devices) {
		int ordinal = sim_root.device_count;

		result = sim_device_attach(&sim_root.devices[ordinal], ordinal);
		if (result == CUDA_SUCCESS)
			sim_root.device_count++;
	}
	if (result != CUDA_SUCCESS)
		return result;
	sim_fault_start();
	if (pthread_atfork(NULL, NULL, forked_child))
		return CUDA_ERROR_OUT_OF_MEMORY;
	atomic_store(&sim_root.started, true);
	return CUDA_SUCCESS;
}

CUresult sim_start(void)
{
	CUresult result = CUDA_SUCCESS;

	if (atomic_load(&sim_root.forked))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (atomic_load(&sim_root.started))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&start_lock);
	if (!atomic_load(&sim_root.started))
		result = start_locked();
	pthread_mutex_unlock(&start_lock);
	return result;
}
