/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "live.h"

#define BUCKETS 1024u

struct entry {
	const void *handle;
	enum sim_live_kind kind;
	struct entry *next;
};

static struct {
	pthread_mutex_t lock;
	struct entry *buckets[BUCKETS];
} live = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct entry **bucket_of(const void *handle)
{
	return &live.buckets[((uintptr_t)handle >> 4) % BUCKETS];
}

int sim_live_add(const void *handle, enum sim_live_kind kind)
{
	struct entry *entry = malloc(sizeof(*entry));

	if (!entry)
		return -ENOMEM;
	pthread_mutex_lock(&live.lock);
	*entry = (struct entry){handle, kind, *bucket_of(handle)};
	*bucket_of(handle) = entry;
	pthread_mutex_unlock(&live.lock);
	return 0;
}

void sim_live_remove(const void *handle)
{
	struct entry *gone = NULL;

	pthread_mutex_lock(&live.lock);
	for (struct entry **at = bucket_of(handle); *at; at = &(*at)->next) {
		if ((*at)->handle == handle) {
			gone = *at;
			*at = gone->next;
			break;
		}
	}
	pthread_mutex_unlock(&live.lock);
	free(gone);
}

bool sim_live_is(const void *handle, enum sim_live_kind kind)
{
	bool found = false;

	if (!handle)
		return false;
	pthread_mutex_lock(&live.lock);
	for (struct entry *at = *bucket_of(handle); at && !found; at = at->next)
		found = at->handle == handle && at->kind == kind;
	pthread_mutex_unlock(&live.lock);
	return found;
}
