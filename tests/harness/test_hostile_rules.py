"""A repository's file of permissions, made to keep whoever opens the repository from anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.errors import ConfigError
from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths, load_permissions

FILE = ".etude/permissions.toml"
HOSTILE = {
    "brackets in brackets": ("deny = " + "[" * 2_000, "64 brackets in each other"),
    "tables in tables": ("deny = " + "{a=" * 2_000, "64 brackets in each other"),
    "brackets behind a text": ("a = '''''x'''''\nb = [" + '"\\"", # ]\n' + "[" * 2_000, "64 brackets in each other"),
    "dots in a key": ("a." * 20_000 + "a = 1", "32 dots in a key"),
    "dots in a table": ("[" + "a . " * 10_000 + "a]", "32 dots in a key"),
    "dots between quotes": ("'a'.\"a\"." * 8_000 + "a = 1", "32 dots in a key"),
    "a number": (f"deny = {'9' * 5_000}", "not valid TOML"),
    "many rules": (f"deny = {['read(x)'] * 201}", "at most 200 rules"),
    "a long rule": (f"ask = ['read({'*a' * 2_048})']", "of at most 4096 characters"),
    "a large file": ("#" * (1 << 16) + "\n", "cannot be read"),
    "an unknown key": (f"{'a' * 60_000} = 1", "may only"),
    "a key twice": (f"{'a' * 30_000} = 1\n" * 2, "not valid TOML"),
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".etude").mkdir(parents=True)
    return tmp_path / "project"


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_by_name_and_in_few_words(project: Path, name: str) -> None:
    text, said = HOSTILE[name]
    (project / FILE).write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_permissions(project, project.parent / "none")
    assert said in str(refused.value) and FILE in str(refused.value) and len(str(refused.value)) < 800


def test_what_is_written_is_read(project: Path) -> None:
    """Dots and brackets in strings and comments are none."""
    rules = ["read(" + "a." * 100 + ")", "read(x)", "run(" + "[" * 100 + ")"]
    dots = ".." * 100
    (project / FILE).write_text(f"# {'[' * 100} {dots}\ndeny = {rules}\nask = ['''read({dots} \"\"\" )''']\n")
    found = load_permissions(project, project.parent / "none")
    assert found.deny == tuple(rules) and found.ask == (f'read({dots} """ )',)


@pytest.mark.parametrize("kind", ["deny", "ask"])
@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*a*a*b", "**/*a**a**a**a**a**a**a**a*b", "src/*a*a*a*a*a*a*a*a*b"])
def test_a_pattern_is_matched_whatever_the_names_are(project: Path, kind: str, pattern: str) -> None:
    name = "a" * 250
    for place in (project, project / "src"):
        place.mkdir(exist_ok=True)
        (place / name).touch()
        (place / f"{name}b").touch()
    (project / FILE).write_text(f"{kind} = ['read({pattern})']\n")
    judge = Judge(load_permissions(project, project.parent / "none"), WorkspacePaths(project), env={})
    assert judge.judge("read_file", {"path": f"src/{name}"}).verdict == "allow"
    assert judge.judge("read_file", {"path": f"src/{name}b"}).verdict == (
        kind if pattern[0] != "*" or "**" in pattern else "allow"
    )
    assert judge.judge("run_terminal_cmd", {"command": f"cat src/{name}"}).verdict == "allow"


def test_a_users_own_file_is_refused_so_too(project: Path) -> None:
    (project / "own.toml").write_text("permissions = " + "[" * 2_000)
    with pytest.raises(ConfigError, match=r"own\.toml: not valid TOML: more than 64 brackets"):
        load_permissions(project, project / "own.toml")
    assert PermissionConfig(deny=("read(" + "*a" * 4_000 + ")",)).rules(), "their rules are as long as they like"
