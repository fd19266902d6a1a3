# SPDX-License-Identifier: Apache-2.0
"""Who is put into which trust domain."""

from __future__ import annotations

import itertools
import re

import pytest
from gksmd.domains import (
    DOMAIN_NAME_MAX,
    Container,
    Domain,
    DomainError,
    DomainSet,
    Rule,
    Selector,
    Subject,
    check_name,
    glob_match,
    glob_overlap,
    match_all,
)
from hypothesis import given
from hypothesis import strategies as st


def rule(*selectors: str) -> Rule:
    return Rule(tuple(Selector.parse(text) for text in selectors))


def domains(**rules: list[str]) -> DomainSet:
    return DomainSet(tuple(Domain(name, rule=rule(*found)) for name, found in rules.items()))


def box(engine: str = "docker", **facts: object) -> Subject:
    facts = {"id": "0123456789abcdef" * 4} | facts
    return Subject(uid=0, container=Container(engine=engine, **facts))  # type: ignore[arg-type]


def pod(namespace: str = "a", **facts: object) -> Subject:
    return box("cri", k8s_namespace=namespace, **facts)


def bare(uid: int = 1000, **facts: object) -> Subject:
    return Subject(uid=uid, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("selectors", "subject"),
    [
        (["uid=1000"], bare(1000)),
        (["uid=999", "uid=1000"], bare(1000)),
        (["uid=*", "cgroup=/user.slice"], bare(7, cgroup="/user.slice/user-7.slice")),
        (["container-name=llm-?"], box(name="llm-1")),
        (["image=registry/vllm:*"], box(image="registry/vllm:0.9")),
        (["image-digest=sha256:ab"], box(image_digest="sha256:ab")),
        (["label.team=a"], box(labels={"team": "a"})),
        (["k8s-namespace=a"], pod("a")),
        (["k8s-serviceaccount=a/llm"], pod("a", k8s_serviceaccount="llm")),
        (["k8s-namespace=a", "image=vllm*"], pod("a", image="vllm:1")),
        ([], bare()),
    ],
)
def test_a_rule_takes_whom_it_describes(selectors: list[str], subject: Subject) -> None:
    assert rule(*selectors).matches(subject)


@pytest.mark.parametrize(
    ("selectors", "subject"),
    [
        (["uid=1000"], bare(1001)),
        (["uid=100"], bare(1000)),
        (["uid=0"], box()),  # the root of a container is not the host's
        (["cgroup=/user"], bare(cgroup="/user.slice")),
        (["cgroup=/a"], bare(cgroup="")),
        (["image=vllm"], box(image="vllm:1")),
        (["label.team=a"], box(labels={"Team": "a"})),
        (["label.team=*"], box()),
        (["k8s-namespace=a"], pod("b")),
        (["k8s-namespace=a", "image=vllm*"], pod("a", image="sglang")),
        (["k8s-serviceaccount=a/llm"], pod("b", k8s_serviceaccount="llm")),
        (["uid=*", "image=*"], box(image="x")),
    ],
)
def test_a_rule_takes_nobody_else(selectors: list[str], subject: Subject) -> None:
    assert not rule(*selectors).matches(subject)


def test_facts_of_kubernetes_count_only_from_its_own_runtime() -> None:
    """`docker run --annotation` can say anything."""
    forged = box("docker", k8s_namespace="victim", k8s_serviceaccount="llm")
    assert not rule("k8s-namespace=victim").matches(forged)
    assert not rule("k8s-serviceaccount=victim/llm").matches(forged)


@pytest.mark.parametrize("selector", ["image=vllm", "container-name=vllm", "label.a=vllm"])
def test_what_a_pods_author_chooses_does_not_choose_the_domain_alone(selector: str) -> None:
    chosen = pod("attacker", image="vllm", name="vllm", labels={"a": "vllm"})
    assert not rule(selector).matches(chosen)
    assert rule(selector, "k8s-namespace=attacker").matches(chosen)
    assert not rule(selector, "k8s-namespace=victim").matches(chosen)


def test_the_first_rule_in_order_decides() -> None:
    both = bare(1000, cgroup="/a/b")
    assert domains(x=["uid=1000"], y=["cgroup=/a"]).decide(both).domain.name == "x"
    assert domains(y=["cgroup=/a"], x=["uid=1000"]).decide(both).domain.name == "y"


def test_the_reason_names_the_rule() -> None:
    assert "uid=1000" in domains(x=["uid=1000"]).decide(bare(1000)).reason


def test_without_a_rule_a_container_is_alone() -> None:
    names = {DomainSet().decide(box(id=f"{i:064x}")).domain.name for i in range(50)}
    assert len(names) == 50
    assert all(name.startswith("container:") for name in names)


def test_without_a_rule_a_process_is_alone_even_from_one_that_had_its_pid() -> None:
    first = DomainSet().decide(bare(1000, pid=7, start_time=1)).domain.name
    second = DomainSet().decide(bare(1000, pid=7, start_time=2)).domain.name
    assert first != second


