# SPDX-License-Identifier: Apache-2.0
"""The trust domains in force, and how they are read again."""

from __future__ import annotations

from pathlib import Path

from gksmd.config import Config
from gksmd.domain_files import load_domains
from gksmd.domains import Decision, DomainSet, Subject


class Policy:
    """Decides domains. Who has one keeps it when the files change."""

    def __init__(self, config: Config, config_dir: Path) -> None:
        """Read the domains of ``config_dir``. Raises ConfigError."""
        self.config = config
        self.config_dir = config_dir
        self.domains: DomainSet = load_domains(config_dir, config.identity.trusted_sources)

    def reload(self) -> DomainSet:
        """Read them again; on ConfigError those in force stay in force."""
        self.domains = load_domains(self.config_dir, self.config.identity.trusted_sources)
        return self.domains

    def decide(self, subject: Subject) -> Decision:
        """The domain of somebody new."""
        return self.domains.decide(subject, bare_default=self.config.bare.default_domain)
