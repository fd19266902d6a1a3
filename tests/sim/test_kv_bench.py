# SPDX-License-Identifier: Apache-2.0
"""The KV bench, small: what it must find whatever the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.pages import PAGE

WEIGHTS, OTHER, LATE = 48, 4, 12
SMALL = ["--instances", "2", "--intervals", "24", "--weights", str(WEIGHTS), "--pool", "96"]


def test_instances_that_serve_share_what_stays_the_same_and_find_every_token(
    build: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *[sys.executable, "-m", "gksm_bench.kv", "--build", str(build), *SMALL],
            *[
                "--other",
                str(OTHER),
                "--per-tick",
                "0.2",
                "--png",
                str(tmp_path / "kv.png"),
                "--json",
            ],
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["good"]
    assert (tmp_path / "kv.png").read_bytes().startswith(b"\x89PNG")
    assert result["wrong_tokens"] == result["churning"] == 0
    late = result["samples"][LATE:]
    assert all(each["saved"]["weights"] == WEIGHTS * PAGE for each in late)
    # Half of it differs from instance to instance.
    assert all(each["saved"]["other"] == OTHER // 2 * PAGE for each in late)
    assert any(each["saved"]["kv"] for each in late)
    assert any(each["running"] for each in late)
