/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "process.h"
#include "report.h"

#define DEFAULT_SOCKET "/run/gksm/gksm.sock"
#define DEFAULT_HELLO_WAIT_MS 1000u

/* NULL where the program has more rights than its user: the user's environment
 * must not choose whom it talks to. */
static const char *variable(const char *name)
{
	const char *value = getauxval(AT_SECURE) ? NULL : getenv(name);

	return value && *value ? value : NULL;
}

/* Not strtoul: on glibc 2.38 that is a new symbol, whatever the standard asked for. */
static bool parse_decimal(const char *text, unsigned *value)
{
	unsigned long sum = 0;

	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		sum = sum * 10 + (unsigned long)(*text - '0');
		if (sum > INT_MAX)
			return false;
	}
	*value = (unsigned)sum;
	return true;
}

static unsigned milliseconds(const char *name, unsigned fallback)
{
	const char *text = variable(name);
	unsigned value;

	if (!text)
		return fallback;
	if (!parse_decimal(text, &value)) {
		gksm_report(NULL, GKSM_WARNING, "%s is no number of milliseconds: using %u", name,
			    fallback);
		return fallback;
	}
	return value;
}

void gksm_settings_read(struct gksm_settings *settings)
{
	const char *disable = variable("GKSM_DISABLE"), *socket = variable("GKSM_SOCKET");

	memset(settings, 0, sizeof(*settings));
	settings->disabled = disable && strcmp(disable, "0") != 0;
	if (socket && strlen(socket) >= sizeof(settings->socket_path)) {
		gksm_report(NULL, GKSM_WARNING,
			    "GKSM_SOCKET is longer than a socket's path may be (%zu): using %s",
			    sizeof(settings->socket_path) - 1, DEFAULT_SOCKET);
		socket = NULL;
	}
	snprintf(settings->socket_path, sizeof(settings->socket_path), "%s",
		 socket ? socket : DEFAULT_SOCKET);
	snprintf(settings->driver_path, sizeof(settings->driver_path), "%s", gksm_driver_path());
	settings->hello_wait_ms = milliseconds("GKSM_HELLO_WAIT_MS", DEFAULT_HELLO_WAIT_MS);
}
