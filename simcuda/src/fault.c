/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "device.h"
#include "guard.h"
#include "va.h"

struct scope {
	sigjmp_buf leave;
	struct sim_context *context;
	enum sim_touch_kind kind;
	volatile CUresult error;
};

/* initial-exec: the signal handler must not make the C library allocate it. */
static _Thread_local struct scope *current __attribute__((tls_model("initial-exec")));
/* The signal that is being passed on, and the frame that does it. Never cleared: the
 * handler called may leave by siglongjmp. */
static _Thread_local struct {
	const siginfo_t *info;
	const void *frame;
} passing __attribute__((tls_model("initial-exec")));

static struct {
	pthread_mutex_t lock;
	struct sigaction before[2]; /* by signal_index() */
} handlers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const int signals[2] = {SIGSEGV, SIGBUS};

static int signal_index(int number)
{
	return number == SIGBUS;
}

/*
 * Whether the handler before us has called us in turn, as one does that was installed
 * after us and put before us since. Then we are further down the stack with the same
 * signal; a signal of its own brings its siginfo along, a fixed way above our frame.
 */
static bool passed_back(const siginfo_t *info, const void *frame)
{
	return passing.info == info && (uintptr_t)frame < (uintptr_t)passing.frame;
}

/* Not ours: as if we had never been installed. */
static void chain(int number, siginfo_t *info, void *context)
{
	struct sigaction *before = &handlers.before[signal_index(number)];
	const void *frame = __builtin_frame_address(0);
	bool back = passed_back(info, frame);

	passing.info = info;
	passing.frame = frame;
	if (!back && (before->sa_flags & SA_SIGINFO) && before->sa_sigaction) {
		before->sa_sigaction(number, info, context);
		return;
	}
	if (!back && !(before->sa_flags & SA_SIGINFO) && before->sa_handler != SIG_DFL &&
	    before->sa_handler != SIG_IGN) {
		before->sa_handler(number);
		return;
	}
	struct sigaction standard = {.sa_handler = SIG_DFL};

	/* The access is tried again on return, and ends the process as it should. */
	sigaction(number, &standard, NULL);
	if (info->si_code <= 0)
		raise(number);
}

static bool was_write(const void *context)
{
#if defined(__x86_64__)
	/* Bit 1 of the page fault's error code. */
	return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
#elif defined(__aarch64__)
	const struct _aarch64_ctx *record =
		(const void *)((const ucontext_t *)context)->uc_mcontext.__reserved;

	for (; record->magic; record = (const void *)((const char *)record + record->size))
		if (record->magic == ESR_MAGIC) /* WnR */
			return ((const struct esr_context *)record)->esr >> 6 & 1;
	return true;
#else
#error "how does one tell a write fault here?"
#endif
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	struct scope *scope = current;
	CUdeviceptr address = (uintptr_t)info->si_addr - (uintptr_t)sim_va_distance;

	if (!scope || info->si_code <= 0) {
		chain(number, info, context);
		return;
	}
	if (scope->kind == SIM_TOUCH_KERNEL && number == SIGSEGV && address >= sim_va_base &&
	    address < sim_va_end &&
	    sim_guard_fault(scope->context, address, was_write(context)) == SIM_VERDICT_AGAIN)
		return;
	scope->error = CUDA_ERROR_ILLEGAL_ADDRESS;
	siglongjmp(scope->leave, 1);
}

/*
 * Makes ours the handler, also when somebody replaced it since: theirs is then the one
 * before ours.
 */
static void install(void)
{
	for (int i = 0; i < 2; i++) {
		struct sigaction ours = {.sa_sigaction = on_fault,
					 .sa_flags = SA_SIGINFO | SA_ONSTACK};
		struct sigaction there;

		if (!sigaction(signals[i], NULL, &there) && (there.sa_flags & SA_SIGINFO) &&
		    there.sa_sigaction == on_fault)
			continue;
		pthread_mutex_lock(&handlers.lock);
		sigemptyset(&ours.sa_mask);
		if (!sigaction(signals[i], &ours, &there) && there.sa_sigaction != on_fault)
			handlers.before[i] = there;
		pthread_mutex_unlock(&handlers.lock);
	}
}

void sim_fault_start(void)
{
	install();
}

void sim_fault_thread_start(void)
{
	current = NULL;
}

CUresult sim_touch(struct sim_context *context, enum sim_touch_kind kind,
		   void (*body)(void *argument), void *argument)
{
	struct scope scope = {.context = context, .kind = kind};

	install();
	if (!sigsetjmp(scope.leave, 1)) {
		current = &scope;
		body(argument);
	}
	current = NULL;
	return scope.error;
}

void sim_reach_check(CUdeviceptr address)
{
	struct scope *scope = current;

	if (!scope || scope->kind != SIM_TOUCH_KERNEL || sim_reaches(scope->context, address))
		return;
	scope->error = CUDA_ERROR_ILLEGAL_ADDRESS;
	siglongjmp(scope->leave, 1);
}

void sim_sm_gate(void)
{
	struct scope *scope = current;
	struct sim_device *device;

	if (!scope)
		return;
	device = scope->context->device;
	for (;;) {
		uint32_t seen = atomic_load(&device->shared->held_change);

		if (atomic_load(&scope->context->destroyed) ||
		    sim_context_error(scope->context) != CUDA_SUCCESS) {
			scope->error = CUDA_ERROR_LAUNCH_FAILED;
			siglongjmp(scope->leave, 1);
		}
		if (!sim_device_held(device))
			return;
		sim_device_wait_released(device, seen);
	}
}

/* volatile and word by word: no call of the C library that a fault could be in the
 * middle of, nothing for a sanitizer to instrument. */
__attribute__((no_sanitize("address", "thread", "undefined"))) void
sim_bytes_copy(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__)
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
	volatile unsigned char *out = to;
	const volatile unsigned char *in = from;

	for (; bytes >= 8 && !(((uintptr_t)out | (uintptr_t)in) & 7); bytes -= 8, out += 8, in += 8)
		*(volatile uint64_t *)out = *(const volatile uint64_t *)in;
	while (bytes--)
		*out++ = *in++;
#endif
}

__attribute__((no_sanitize("address", "thread", "undefined"))) void
sim_bytes_set(void *to, const void *pattern, size_t width, size_t count)
{
#if defined(__x86_64__)
	switch (width) {
	case 1:
		__asm__ volatile("rep stosb"
				 : "+D"(to), "+c"(count)
				 : "a"(*(const uint8_t *)pattern)
				 : "memory");
		break;
	case 2:
		__asm__ volatile("rep stosw"
				 : "+D"(to), "+c"(count)
				 : "a"(*(const uint16_t *)pattern)
				 : "memory");
		break;
	default:
		__asm__ volatile("rep stosl"
				 : "+D"(to), "+c"(count)
				 : "a"(*(const uint32_t *)pattern)
				 : "memory");
	}
#else
	switch (width) {
	case 1:
		for (volatile uint8_t *at = to; count--;)
			*at++ = *(const uint8_t *)pattern;
		break;
	case 2:
		for (volatile uint16_t *at = to; count--;)
			*at++ = *(const uint16_t *)pattern;
		break;
	default:
		for (volatile uint32_t *at = to; count--;)
			*at++ = *(const uint32_t *)pattern;
	}
#endif
}
