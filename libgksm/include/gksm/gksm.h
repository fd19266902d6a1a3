/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program may ask libgksm for. None of it is needed to share: programs run
 * unmodified. Look the functions up with dlsym(RTLD_DEFAULT, ...): they exist only
 * in a process that libgksm was put into.
 *
 * Every function may be called from any thread and returns 0 or a negative errno.
 * -ENOSYS: libgksm is off in this process (gksmctl explain PID says why).
 * -ENOENT: the address is not in memory that libgksm manages.
 */
#ifndef GKSM_H
#define GKSM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gksm_statistics {
	uint32_t bytes; /* in: sizeof this struct; out: how much was filled */
	uint32_t guard; /* enum gksm_guard of protocol.h */
	/* 2 MiB pages of this process on the GPU of ptr */
	uint64_t virtual_pages;
	uint64_t unbacked_pages;
	uint64_t private_pages;
	uint64_t shared_pages;
	uint64_t spare_pages;
	/* since start */
	uint64_t cow_events;
	uint64_t cow_ns_total;
	uint64_t cow_ns_max;
	uint64_t api_detaches;
	uint64_t first_touches;
	uint64_t loaded_pages;
	uint64_t attached_pages;
	/* the scanner, since start but for the two that say now */
	uint64_t zero_pages;   /* now: shared pages that are all zeros */
	uint64_t stable_pages; /* now: private, unchanged, no look-alike known */
	uint64_t full_scans;
	uint64_t merged_pages;
	uint64_t dropped_merges; /* written to meanwhile, or different after all */
	uint64_t churned_merges; /* written to soon after they were merged */
};

/*
 * Declares that [ptr, ptr + bytes) is finished: it will be read and not written
 * until it is unsealed. Only whole pages inside the range are sealed. Under the
 * `seal` guard this is what allows them to be shared; a kernel that writes to one
 * is then killed (Xid 31). Under the other guards it changes nothing. Idempotent.
 */
int gksm_seal(uint64_t ptr, size_t bytes);

/*
 * Takes a seal back. On return every page that the range touches is private and
 * writable. -ENOMEM: there is no memory for that; nothing was changed.
 */
int gksm_unseal(uint64_t ptr, size_t bytes);

/*
 * Says what [ptr, ptr + bytes) holds: GKSM_KIND_WEIGHTS, _KV or _OTHER of protocol.h. It
 * counts instead of what libgksm makes of how the memory is filled, for the whole pages
 * inside the range and until they are freed. A trust domain shares weights only, unless
 * the operator adds kv or other. -EINVAL: no such kind.
 */
int gksm_set_kind(uint64_t ptr, size_t bytes, int kind);

/* *shared_bytes becomes how much of [ptr, ptr + bytes) lies in shared pages. */
int gksm_is_shared(uint64_t ptr, size_t bytes, size_t *shared_bytes);

/* Fills *statistics for the GPU that ptr lies on; ptr 0: the current context's. */
int gksm_get_statistics(uint64_t ptr, struct gksm_statistics *statistics);

/*
 * The last records of what libgksm did or could not do in this process, oldest
 * first, one "severity: text" a line; why it is off stands here even when gksmd
 * was never asked. Whole lines only, NUL-terminated. Returns the length.
 */
size_t gksm_records(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
