# SPDX-License-Identifier: Apache-2.0
"""gksm-vault: holds the descriptors of published pages. No policy, almost no code."""
