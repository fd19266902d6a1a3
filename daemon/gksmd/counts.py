# SPDX-License-Identifier: Apache-2.0
"""What gksmd counts: use of a quota, what an instance reports, what happened since the start."""

from __future__ import annotations

from dataclasses import dataclass, field

UNSHARED_REASONS = 16
SCANS = ("full_scans", "merged_pages", "dropped_merges", "churned_merges")  # of Usage


@dataclass(slots=True)
class QuotaUse:
    """What one container, bare process or domain uses of its quota now."""

    connections: int = 0
    bytes_in_flight: int = 0
    published_pages: int = 0
    host_copy_bytes: int = 0
    lookup_tokens: float = 0.0  # token bucket; filled at the first look-up
    lookup_time: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)  # by name of the quota


@dataclass(slots=True)
class Usage:
    """Absolute counts an instance reported last; names and order as in protocol.h."""

    virtual_pages: int = 0
    unbacked_pages: int = 0
    private_pages: int = 0
    shared_pages: int = 0
    spare_pages: int = 0
    foreign_bytes: int = 0
    cow_events: int = 0
    cow_ns_total: int = 0
    cow_ns_max: int = 0
    api_detaches: int = 0
    first_touches: int = 0
    loaded_pages: int = 0
    attached_pages: int = 0
    unshared: tuple[int, ...] = (0,) * UNSHARED_REASONS
    zero_pages: int = 0
    full_scans: int = 0
    stable_pages: int = 0
    volatile_pages: int = 0
    scanned_pages: int = 0
    merged_pages: int = 0
    dropped_merges: int = 0
    churned_merges: int = 0
    scan_ns_total: int = 0
    scan_pass: int = 0


@dataclass(slots=True)
class Counters:
    """Since the daemon started; they never fall."""

    connections: int = 0
    connections_refused: int = 0
    protocol_errors: int = 0
    slow_peers: int = 0
    lookups: int = 0
    hits: int = 0
    leases: int = 0
    leases_lapsed: int = 0
    pending: int = 0
    refused: int = 0
    published: int = 0
    publish_stale: int = 0
    pages_dropped: int = 0
    commits_refused: int = 0
    pressures: int = 0
    fds_exhausted: int = 0
    vault_reconnects: int = 0
