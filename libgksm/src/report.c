/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda_abi.h"
#include "gksm/gksm.h"
#include "link.h"
#include "process.h"
#include "sync.h"

#define RECORDS 64
#define TEXT_BYTES 240

struct record {
	struct gksm_mutex lock; /* only ever tried: a record is rather lost than waited for */
	uint64_t number;	/* of the record it holds, from 1; 0: none */
	enum gksm_severity severity;
	bool sent;
	char text[TEXT_BYTES];
};

static struct record ring[RECORDS];
static _Atomic uint64_t records; /* how many there ever were */

void gksm_report(struct gksm *process, enum gksm_severity severity, const char *format, ...)
{
	uint64_t number = atomic_fetch_add(&records, 1) + 1;
	struct record *record = &ring[number % RECORDS];
	char text[TEXT_BYTES];
	struct gksm *sender = process ? process : gksm_process();
	struct gksm_link *link = sender ? sender->link : NULL;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (gksm_mutex_try_lock(&record->lock)) {
		record->number = number;
		record->severity = severity;
		record->sent = link != NULL;
		memcpy(record->text, text, sizeof(text));
		gksm_mutex_unlock(&record->lock);
	}
	if (link)
		gksm_link_report(link, severity, text);
}

/* A copy of the record of that number; false: it is overwritten or being written. */
static bool read_record(uint64_t number, struct record *copy)
{
	struct record *record = &ring[number % RECORDS];

	if (!gksm_mutex_try_lock(&record->lock))
		return false;
	copy->number = record->number;
	copy->severity = record->severity;
	copy->sent = record->sent;
	memcpy(copy->text, record->text, sizeof(copy->text));
	gksm_mutex_unlock(&record->lock);
	return copy->number == number;
}

static uint64_t oldest(uint64_t newest)
{
	return newest > RECORDS ? newest - RECORDS + 1 : 1;
}

void gksm_report_flush(struct gksm *process)
{
	uint64_t newest = atomic_load(&records);
	struct record copy;

	if (!process->link)
		return;
	for (uint64_t number = oldest(newest); number <= newest; number++)
		if (read_record(number, &copy) && !copy.sent)
			gksm_link_report(process->link, copy.severity, copy.text);
}

GKSM_EXPORT size_t gksm_records(char *text, size_t bytes)
{
	static const char *const names[] = {"debug", "info", "warning", "error"};
	uint64_t newest = atomic_load(&records);
	struct record copy;
	size_t used = 0;

	if (bytes > 0)
		text[0] = '\0';
	for (uint64_t number = oldest(newest); number <= newest; number++) {
		int length;

		if (!read_record(number, &copy))
			continue;
		length = snprintf(text + used, bytes - used, "%s: %s\n", names[copy.severity & 3],
				  copy.text);
		if (length < 0 || (size_t)length >= bytes - used) {
			if (used < bytes)
				text[used] = '\0';
			break;
		}
		used += (size_t)length;
	}
	return used;
}