def test_processes_of_one_uid_are_together_only_if_configured() -> None:
    one, two = bare(1000, pid=1), bare(1000, pid=2)
    assert DomainSet().decide(one).domain.name != DomainSet().decide(two).domain.name
    by_uid = [DomainSet().decide(s, bare_default="uid").domain.name for s in (one, two)]
    assert by_uid == ["uid:1000", "uid:1000"]


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=200),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=200),
)
def test_default_domains_fit_the_wire_and_never_meet(first: str, second: str) -> None:
    names = [DomainSet().decide(box(id=text)).domain.name for text in (first, second)]
    assert all(len(name.encode()) <= DOMAIN_NAME_MAX for name in names)
    assert (names[0] == names[1]) == (first == second)


@given(st.text(min_size=1, max_size=70))
def test_no_configured_name_is_a_default_one(name: str) -> None:
    try:
        check_name(name)
    except DomainError:
        return
    assert ":" not in name
    assert len(name.encode()) <= DOMAIN_NAME_MAX


@pytest.mark.parametrize(
    "text",
    [
        "uid", "env=GKSM_DOMAIN", "annotation=x", "=x", "label=x", "label.=x", "uid.x=1",
        "uid=root", "k8s-serviceaccount=llm", "image=a\nb", "image=" + "x" * 600,
    ],
)  # fmt: skip
def test_a_selector_that_cannot_be_trusted_or_read_is_refused(text: str) -> None:
    with pytest.raises(DomainError):
        Selector.parse(text)


@pytest.mark.parametrize(
    "selectors",
    [[], ["uid=*"], ["uid="], ["image=**"], ["image=?*"], ["uid=1000", "uid=*"], ["cgroup=/"],
     ["label.team=*"], ["k8s-namespace=*", "image=*"], ["k8s-serviceaccount=*"]],
)  # fmt: skip
def test_a_rule_that_takes_everybody_is_recognised(selectors: list[str]) -> None:
    assert rule(*selectors).trusts_all


@pytest.mark.parametrize(
    "selectors",
    [["uid=1*"], ["image=?"], ["image=??*"], ["k8s-namespace=a", "image=*"], ["cgroup=/a"]],
)
def test_a_rule_that_is_narrowed_is_not_taken_for_one_for_everybody(selectors: list[str]) -> None:
    assert not rule(*selectors).trusts_all


GLOBS = st.text("ab/*?", max_size=7)
TEXTS = st.text("ab/", max_size=7)


@given(GLOBS, TEXTS)
def test_wildcards_mean_what_they_say(pattern: str, text: str) -> None:
    expression = pattern.replace("*", ".*").replace("?", ".")
    assert glob_match(pattern, text) == bool(re.fullmatch(expression, text))


@given(GLOBS, GLOBS, TEXTS)
def test_patterns_that_one_text_matches_overlap(left: str, right: str, text: str) -> None:
    if glob_match(left, text) and glob_match(right, text):
        assert glob_overlap(left, right)


SHORT = st.text("ab*?", max_size=3)
# The shortest text that both match has no letter that neither asks for.
ALL_TEXTS = ["".join(t) for size in range(7) for t in itertools.product("ab", repeat=size)]


@given(SHORT, SHORT)
def test_overlap_is_exact(left: str, right: str) -> None:
    common = any(glob_match(left, text) and glob_match(right, text) for text in ALL_TEXTS)
    assert glob_overlap(left, right) == common


@given(TEXTS, GLOBS)
def test_a_pattern_for_everything_takes_everything(text: str, pattern: str) -> None:
    if match_all(pattern) and text:
        assert glob_match(pattern, text)


SELECTORS = st.one_of(
    st.sampled_from(["uid=1", "uid=1?", "uid=*", "cgroup=/a", "cgroup=/a/b", "cgroup=/*/b"]),
    st.sampled_from(["image=x", "image=x*", "container-name=n", "label.k=v", "label.l=*"]),
    st.sampled_from(["k8s-namespace=a", "k8s-namespace=*", "k8s-serviceaccount=a/s"]),
)
RULES = st.lists(SELECTORS, max_size=3).map(lambda found: rule(*found))
SUBJECTS = st.one_of(
    st.builds(bare, st.sampled_from([1, 12]), cgroup=st.sampled_from(["", "/a", "/a/b", "/c/b"])),
    st.builds(
        box,
        st.sampled_from(["docker", "cri"]),
        name=st.sampled_from(["", "n"]),
        image=st.sampled_from(["", "x", "xy"]),
        labels=st.sampled_from([{}, {"k": "v"}, {"k": "v", "l": "w"}]),
        k8s_namespace=st.sampled_from(["", "a", "b"]),
        k8s_serviceaccount=st.sampled_from(["", "s"]),
    ),
)


@given(RULES, RULES, SUBJECTS)
def test_rules_that_one_subject_matches_are_never_called_apart(
    left: Rule, right: Rule, subject: Subject
) -> None:
    if left.matches(subject) and right.matches(subject):
        assert left.overlaps(right)
        assert right.overlaps(left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["uid=1"], ["uid=2"]),
        (["uid=1*"], ["uid=2*"]),
        (["uid=1"], ["image=x"]),
        (["k8s-namespace=a", "image=*"], ["k8s-namespace=b", "image=*"]),
        (["cgroup=/a"], ["cgroup=/b"]),
        (["label.team=a"], ["label.team=b"]),
    ],
)
def test_rules_that_nobody_can_match_both_need_no_order(left: list[str], right: list[str]) -> None:
    assert not rule(*left).overlaps(rule(*right))
