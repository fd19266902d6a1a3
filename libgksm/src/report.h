/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records about what libgksm did or could not do. They are kept in a ring of the
 * last 64 and go to gksmd when there is a link; never to stdout or stderr. Bounded
 * in time and memory, waits for nobody, allocates nothing.
 */
#ifndef GKSM_REPORT_H
#define GKSM_REPORT_H

#include <stddef.h>

#include "gksm/protocol.h"

struct gksm;

/* process may be NULL: the one that is active, if any. Text is cut at 239 bytes. */
void gksm_report(struct gksm *process, enum gksm_severity severity, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Sends what the ring holds from before there was a link. */
void gksm_report_flush(struct gksm *process);

#endif
