# SPDX-License-Identifier: Apache-2.0
"""N processes load one real model; gKSM keeps one copy of it."""
