#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The demo where a container's defaults bite: /dev/shm has 64 MiB, as Docker gives it.
# Needs root for a mount namespace of its own. Extra arguments go to the demo.
set -eu
cd "$(dirname "$0")/../.."
exec unshare --mount --propagation private sh -eu -c '
	mount -t tmpfs -o size=64m,nosuid,nodev,noexec shm /dev/shm
	make demo ARGS="--json $*"
' sh "$@"
