/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scanner finds equal pages that the load path did not see: what kernels wrote, what
 * came from another page or from pinned memory, what was loaded without gksmd.
 *
 *   scan.c        when to look: the thread, its interval, orders from gksmd
 *   scan_pass.c   one pass: pages that did not change since the last looks are stable
 *   scan_offer.c  stable pages are offered to gksmd, and its answers carried out:
 *   scan_merge.c  a page becomes the published one, or is replaced by it
 *
 * A pass reads every private page once, by a copy to the host, and hashes it. One whose
 * hash stays the same for `stable_hashes` passes is stable; a page that was written
 * wholly from another page for two. The order of a merge is KSM's (mm/ksm.c):
 *
 *   1. The page is protected: it stays mapped, read-only (MERGING). A kernel's write is
 *      a held fault that gives the right to write back; a copy or set does so itself.
 *      Either way the writer waits for one change of access and nothing else.
 *   2. It is read again, through a mapping of its own, and compared with the published
 *      page byte by byte, or hashed again if it is to be published itself.
 *   3. It is taken. If a write came first it cannot be: the merge is dropped.
 *   4. It is mapped to the published page, and its own memory released.
 *
 * Only under a fault guard: 1 and 4 change mappings that kernels use at that moment.
 * Pages that copy engines are at, and pinned ones, are left alone (marks.h).
 */
#ifndef GKSM_SCAN_H
#define GKSM_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "gksm/protocol.h"

struct gksm_gpu;

/* Starts the thread. Once, when the fault guard is in force. 0 or a negative errno. */
int gksm_scan_start(struct gksm_gpu *gpu);

/* gksmd's word on how to look. Does not wait. */
void gksm_scan_terms_set(struct gksm_gpu *gpu, const struct gksm_scan_terms *terms);

/* Pages that were NOTED can be merged now. Does not wait. */
void gksm_scan_offer_again(struct gksm_gpu *gpu);

/* Memory is short: looks at once, and for once as fast as it can. Does not wait. */
void gksm_scan_hurry(struct gksm_gpu *gpu);

/* The number of the last pass that was asked for and is finished. */
uint32_t gksm_scan_passed(struct gksm_gpu *gpu);

/* true: the pass was one of the last few: what it merged was not stable after all, if it
 * is written to now. */
bool gksm_scan_recent(const struct gksm_gpu *gpu, uint32_t pass);

#endif
