"""An agent that starts below a project is held by what the project asks and denies, as if it had started at its top."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from pathlib import Path

import pytest

from etude.errors import ConfigError
from etude.harness.permissions import Judge, PermissionConfig, Rule, WorkspacePaths, load_permissions, unreadable
from etude.harness.permissions.inherited import inherited
from etude.harness.permissions.store import IN_REPOSITORY


def project_below(tmp_path: Path, *parts: str) -> tuple[Path, Path, Path]:
    """A repository, a directory in it, and the user's file."""
    top = tmp_path / "engine"
    project = top.joinpath(*parts)
    project.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", top], check=True)
    return top, project, tmp_path / "permissions.toml"


RULES = """
ask = ["run(npm publish *)"]
deny = ["run(git push *)", "read(infra/**)", "read(src/*/key)", "edit(**/gen/*)"]
"""


@pytest.mark.parametrize("by", ["user", "user by a link", "repository"])
def test_who_starts_below_a_project_is_held_by_what_it_asks_and_denies(tmp_path: Path, by: str) -> None:
    top, project, file = project_below(tmp_path, "src", "api")
    if by == "repository":
        (top / ".etude").mkdir()
        (top / IN_REPOSITORY).write_text(RULES)
    else:
        (tmp_path / "link").symlink_to(top)
        named = top if by == "user" else tmp_path / "link"
        file.write_text(f'[projects."{named}"]\n{RULES}\nallow = ["run(make *)"]')
    for path in (top / "infra" / "plan", project / "key", project / "infra" / "plan", top / "key", top / "src" / "key"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (project / "far").symlink_to(top / "infra")
    config = load_permissions(project, file)
    judge = Judge(config, WorkspacePaths(project), env={})

    def verdict(tool: str, **arguments: str) -> str:
        return judge.judge(tool, arguments).verdict

    assert verdict("run_terminal_cmd", command="npm publish") == "ask"
    assert verdict("run_terminal_cmd", command="git push") == "deny"
    for denied in ("../../infra/plan", "far/plan", f"{top}/infra/plan", "key", "./key", f"{top}/infra"):
        assert verdict("read_file", path=denied) == "deny", denied
    for free in ("infra/plan", "a"):
        assert verdict("read_file", path=free) == "allow", free
    for outside in ("../../key", "../key"):
        assert verdict("read_file", path=outside) == "ask", outside
    assert verdict("write_file", path="x/gen/a") == verdict("edit_file", path="gen/a") == "deny"
    assert verdict("edit_file", path="x/a") == "allow"
    assert set(unreadable(config, project)) == {"key", f"{top}/infra"}
    assert verdict("run_terminal_cmd", command="make all") == "ask", "what is allowed there is allowed there only"
    assert "deny read(infra/**) of " in judge.judge("read_file", {"path": "../../infra/plan"}).explain()


def test_below_what_may_not_be_read_nothing_can_be(tmp_path: Path) -> None:
    top, project, file = project_below(tmp_path, "infra", "aws")
    (project / "a").write_text("x")

    def judge(rules: str) -> Judge:
        file.write_text(f'[projects."{top}"]\ndeny = [{rules}]')
        return Judge(load_permissions(project, file), WorkspacePaths(project), env={})

    for pattern in ("infra/**", "infra", "*/aws", "**/aws/**", "i*", "in**"):
        judged = judge(f'"read({pattern})"')
        assert judged.judge("read_file", {"path": "a"}).verdict == "deny", pattern
        assert judged.judge("run_terminal_cmd", {"command": "cat a"}).verdict == "deny", pattern
    judged = judge('"edit(infr)", "read(infra/gcp/**)", "read(a)", "read(infra/aw)"')
    for tool in ("read_file", "edit_file"):
        assert judged.judge(tool, {"path": "a"}).verdict == "allow"
    judged = judge('"edit(infra)"')
    assert judged.judge("edit_file", {"path": "a"}).verdict == "deny", "it lies in there"
    assert judged.judge("read_file", {"path": "a"}).verdict == "allow"


def test_the_nearer_table_says_what_no_rule_does_and_one_above_only_makes_it_stricter(tmp_path: Path) -> None:
    _, project, file = project_below(tmp_path, "src")
    file.write_text(f'[projects."{tmp_path}"]\nruns = "deny"\nreads = "ask"\noutside = "allow"\nbuiltin = false\n')
    config = load_permissions(project, file)
    assert (config.runs, config.reads, config.outside, config.builtin) == ("deny", "ask", "ask", True)
    file.write_text(f'{file.read_text()}[projects."{project}"]\nruns = "allow"\n')
    assert load_permissions(project, file).runs == "allow"


def test_a_repository_is_believed_up_to_its_top_and_read_without_leaving_it(tmp_path: Path) -> None:
    top, project, file = project_below(tmp_path, "src")
    for place in (tmp_path, top, project):
        (place / ".etude").mkdir()
        (place / IN_REPOSITORY).write_text(f'deny = ["run({place.name} *)"]')
    assert load_permissions(project, file).deny == ("run(src *)", "run(engine *)")
    (tmp_path / "secret").write_text("deny = []")
    (top / IN_REPOSITORY).unlink()
    (top / IN_REPOSITORY).symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=r"engine/\.etude/permissions\.toml: cannot be read"):
        load_permissions(project, file)


def test_a_command_of_a_directory_above_is_the_same_file_from_below() -> None:
    rule = Rule("run(./deploy *)", "deny")
    texts = inherited(rule, "/a[b]", "/a[b]/src")
    assert texts == ["run(./deploy *)", "run(../deploy *)", "run(/a[[]b]/deploy *)"]
    judge = Judge(PermissionConfig(deny=tuple(texts), runs="allow"), env={})
    for line in ("../deploy now", "'/a[b]/deploy'", "bash ../deploy"):
        assert judge.judge("run_terminal_cmd", {"command": line}).verdict == "deny", line


def test_what_is_inherited_matches_below_what_the_rule_matches_above() -> None:
    """At random: a pattern, read from a directory below, must match the same files as where it was written."""
    numbers = random.Random(7)
    paths = ["/".join(path) for depth in (1, 2, 3, 4) for path in itertools.product("ab", repeat=depth)]
    for _ in range(400):
        drawn = [numbers.choice(["a", "b", "*", "?", "**", "/", "/", "**/"]) for _ in range(6)]
        pattern = re.sub("/+", "/", "".join(drawn).strip("/")) or "a"
        below = numbers.choice(["a", "b", "a/b", "b/b"])
        rule = Rule(f"edit({pattern})", "deny")
        found = [Rule(text, "deny") for text in inherited(rule, "/top", f"/top/{below}")]
        for path in paths:
            relative = path.removeprefix(f"{below}/") if path.startswith(f"{below}/") else None
            wanted = rule.matches_path(f"/top/{path}", path)
            if relative is None:  # one that begins with `**/` speaks of all that lies outside, wherever that begins
                wanted |= rule.matches_path(f"/top/{path}", None)
            assert any(each.matches_path(f"/top/{path}", relative) for each in found) == wanted, (pattern, below, path)
            if relative is not None:  # in a copy of the project only names tell
                copied = any(each.matches_path(f"/copy/{relative}", relative) for each in found)
                assert copied == wanted, (pattern, below, path)
