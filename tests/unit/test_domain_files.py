# SPDX-License-Identifier: Apache-2.0
"""domains.toml and domains.d: their order, and the files that gksmctl writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli
from gksmd.config import Config, ConfigError, Size, convert
from gksmd.domain_files import (
    DomainFile,
    Entry,
    is_ours,
    load_domains,
    remove_entry,
    render,
    write_entry,
)
from gksmd.domains import Subject
from hypothesis import given
from hypothesis import strategies as st

TRUSTED = Config().identity.trusted_sources


def domain(name: str, match: str, more: str = "") -> str:
    return f'[[domain]]\nname = "{name}"\nmatch = ["{match}"]\n{more}\n'


def names(folder: Path) -> list[str]:
    return [found.name for found in load_domains(folder, TRUSTED)]


def put(folder: Path, **files: str) -> None:
    (folder / "domains.d").mkdir(exist_ok=True)
    for name, text in files.items():
        path = folder / "domains.toml" if name == "main" else folder / "domains.d" / f"{name}.toml"
        path.write_text(text, encoding="utf-8")


def test_no_file_is_no_domain(tmp_path: Path) -> None:
    assert names(tmp_path / "nowhere") == []


def test_the_shipped_sample_is_valid_as_it_is_and_uncommented(tmp_path: Path) -> None:
    sample = (Path(__file__).parents[2] / "configs" / "domains.toml").read_text(encoding="utf-8")
    put(tmp_path, main=sample)
    assert names(tmp_path) == []
    lines = sample[sample.index("# [[domain]]") :].splitlines()
    put(tmp_path, main="\n".join(line.removeprefix("# ").removeprefix("#") for line in lines))
    assert names(tmp_path) == ["team-a", "llama"]


def test_domains_of_one_file_are_tried_as_they_stand_there(tmp_path: Path) -> None:
    put(tmp_path, main=domain("b", "uid=1*") + domain("a", "uid=10"))
    assert names(tmp_path) == ["b", "a"]


def test_files_that_cannot_meet_need_no_order(tmp_path: Path) -> None:
    put(tmp_path, b=domain("b", "uid=1"), a=domain("a", "uid=2"))
    assert names(tmp_path) == ["a", "b"]


def test_overlapping_rules_need_an_explicit_order(tmp_path: Path) -> None:
    put(tmp_path, a=domain("a", "uid=1"), b=domain("b", "uid=*1"))
    with pytest.raises(ConfigError, match=r'before = \["a"\]'):
        names(tmp_path)
    put(tmp_path, b=domain("b", "uid=*1", 'before = ["a"]'))
    assert names(tmp_path) == ["b", "a"]
    put(tmp_path, b=domain("b", "uid=*1", 'after = ["a"]'))
    assert names(tmp_path) == ["a", "b"]


def test_a_file_of_domains_d_must_be_ordered_against_the_hand_written_too(tmp_path: Path) -> None:
    put(tmp_path, main=domain("hand", "uid=1"), a=domain("a", "uid=1?"))
    assert names(tmp_path) == ["hand", "a"]
    put(tmp_path, a=domain("a", "uid=?"))
    with pytest.raises(ConfigError, match="can match one container"):
        names(tmp_path)


def test_an_order_holds_through_others(tmp_path: Path) -> None:
    put(
        tmp_path,
        a=domain("a", "uid=1", 'before = ["b"]'),
        b=domain("b", "uid=2", 'before = ["c"]'),
        c=domain("c", "uid=?", ""),
    )
    assert names(tmp_path) == ["a", "b", "c"]


def test_an_order_in_a_circle_is_refused(tmp_path: Path) -> None:
    put(
        tmp_path,
        a=domain("a", "uid=1", 'before = ["b"]'),
        b=domain("b", "uid=2", 'before = ["a"]'),
    )
    with pytest.raises(ConfigError, match="circle"):
        names(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[domain]]\nmatch = []", "name is missing"),
        (domain("x", "uid=1", "budgte = 1"), 'did you mean "budget"'),
        (domain("x", "uid=1", 'budget = "lots"'), "domain.budget"),
        (domain("x", "uid=1", 'share = ["everything"]'), "weights, kv, other"),
        (domain("x", "uid=1", "share = []"), "share is empty"),
        (domain("x", "uid=1", 'guard = "none"'), "domain.guard"),
        (domain("x", "env=1"), "not a source"),
        (domain("x", "label.team=a"), "trusted_sources"),
        (domain("x", "uid=*"), "trust_all = true"),
        ('[[domain]]\nname = "x"', "trust_all = true"),
        (domain("X", "uid=1"), "cannot be a domain's name"),
        (domain("container:1", "uid=1"), "cannot be a domain's name"),
        (domain("x", "uid=1") + domain("x", "uid=2"), "stands in"),
        ("[[domian]]", 'did you mean "domain"'),
        ("[[domain]", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_told_by_file_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    put(tmp_path, x=text)
    with pytest.raises(ConfigError) as caught:
        names(tmp_path)
    assert str(tmp_path / "domains.d" / "x.toml") in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    put(tmp_path, x=domain("x", "uid=1"))
    (tmp_path / "domains.d" / "x.toml").chmod(0o646)
    with pytest.raises(ConfigError, match="chmod o-w"):
        names(tmp_path)


def test_labels_choose_domains_only_if_the_operator_trusts_them(tmp_path: Path) -> None:
    put(tmp_path, x=domain("x", "label.team=a"))
    assert [d.name for d in load_domains(tmp_path, (*TRUSTED, "label"))] == ["x"]


def test_everybody_can_be_trusted_by_saying_so(tmp_path: Path) -> None:
    put(tmp_path, x='[[domain]]\nname = "x"\ntrust_all = true')
    found = load_domains(tmp_path, TRUSTED)
    assert found.decide(Subject(uid=12345)).domain.name == "x"


ENTRIES = st.builds(
    Entry,
    name=st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True),
    match=st.lists(st.sampled_from(["uid=1", 'image=a"b\\c', "image=\u00e9*"]), min_size=1).map(
        tuple
    ),
    share=st.lists(st.sampled_from(["weights", "kv", "other"]), min_size=1, unique=True).map(tuple),
    guard=st.sampled_from([None, "fault", "off"]),
    budget=st.integers(min_value=0, max_value=1 << 50).map(Size),
    host_copies=st.none() | st.integers(min_value=0, max_value=1 << 50).map(Size),
    before=st.lists(st.sampled_from(["p", "q"]), unique=True).map(tuple),
    after=st.lists(st.sampled_from(["r", "s"]), unique=True).map(tuple),
    trust_all=st.booleans(),
)


@given(ENTRIES)
def test_what_gksmctl_writes_is_read_as_the_same(entry: Entry) -> None:
    table = tomli.loads(render(entry))
    assert convert(table, DomainFile, Path("x")).domain == (entry,)


def test_gksmctl_knows_its_own_files_and_deletes_no_other(tmp_path: Path) -> None:
    path = write_entry(tmp_path, Entry(name="mine", match=("uid=1",)))
    put(tmp_path, hand=domain("hand", "uid=2"))
    assert is_ours(path)
    assert not is_ours(tmp_path / "domains.d" / "hand.toml")
    with pytest.raises(ConfigError, match="not added by gksmctl"):
        remove_entry(tmp_path, "hand")
    assert remove_entry(tmp_path, "mine") == path
    assert names(tmp_path) == ["hand"]
