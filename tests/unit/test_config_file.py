# SPDX-License-Identifier: Apache-2.0
"""gksm.toml: what it may say, and what is said about what it may not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import tomli
from gksmd.config import (
    Config,
    ConfigError,
    Size,
    Vault,
    encode_hook,
    listen_address,
    load_config,
)
from hypothesis import given
from hypothesis import strategies as st

CONFIGS = Path(__file__).parents[2] / "configs"


def load(folder: Path, text: str) -> Config:
    (folder / "gksm.toml").write_text(text, encoding="utf-8")
    return load_config(folder)


def test_a_missing_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_config(tmp_path / "nowhere") == Config()


def test_the_shipped_file_shows_every_key_with_its_default() -> None:
    text = (CONFIGS / "gksm.toml").read_text(encoding="utf-8")
    shown = tomli.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", text))
    expected = msgspec.to_builtins(Config(), enc_hook=encode_hook)
    expected["vault"]["mode"] = "service"  # what the unit beside it provides

    def sized(value: object) -> object:
        if isinstance(value, dict):
            return {key: sized(inner) for key, inner in value.items()}
        if isinstance(value, str) and re.fullmatch(r"\d+[KMGT]", value):
            return int(Size.parse(value))
        return list(value) if isinstance(value, tuple) else value

    assert sized(shown) == sized(expected)


def test_the_shipped_file_is_valid() -> None:
    config = load_config(CONFIGS)
    assert msgspec.structs.replace(config, vault=Vault()) == Config()


def test_a_key_that_is_left_out_of_a_table_keeps_its_default(tmp_path: Path) -> None:
    config = load(tmp_path, "[quota.container]\nconnections = 3")
    assert config.quota.container.connections == 3
    assert config.quota.container.published_pages == Config().quota.container.published_pages > 0


def test_run_dir_of_the_command_line_wins_and_takes_the_state_along(tmp_path: Path) -> None:
    load(tmp_path, 'run_dir = "/run/elsewhere"')
    config = load_config(tmp_path, tmp_path / "run")
    assert config.run_dir == tmp_path / "run"
    assert config.state_dir == tmp_path / "run" / "state"


@pytest.mark.parametrize(
    ("text", "key", "way_out"),
    [
        ("x = ", "not valid TOML", "correct it"),
        ("[load]\nload_wait_ms = 1\nload_wait_ms = 2", "not valid TOML", "correct it"),
        ("colour = 1", "colour", "known here"),
        ("[load]\nlease_deadlin_ms = 1", "load.lease_deadlin_ms", "lease_deadline_ms"),
        ("[quota.container]\nconection = 1", "quota.container.conection", "connections"),
        ('[load]\nload_wait_ms = "1"', "load.load_wait_ms", "default"),
        ("[load]\nload_wait_ms = 0", "load.load_wait_ms", ">= 1"),
        ("[load]\nload_wait_ms = 1.5", "load.load_wait_ms", "int"),
        ("[memory]\nhost_copy_bytes = true", "memory.host_copy_bytes", "64M"),
        ("[memory]\nhost_copy_bytes = -1", "memory.host_copy_bytes", "64M"),
        ('[memory]\nhost_copy_bytes = "12X"', "memory.host_copy_bytes", "64M"),
        ("[memory]\nreserve = true", "memory.reserve", "20%"),
        ('[memory]\nreserve = "101%"', "memory.reserve", "20%"),
        ('[memory]\nlow_water = "half"', "memory.low_water", "20%"),
        ('[memory]\nadmission = "lax"', "memory.admission", "strict"),
        ('[guard]\ndefault = "maybe"', "guard.default", "optimistic"),
        ("[guard]\nstall_budget_ms = 1001", "guard.stall_budget_ms", "<= 1000"),
        ("[bare]\nuids = [-1]", "bare.uids", ">= 0"),
        ('[bare]\nuids = ["root"]', "bare.uids", "int"),
        ('[identity]\ntrusted_sources = ["env"]', "identity.trusted_sources", "cgroup"),
        ("quota = 3", "quota", "correct it"),
        ('run_dir = ""', "run_dir", "path"),
        ('run_dir = "relative"', "run_dir", "absolute"),
        ('[metrics]\nlisten = "9838"', "metrics.listen", "127.0.0.1:9838"),
        ('[metrics]\nlisten = "host:99999"', "metrics.listen", "HOST:PORT"),
    ],
)
def test_a_wrong_file_is_told_by_file_key_and_way_out(
    tmp_path: Path, text: str, key: str, way_out: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    sentence = str(caught.value)
    assert str(tmp_path / "gksm.toml") in sentence or "run_dir" in key
    assert key in sentence
    assert way_out in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gksm.toml").write_bytes(b"run_dir = '\xff\xfe'")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path)


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    load(tmp_path, "")
    (tmp_path / "gksm.toml").chmod(0o646)
    with pytest.raises(ConfigError, match="chmod o-w"):
        load_config(tmp_path)


def test_a_run_dir_too_long_for_sockets_is_refused_before_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most"):
        load_config(tmp_path, tmp_path / ("x" * 90))


@pytest.mark.parametrize("module", ["gksmd.main"])
def test_gksmd_ends_with_status_2_and_one_line_when_the_configuration_is_wrong(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / "gksm.toml").write_text("colour = 1\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", module, "--config-dir", tmp_path, "--run-dir", tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "colour" in done.stderr


@given(st.integers(min_value=0, max_value=1 << 60))
def test_a_number_of_bytes_is_read_as_itself(count: int) -> None:
    assert Size.parse(count) == Size.parse(str(count)) == count


@given(st.integers(min_value=0, max_value=1 << 20), st.sampled_from("KMGT"))
def test_units_are_powers_of_1024(count: int, unit: str) -> None:
    factor = 1024 ** ("KMGT".index(unit) + 1)
    for text in (f"{count}{unit}", f"{count} {unit}iB", f"{count}{unit.lower()}"):
        assert Size.parse(text) == count * factor


@pytest.mark.parametrize("text", ["", "M", "1.5G", "-1", "1 Q", "0x10", "1G1"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        Size.parse(text)


def test_listen_addresses_of_both_families_are_understood() -> None:
    assert listen_address("127.0.0.1:9") == ("127.0.0.1", 9)
    assert listen_address("[::1]:9") == ("::1", 9)
    assert listen_address(":9") == ("", 9)
    for wrong in ("::1", "host", "host:", "host:x", "host:-1"):
        with pytest.raises(ValueError):  # noqa: PT011 -- int() has its own text
            listen_address(wrong)
