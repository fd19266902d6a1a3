/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built-in kernels. Each has a body that runs inside sim_touch(): it may be left
 * in the middle when its context is torn down, and looks at the gate once a step.
 */
#include <string.h>
#include <time.h>

#include "device_code.h"
#include "kernels.h"
#include "xxh3.h"

#define STEP_WORDS (SIM_STEP / sizeof(uint32_t))

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

struct fill {
	CUdeviceptr out;
	uint64_t count;
	uint32_t value;
};

SIM_DEVICE_CODE static void fill_body(void *argument)
{
	const struct fill *fill = argument;

	for (uint64_t done = 0; done < fill->count; done += STEP_WORDS) {
		sim_sm_gate();
		sim_bytes_set(sim_at(fill->out + done * sizeof(uint32_t)), &fill->value,
			      sizeof(fill->value), least(fill->count - done, STEP_WORDS));
	}
}

static CUresult fill_run(struct sim_context *context, const void *params)
{
	struct fill fill = *(const struct fill *)params;

	return sim_touch(context, SIM_TOUCH_KERNEL, fill_body, &fill);
}

struct add {
	CUdeviceptr out, a, b;
	uint64_t count;
};

SIM_DEVICE_CODE static void add_body(void *argument)
{
	const struct add *add = argument;

	for (uint64_t i = 0; i < add->count; i++) {
		if (i % STEP_WORDS == 0)
			sim_sm_gate();
		*(volatile uint32_t *)sim_at(add->out + 4 * i) =
			*(volatile uint32_t *)sim_at(add->a + 4 * i) +
			*(volatile uint32_t *)sim_at(add->b + 4 * i);
	}
}

static CUresult add_run(struct sim_context *context, const void *params)
{
	struct add add = *(const struct add *)params;

	return sim_touch(context, SIM_TOUCH_KERNEL, add_body, &add);
}

struct sum {
	CUdeviceptr out, in;
	uint64_t count;
};

SIM_DEVICE_CODE static void sum_body(void *argument)
{
	const struct sum *sum = argument;
	uint64_t total = 0;

	for (uint64_t i = 0; i < sum->count; i++) {
		if (i % STEP_WORDS == 0)
			sim_sm_gate();
		total += *(volatile uint32_t *)sim_at(sum->in + 4 * i);
	}
	sim_sm_gate();
	*(volatile uint64_t *)sim_at(sum->out) = total;
}

static CUresult sum_run(struct sim_context *context, const void *params)
{
	struct sum sum = *(const struct sum *)params;

	return sim_touch(context, SIM_TOUCH_KERNEL, sum_body, &sum);
}

struct copy {
	CUdeviceptr to, from;
	uint64_t bytes;
};

SIM_DEVICE_CODE static void copy_body(void *argument)
{
	const struct copy *copy = argument;

	for (uint64_t done = 0; done < copy->bytes; done += SIM_STEP) {
		sim_sm_gate();
		sim_bytes_copy(sim_at(copy->to + done), sim_at(copy->from + done),
			       least(copy->bytes - done, SIM_STEP));
	}
}

static CUresult copy_run(struct sim_context *context, const void *params)
{
	struct copy copy = *(const struct copy *)params;

	return sim_touch(context, SIM_TOUCH_KERNEL, copy_body, &copy);
}

struct write_pages {
	CUdeviceptr base;
	uint64_t first, count, step, offset;
	uint32_t value;
};

SIM_DEVICE_CODE static void write_pages_body(void *argument)
{
	const struct write_pages *write = argument;

	for (uint64_t i = 0; i < write->count; i++) {
		uint64_t page = write->first + i * write->step;

		sim_sm_gate();
		*(volatile uint32_t *)sim_at(write->base + page * SIM_PAGE + write->offset) =
			write->value;
	}
}

static CUresult write_pages_run(struct sim_context *context, const void *params)
{
	struct write_pages write = *(const struct write_pages *)params;

	return sim_touch(context, SIM_TOUCH_KERNEL, write_pages_body, &write);
}

struct spin {
	CUdeviceptr flag;
	uint32_t value;
	bool done;
};

SIM_DEVICE_CODE static void spin_body(void *argument)
{
	struct spin *spin = argument;

	sim_sm_gate();
	spin->done = *(volatile uint32_t *)sim_at(spin->flag) == spin->value;
}

