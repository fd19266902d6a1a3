# SPDX-License-Identifier: Apache-2.0
"""gksmd, gksm-vault and gksmctl."""

__version__ = "0.1.0"
