/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a page once gksmd has answered its publication. */
#ifndef GKSM_NAMED_H
#define GKSM_NAMED_H

#include <stdbool.h>
#include <stdint.h>

#include "gksm/protocol.h"

struct gksm_gpu;

/*
 * gksmd's word on a page that is SHARED with no id yet: it gets its id, or, refused,
 * becomes private again if `may_open` says that a hole is safe now. A page that was
 * written to meanwhile has left; gksmd is told.
 */
void gksm_page_named(struct gksm_gpu *gpu, uint64_t index, const struct gksm_publish_result *said,
		     bool may_open);

#endif
