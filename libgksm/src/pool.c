/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of threads that copy, hash and compare pages. Callers work on their own
 * job too, so a pool of n threads starts n - 1, and a job is finished even if no
 * worker ever comes. Several callers may have jobs at once.
 *
 * A job lives on its caller's stack. A worker may touch it only between joining
 * and leaving it, both under the pool's lock; the caller returns once the job is
 * off the list and nobody is left in it.
 */
#include "hash.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hash_paths.h"
#include "sync.h"

#define POOL_THREADS_MAX 8
#define CPU_MASK_BYTES 8192 /* 65536 CPUs */

struct job {
	void (*one)(const struct job *job, size_t i);
	const void *const *left;
	const void *const *right;
	void *const *into;
	struct gksm_hash128 *hashes;
	bool *equal;
	size_t count;
	_Atomic size_t next; /* the next item that nobody has taken */
	unsigned workers;    /* inside; under the pool's lock */
	struct job *following;
};

struct gksm_pool {
	struct gksm_mutex lock;
	struct job *jobs;
	_Atomic uint32_t posted; /* futex: jobs so far; workers sleep on it */
	_Atomic uint32_t left;	 /* futex: times that the last worker left a job */
};

static void snapshot_one(const struct job *job, size_t i)
{
	const void *source = job->left[i];

	if (source)
		job->hashes[i] = gksm_hash_by(gksm_hash_path(), source, job->into[i]);
	else
		job->hashes[i] = gksm_hash_page(job->into[i]);
}

static void compare_one(const struct job *job, size_t i)
{
	job->equal[i] = memcmp(job->left[i], job->right[i], GKSM_PAGE_SIZE) == 0;
}

static void copy_one(const struct job *job, size_t i)
{
	memcpy(job->into[i], job->left[i], GKSM_PAGE_SIZE);
}

static void work(struct job *job)
{
	size_t i;

	while ((i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->count)
		job->one(job, i);
}

/* The first job with items left, joined; NULL: none. */
static struct job *join(struct gksm_pool *pool)
{
	struct job *job;

	gksm_mutex_lock(&pool->lock);
	for (job = pool->jobs; job; job = job->following)
		if (atomic_load_explicit(&job->next, memory_order_relaxed) < job->count)
			break;
	if (job)
		job->workers++;
	gksm_mutex_unlock(&pool->lock);
	return job;
}

static void leave(struct gksm_pool *pool, struct job *job)
{
	bool last;

	gksm_mutex_lock(&pool->lock);
	last = --job->workers == 0;
	if (last)
		atomic_fetch_add_explicit(&pool->left, 1, memory_order_relaxed);
	gksm_mutex_unlock(&pool->lock);
	if (last)
		gksm_futex_wake(&pool->left, INT_MAX);
}

static void *worker(void *argument)
{
	struct gksm_pool *pool = argument;

	for (;;) {
		/* Read before looking, so that a job posted meanwhile ends the wait. */
		uint32_t posted = atomic_load_explicit(&pool->posted, memory_order_acquire);
		struct job *job = join(pool);

		if (!job) {
			gksm_futex_wait(&pool->posted, posted, -1);
			continue;
		}
		work(job);
		leave(pool, job);
	}
	return NULL;
}

static void unlist(struct gksm_pool *pool, struct job *job)
{
	struct job **at = &pool->jobs;

	while (*at != job)
		at = &(*at)->following;
	*at = job->following;
}

static void run(struct gksm_pool *pool, struct job *job)
{
	if (!pool || job->count < 2) {
		work(job);
		return;
	}

	gksm_mutex_lock(&pool->lock);
	job->following = pool->jobs;
	pool->jobs = job;
	atomic_fetch_add_explicit(&pool->posted, 1, memory_order_release);
	gksm_mutex_unlock(&pool->lock);
	gksm_futex_wake(&pool->posted,
			job->count > POOL_THREADS_MAX ? POOL_THREADS_MAX : (int)job->count - 1);

	work(job);

	gksm_mutex_lock(&pool->lock);
	unlist(pool, job);
	while (job->workers) {
		uint32_t left = atomic_load_explicit(&pool->left, memory_order_relaxed);

		gksm_mutex_unlock(&pool->lock);
		gksm_futex_wait(&pool->left, left, -1);
		gksm_mutex_lock(&pool->lock);
	}
	gksm_mutex_unlock(&pool->lock);
}

/* By system call: the mask may be larger than a cpu_set_t. */
static unsigned allowed_cpus(void)
{
	unsigned long *mask = calloc(1, CPU_MASK_BYTES);
	unsigned cpus = 0;
	long bytes;

	if (!mask)
		return 1;
	bytes = syscall(SYS_sched_getaffinity, 0, (size_t)CPU_MASK_BYTES, mask);
	for (long i = 0; i < bytes / (long)sizeof(*mask); i++)
		cpus += (unsigned)__builtin_popcountl(mask[i]);
	free(mask);
	return cpus ? cpus : 1;
}

struct gksm_pool *gksm_pool_start(unsigned threads)
{
	struct gksm_pool *pool;
	unsigned started = 0;

	if (threads == 0) {
		threads = allowed_cpus();
		if (threads > POOL_THREADS_MAX)
			threads = POOL_THREADS_MAX;
	}
	if (threads < 2)
		return NULL;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return NULL;
	while (started < threads - 1 && gksm_thread_start(worker, pool, "gksm-pool") == 0)
		started++;
	if (!started) {
		free(pool);
		return NULL;
	}
	return pool;
}

void gksm_pool_snapshot(struct gksm_pool *pool, const void *const *sources, void *const *snapshots,
			struct gksm_hash128 *hashes, size_t count)
{
	struct job job = {.one = snapshot_one,
			  .left = sources,
			  .into = snapshots,
			  .hashes = hashes,
			  .count = count};

	run(pool, &job);
}

void gksm_pool_compare(struct gksm_pool *pool, const void *const *left, const void *const *right,
		       bool *equal, size_t count)
{
	struct job job = {
		.one = compare_one, .left = left, .right = right, .equal = equal, .count = count};

	run(pool, &job);
}

void gksm_pool_copy(struct gksm_pool *pool, void *const *destinations, const void *const *sources,
		    size_t count)
{
	struct job job = {.one = copy_one, .left = sources, .into = destinations, .count = count};

	run(pool, &job);
}