/* Looks again and again from outside, so that two cores are enough for everybody. */
static CUresult spin_run(struct sim_context *context, const void *params)
{
	struct spin spin = {0};
	const struct timespec pause = {.tv_nsec = 20000};
	CUresult result;

	memcpy(&spin, params, offsetof(struct spin, done));
	for (;;) {
		result = sim_touch(context, SIM_TOUCH_KERNEL, spin_body, &spin);
		if (result == CUDA_SUCCESS)
			result = sim_context_error(context);
		if (result != CUDA_SUCCESS || spin.done)
			return result;
		nanosleep(&pause, NULL);
	}
}

struct hash {
	CUdeviceptr out, base;
	uint64_t pages;
};

SIM_DEVICE_CODE static void hash_body(void *argument)
{
	const struct hash *hash = argument;

	for (uint64_t page = 0; page < hash->pages; page++) {
		const unsigned char *at = sim_at(hash->base + page * SIM_PAGE);
		volatile uint64_t *out = sim_at(hash->out + page * 16);
		struct sim_xxh3 state;
		uint64_t value[2];

		sim_xxh3_start(&state);
		for (size_t done = 0; done < SIM_PAGE - SIM_XXH3_BLOCK; done += SIM_XXH3_BLOCK) {
			if (done % SIM_STEP == 0)
				sim_sm_gate();
			sim_xxh3_block(&state, at + done);
		}
		sim_xxh3_finish(&state, at + SIM_PAGE - SIM_XXH3_BLOCK, value);
		out[0] = value[0];
		out[1] = value[1];
	}
}

static CUresult hash_run(struct sim_context *context, const void *params)
{
	struct hash hash = *(const struct hash *)params;

	return sim_touch(context, SIM_TOUCH_KERNEL, hash_body, &hash);
}

struct compare {
	CUdeviceptr out, a, b;
	uint64_t pages;
};

SIM_DEVICE_CODE static void compare_body(void *argument)
{
	const struct compare *compare = argument;

	for (uint64_t page = 0; page < compare->pages; page++) {
		const volatile uint64_t *a = sim_at(compare->a + page * SIM_PAGE);
		const volatile uint64_t *b = sim_at(compare->b + page * SIM_PAGE);
		uint32_t equal = 1;

		for (size_t i = 0; i < SIM_PAGE / sizeof(*a) && equal; i++) {
			if (i % (SIM_STEP / sizeof(*a)) == 0)
				sim_sm_gate();
			equal = a[i] == b[i];
		}
		*(volatile uint32_t *)sim_at(compare->out + page * 4) = equal;
	}
}

static CUresult compare_run(struct sim_context *context, const void *params)
{
	struct compare compare = *(const struct compare *)params;

	return sim_touch(context, SIM_TOUCH_KERNEL, compare_body, &compare);
}

const struct sim_kernel sim_kernels[] = {
	{"fill", 3, {8, 8, 4}, fill_run},
	{"add", 4, {8, 8, 8, 8}, add_run},
	{"sum", 3, {8, 8, 8}, sum_run},
	{"copy", 3, {8, 8, 8}, copy_run},
	{"write_pages", 6, {8, 8, 8, 8, 8, 4}, write_pages_run},
	{"spin_until", 2, {8, 4}, spin_run},
	{"hash", 3, {8, 8, 8}, hash_run},
	{"compare", 4, {8, 8, 8, 8}, compare_run},
};
const unsigned sim_kernel_count = sizeof(sim_kernels) / sizeof(sim_kernels[0]);

const struct sim_kernel *sim_kernel_named(const char *name)
{
	for (unsigned i = 0; i < sim_kernel_count; i++)
		if (strcmp(sim_kernels[i].name, name) == 0)
			return &sim_kernels[i];
	return NULL;
}

size_t sim_kernel_offset(const struct sim_kernel *kernel, unsigned index)
{
	size_t offset = 0;

	for (unsigned i = 0; i < kernel->parameters; i++) {
		size_t size = kernel->sizes[i];

		offset = (offset + size - 1) / size * size;
		if (i == index)
			return offset;
		offset += size;
	}
	return offset;
}
