# SPDX-License-Identifier: Apache-2.0
"""gksmctl: what operators see of gKSM and may do to it."""
