/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From nothing to working: all of it happens in the application's own first
 * successful cuInit. Before that there is no thread, no socket, no CUDA call of
 * ours: what a process does before it forks must stay harmless in the child.
 *
 *   idle ----cuInit----> starting ----> active   the root is published
 *                            `--------> off      wrappers pass through, for good
 *
 * While starting, the word also holds the pid: a child forked at that moment finds a
 * pid that is not its own, and passes through instead of waiting. The published
 * root lies on a page that the kernel empties in children, whatever way they are
 * made (fork without the C library's handlers, too).
 */
#include <limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fork.h"
#include "needed.h"
#include "report.h"
#include "rivals.h"
#include "settings.h"
#include "wrap.h"

#define PAGE_BYTES 4096
#define START_WAIT_NS 5000000000ll

enum { IDLE, STARTING, ACTIVE, OFF };
#define PHASE_BITS 2 /* a pid has 22 */

/* Whole page, so that nothing else is emptied with it. */
static struct {
	_Atomic(struct gksm *) root;
	char rest[PAGE_BYTES - sizeof(_Atomic(struct gksm *))];
} published __attribute__((aligned(PAGE_BYTES)));

static struct gksm root;
static _Atomic uint32_t phase; /* a futex word */
static _Atomic pid_t starter;  /* the thread that is starting */
/* Kernels before 4.14 cannot empty the page: then the pid is asked, at every call. */
static _Atomic pid_t checked_pid;

static struct gksm *checked_process(void)
{
	pid_t pid = atomic_load_explicit(&checked_pid, memory_order_acquire);

	return pid != 0 && pid == getpid() ? &root : NULL;
}

struct gksm *gksm_process(void)
{
	struct gksm *process = atomic_load_explicit(&published.root, memory_order_acquire);

	return __builtin_expect(process != NULL, 1) ? process : checked_process();
}

static void publish(void)
{
	if (madvise(&published, sizeof(published), MADV_WIPEONFORK) == 0)
		atomic_store_explicit(&published.root, &root, memory_order_release);
	else
		atomic_store_explicit(&checked_pid, getpid(), memory_order_release);
}

/* true: everything is up. Else the reason is in the ring. */
static bool start(const struct gksm_driver *driver)
{
	const char *lacking = gksm_driver_lacks(driver);
	char rival[1024];
	int result;

	gksm_settings_read(&root.settings);
	if (root.settings.disabled) {
		gksm_report(NULL, GKSM_INFO, "off: GKSM_DISABLE is set");
		return false;
	}
	if (gksm_rival_find(rival, sizeof(rival))) {
		gksm_report(NULL, GKSM_WARNING,
			    "off: %s is preloaded and exports cuInit too; preload one of the two",
			    rival);
		return false;
	}
	if (lacking) {
		gksm_report(NULL, GKSM_WARNING, "off: the driver %s is too old: it has no %s",
			    gksm_driver_path(), lacking);
		return false;
	}
	result = gksm_fork_watch();
	if (result == 0) {
		root.driver = *driver;
		result = gksm_core_start(&root);
	}
	if (result != 0) {
		gksm_report(NULL, GKSM_ERROR, "off: it could not start (errno %d)", -result);
		return false;
	}
	return true;
}

static void settle(uint32_t outcome)
{
	atomic_store_explicit(&phase, outcome, memory_order_release);
	gksm_futex_wake(&phase, INT_MAX);
}

/*
 * The other threads of a process that is starting wait, so that no allocation
 * slips by unseen; bounded, and not if the start itself led here.
 */
static void wait_for_start(pid_t thread, uint32_t starting)
{
	uint64_t deadline = gksm_now_ns() + START_WAIT_NS;

	if (atomic_load(&starter) == thread)
		return;
	while (atomic_load_explicit(&phase, memory_order_acquire) == starting) {
		int64_t left = (int64_t)(deadline - gksm_now_ns());

		if (left <= 0)
			return;
		gksm_futex_wait(&phase, starting, left);
	}
}

static void start_once(const struct gksm_driver *driver)
{
	uint32_t starting, seen = atomic_load_explicit(&phase, memory_order_acquire);
	pid_t thread;

	if (seen == ACTIVE || seen == OFF)
		return;
	starting = (uint32_t)getpid() << PHASE_BITS | STARTING;
	thread = (pid_t)syscall(SYS_gettid);
	seen = IDLE;
	if (!atomic_compare_exchange_strong(&phase, &seen, starting)) {
		if (seen == starting)
			wait_for_start(thread, starting);
		return;
	}
	atomic_store(&starter, thread);
	if (!start(driver)) {
		settle(OFF);
		return;
	}
	publish();
	settle(ACTIVE);
	gksm_report_flush(&root);
}

GKSM_WRAP(cuInit)(unsigned int Flags)
{
	const struct gksm_driver *driver = gksm_driver();
	CUresult result;

	if (!driver)
		return CUDA_ERROR_NO_DEVICE;
	result = driver->cuInit(Flags);
	if (result == CUDA_SUCCESS)
		start_once(driver);
	return result;
}
