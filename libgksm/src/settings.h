/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GKSM_SETTINGS_H
#define GKSM_SETTINGS_H

struct gksm_settings;

/* Fills every member: from the environment, or the default. */
void gksm_settings_read(struct gksm_settings *settings);

#endif
