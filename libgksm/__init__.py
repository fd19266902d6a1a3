# SPDX-License-Identifier: Apache-2.0
"""Only its generator is Python; the library is C, below src/."""
