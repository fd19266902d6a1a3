/* SPDX-License-Identifier: Apache-2.0 */
/* The table of page.h as data. Nothing else in libgksm decides what an event does. */
#include "page.h"

#include "gksm/guard.h"

#define STATES (GKSM_PAGE_LOST + 1)
#define EVENTS (GKSM_ON_LOSE + 1)

#define GO(state) {GKSM_GO, GKSM_PAGE_##state, 0}
#define STAY {GKSM_STAY, 0, 0}
#define WAIT {GKSM_WAIT_IT, 0, 0}
#define NEVER {GKSM_NEVER, 0, 0}

/* Columns in the order of the comment: UNBACKED FILLING LOADING PRIVATE RELOAD MERGING
 * SHARED BUSY. */
#define ROW(event, unbacked, filling, loading, private, reload, merging, shared, busy) \
	[GKSM_ON_##event] = {                                                          \
		[GKSM_PAGE_FREE] = NEVER,      [GKSM_PAGE_UNBACKED] = unbacked,        \
		[GKSM_PAGE_FILLING] = filling, [GKSM_PAGE_LOADING] = loading,          \
		[GKSM_PAGE_PRIVATE] = private, [GKSM_PAGE_RELOAD] = reload,            \
		[GKSM_PAGE_MERGING] = merging, [GKSM_PAGE_SHARED] = shared,            \
		[GKSM_PAGE_BUSY] = busy,       [GKSM_PAGE_LOST] = STAY,                \
	}

static const struct gksm_page_rule table[EVENTS][STATES] = {
	ROW(LOAD_PART, GO(FILLING), GO(FILLING), WAIT, STAY, WAIT, GO(PRIVATE), GO(PRIVATE), WAIT),
	ROW(LOAD_FULL, GO(LOADING), GO(LOADING), WAIT, GO(RELOAD), WAIT, GO(PRIVATE), GO(PRIVATE),
	    WAIT),
	ROW(PROTECT, STAY, STAY, STAY, GO(MERGING), STAY, STAY, STAY, STAY),
	ROW(COMMIT, NEVER, NEVER, GO(SHARED), NEVER, GO(SHARED), GO(SHARED), NEVER, NEVER),
	ROW(ABANDON, NEVER, NEVER, GO(PRIVATE), NEVER, GO(PRIVATE), GO(PRIVATE), NEVER, NEVER),
	ROW(FAULT, GO(PRIVATE), GO(PRIVATE), GO(PRIVATE), STAY, STAY, GO(PRIVATE), GO(PRIVATE),
	    WAIT),
	ROW(API_WRITE, GO(PRIVATE), GO(PRIVATE), WAIT, STAY, WAIT, GO(PRIVATE), GO(PRIVATE), WAIT),
	ROW(COPY_READ, GO(PRIVATE), GO(PRIVATE), WAIT, STAY, STAY, STAY, STAY, WAIT),
	ROW(LAUNCH, GO(PRIVATE), GO(PRIVATE), WAIT, STAY, STAY, STAY, STAY, WAIT),
	ROW(SEAL, STAY, GO(PRIVATE), WAIT, GO(RELOAD), WAIT, STAY, STAY, WAIT),
	ROW(UNSHARE, STAY, STAY, STAY, STAY, STAY, STAY, GO(PRIVATE), WAIT),
	ROW(RELEASE, GO(FREE), GO(FREE), WAIT, GO(FREE), WAIT, GO(FREE), GO(FREE), WAIT),
	ROW(LOSE, GO(LOST), GO(LOST), GO(LOST), GO(LOST), GO(LOST), GO(LOST), GO(LOST), WAIT),
};

uint8_t gksm_page_guard_state(enum gksm_page_state state)
{
	switch (state) {
	case GKSM_PAGE_UNBACKED:
	case GKSM_PAGE_FILLING:
	case GKSM_PAGE_LOADING:
	case GKSM_PAGE_BUSY:
		return GKSM_STATE_HOLD_ALL;
	case GKSM_PAGE_MERGING:
	case GKSM_PAGE_SHARED:
		return GKSM_STATE_HOLD_WRITES;
	case GKSM_PAGE_FREE:
	case GKSM_PAGE_PRIVATE:
	case GKSM_PAGE_RELOAD:
	case GKSM_PAGE_LOST:
		return GKSM_STATE_PASS;
	}
	return GKSM_STATE_PASS;
}

struct gksm_page_rule gksm_page_rule(enum gksm_page_state state, enum gksm_page_event event)
{
	struct gksm_page_rule rule = NEVER;

	if ((unsigned)state >= STATES || (unsigned)event >= EVENTS)
		return rule;
	rule = table[event][state];
	/* Freeing ends a page's life whatever became of its context. */
	if (event == GKSM_ON_RELEASE && state == GKSM_PAGE_LOST)
		rule = (struct gksm_page_rule)GO(FREE);
	if (rule.verdict == GKSM_GO)
		rule.guard_state = gksm_page_guard_state(rule.next);
	return rule;
}

const char *gksm_page_state_name(enum gksm_page_state state)
{
	static const char *const names[] = {
#define X(name) #name,
		GKSM_PAGE_STATES(X)
#undef X
	};
	return (unsigned)state < STATES ? names[state] : "?";
}

const char *gksm_page_event_name(enum gksm_page_event event)
{
	static const char *const names[] = {
#define X(name) #name,
		GKSM_PAGE_EVENTS(X)
#undef X
	};
	return (unsigned)event < EVENTS ? names[event] : "?";
}
