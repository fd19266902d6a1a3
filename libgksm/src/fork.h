/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forked child must not keep: our descriptors. Every long-lived descriptor
 * of libgksm (sockets, event fds, memfds) is opened CLOEXEC and named here, and
 * the child closes it first thing after fork(). Lock-free, any thread.
 */
#ifndef GKSM_FORK_H
#define GKSM_FORK_H

/* Right after it was opened. fd < 0 is ignored. */
void gksm_fd_opened(int fd);

/* Right before it is closed, so that nobody else's descriptor of the same number
 * is ever closed in a child. */
void gksm_fd_closed(int fd);

/* Names the descriptor no longer and closes it. fd < 0 is ignored. */
void gksm_fd_close(int fd);

/* Installs the child's handler; once, at the first successful cuInit. 0 or a
 * negative errno. */
int gksm_fork_watch(void);

#endif
