# SPDX-License-Identifier: Apache-2.0
"""The simulated driver: C sources in src/, what is generated for them in gen/."""
