# SPDX-License-Identifier: Apache-2.0
"""install.sh into a folder, as whoever runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli

ROOT = Path(__file__).parents[2]
SOURCES = ("install.sh", "pyproject.toml", "setup.py", "LICENSE", "daemon", "configs")
LIBDIR = "usr/local/lib/gksm"

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Tree:
    """A copy of the sources, and where they are installed."""

    source: Path
    build: Path
    destdir: Path

    def run(self, *arguments: str, destdir: Path | None = None) -> str:
        done = self.attempt(*arguments, destdir=destdir)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(
        self, *arguments: str, destdir: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        wheelhouse = os.environ.get("WHEELHOUSE")
        more = ["--wheelhouse", wheelhouse] if wheelhouse else []
        return subprocess.run(
            [
                "sh", self.source / "install.sh", "--destdir", destdir or self.destdir,
                "--build", self.build, *more, *arguments,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )  # fmt: skip

    def listing(self, destdir: Path | None = None) -> dict[str, tuple[int, int]]:
        """Every path with its inode and time of change."""
        root = destdir or self.destdir
        return {
            str(path.relative_to(root)): (path.lstat().st_ino, path.lstat().st_mtime_ns)
            for path in root.rglob("*")
            if not path.is_dir() or path.is_symlink()
        }


def copy_sources(to: Path) -> None:
    to.mkdir()
    for name in SOURCES:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, to / name)
    shutil.copytree(ROOT / "libgksm" / "include", to / "libgksm" / "include")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, build_library: Path) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("install")
    copy_sources(folder / "source")
    (folder / "build").mkdir()
    shutil.copy(build_library, folder / "build" / "libgksm.so")
    made = Tree(folder / "source", folder / "build", folder / "root")
    made.run()
    yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def build_library() -> Path:
    library = Path(os.environ.get("GKSM_BUILD", ROOT / "build" / "release")) / "libgksm.so"
    assert library.exists(), f"{library} is not there; run make first"
    return library


def link_modules(source: str, to: str) -> None:
    """Copy a file; the many that nothing writes to are linked."""
    if "/venv/" in source:
        os.link(source, to, follow_symlinks=False)
    else:
        shutil.copy2(source, to, follow_symlinks=False)


@pytest.fixture
def copy(tree: Tree, tmp_path: Path) -> Tree:
    """The same installation again, to be changed."""
    shutil.copytree(tree.destdir, tmp_path / "root", symlinks=True, copy_function=link_modules)
    shutil.copytree(tree.build, tmp_path / "build")
    shutil.copytree(tree.source, tmp_path / "source")
    return Tree(tmp_path / "source", tmp_path / "build", tmp_path / "root")


def test_the_library_lies_under_its_version(tree: Tree) -> None:
    version = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    library = tree.destdir / LIBDIR / version / "libgksm.so"
    assert library.read_bytes() == (tree.build / "libgksm.so").read_bytes()
    assert (tree.destdir / LIBDIR / "current").readlink() == Path(version)


def test_commands_and_units_name_their_final_place_and_never_destdir(tree: Tree) -> None:
    for name in ("gksmd", "gksm-vault", "gksmctl"):
        link = tree.destdir / "usr/local/bin" / name
        script = link.resolve()
        assert script.is_relative_to(tree.destdir / LIBDIR)
        first = script.read_text().splitlines()[0]
        assert first.startswith(f"#!/{LIBDIR}/")
    for unit in (tree.destdir / "usr/local/lib/systemd/system").iterdir():
        text = unit.read_text()
        assert f"ExecStart=/{LIBDIR}/current/venv/bin/" in text
        assert "@" not in text.replace("SystemCallFilter=@system-service", "")
        assert str(tree.destdir) not in text


def test_the_installed_programs_run_and_find_the_protocol(tree: Tree, tmp_path: Path) -> None:
    python = tree.destdir / LIBDIR / "current/venv/bin/python"
    code = "import gksmd.main, gksmd.vault.main, gksmd.ctl.main, gksmd; print(gksmd.__file__)"
    done = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert Path(done.stdout.strip()).is_relative_to(tree.destdir.resolve())


def test_a_dry_run_changes_nothing(tree: Tree, tmp_path: Path) -> None:
    told = tree.run("--dry-run", destdir=tmp_path / "nowhere")
    assert "would: " in told
    assert not (tmp_path / "nowhere").exists()
    before = tree.listing()
    tree.run("--dry-run", "--uninstall")
    assert tree.listing() == before


def test_installing_again_changes_nothing(copy: Tree) -> None:
    before = copy.listing()
    copy.run()
    after = copy.listing()
    manifest = f"{LIBDIR}/manifest"
    assert after.pop(manifest) != before.pop(manifest)
    assert after == before


def test_another_library_of_the_same_version_gets_a_place_of_its_own(copy: Tree) -> None:
    version = (copy.destdir / LIBDIR / "current").readlink()
    with (copy.build / "libgksm.so").open("ab") as library:
        library.write(b"another build")
    told = copy.run("--dry-run")
    assert f"{LIBDIR}/{version}+" in told
    assert f"would: make {copy.destdir}/{LIBDIR}/{version} " not in told
    assert (copy.destdir / LIBDIR / "current").readlink() == version


def test_the_same_library_under_an_occupied_version_is_found_where_it_is(copy: Tree) -> None:
    """The second of two builds of one version has a name of its own, and keeps it."""
    release = copy.destdir / LIBDIR / (copy.destdir / LIBDIR / "current").readlink()
    digest = (release / "content").read_text().strip()
    second = release.with_name(f"{release.name}+{digest[:12]}")
    shutil.copytree(release, second, symlinks=True, copy_function=link_modules)
    (release / "content").write_text("an earlier build\n")
    assert "is installed already" in copy.run()
    assert (copy.destdir / LIBDIR / "current").readlink() == Path(second.name)
    assert (release / "libgksm.so").exists(), "somebody may have it mapped"
    copy.run("--uninstall")
    assert list(copy.listing()) == []


def test_uninstall_leaves_nothing(copy: Tree) -> None:
    copy.run("--uninstall")
    assert list(copy.listing()) == []
    assert copy.attempt("--uninstall").returncode == 1


def test_configuration_that_was_edited_is_kept(copy: Tree) -> None:
    config = copy.destdir / "etc/gksm/gksm.toml"
    domain = copy.destdir / "etc/gksm/domains.d/team.toml"
    config.write_text(config.read_text() + "# mine\n")
    domain.parent.mkdir()
    domain.write_text("# mine\n")
    text = config.read_text()
    assert "edited and is kept" in copy.run()
    assert config.read_text() == text
    copy.run("--uninstall")
    assert sorted(copy.listing()) == ["etc/gksm/domains.d/team.toml", "etc/gksm/gksm.toml"]
    assert config.read_text() == text


def test_configuration_that_was_not_edited_follows_the_release(copy: Tree) -> None:
    with (copy.source / "configs/gksm.toml").open("a") as shipped:
        shipped.write("# new in this release\n")
    copy.run()
    config = copy.destdir / "etc/gksm/gksm.toml"
    assert "new in this release" in config.read_text()
    assert list(config.parent.glob("*.dist")) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--frobnicate"], "is not an option"),
        (["--prefix"], "needs a directory"),
        (["--prefix", "relative"], "absolute"),
        (["--prefix", "/a b"], "characters"),
        (["--build", "/nowhere"], "run make first"),
        (["--wheelhouse", "/nowhere"], "not a directory"),
    ],
)
def test_wrong_use_is_told_and_changes_nothing(
    tree: Tree, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    done = tree.attempt(*arguments, destdir=tmp_path / "nowhere")
    assert done.returncode != 0
    assert reason in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_manifest_deletes_nothing_elsewhere(copy: Tree) -> None:
    precious = copy.destdir / "usr/local/precious"
    precious.mkdir()
    manifest = copy.destdir / LIBDIR / "manifest"
    for path in ("/usr/local/precious", f"/{LIBDIR}/../../precious", f"/{LIBDIR}/"):
        manifest.write_text(f"tree\t-\t{path}\n")
        assert copy.attempt("--uninstall").returncode == 1
        assert precious.exists()
        assert (copy.destdir / LIBDIR / "current" / "libgksm.so").exists()
