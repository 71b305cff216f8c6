"""What the rules say of command lines and paths: a large table, most of it of ways around them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from permission_lines import ALLOWED, ASKED, DENIED
from pydantic import ValidationError

from etude.config import parse
from etude.errors import ConfigError
from etude.harness.permissions import Decision, Judge, PermissionConfig, WorkspacePaths, unreadable, walks
from etude.harness.permissions.walks import starts

RULES = PermissionConfig(
    allow=(
        "run(pytest *)",
        "run(npm run *)",
        "run(git commit *)",
        "run(echo *)",
        "run(make)",
        "run(python *)",
        "mcp__docs__*",
    ),
    ask=("run(npm run deploy *)",),
    deny=("run(rm -rf *)", "run(git push *)", "run(curl *)", "edit(secret/**)", "read(secret/key)", "mcp__mail__*"),
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "secret").mkdir()
    (root / "way-out").symlink_to("/etc")
    (root / "hidden").symlink_to("secret")
    return root


@pytest.fixture
def judge(project: Path) -> Judge:
    return Judge(RULES, WorkspacePaths(project))


def run(judge: Judge, line: str) -> Decision:
    return judge.judge("run_terminal_cmd", {"command": line})


@pytest.mark.parametrize("line", ALLOWED)
def test_allowed(judge: Judge, line: str) -> None:
    decision = run(judge, line)
    assert decision.verdict == "allow", decision.explain()


@pytest.mark.parametrize("line", DENIED)
def test_denied(judge: Judge, line: str) -> None:
    decision = run(judge, line)
    assert decision.verdict == "deny", decision.explain()


@pytest.mark.parametrize("line", ASKED, ids=lambda line: repr(line[:40]))
def test_asked(judge: Judge, line: str) -> None:
    decision = run(judge, line)
    assert decision.verdict == "ask", decision.explain()


@pytest.mark.parametrize(
    ("tool", "path", "verdict"),
    [
        ("read_file", "a", "allow"),
        ("read_file", "/workspace/a", "allow"),
        ("read_file", "src/../a", "allow"),
        ("list_dir", ".", "allow"),
        ("grep", "src", "allow"),
        ("read_file", "/tmp/x", "allow"),
        ("read_file", "/etc/passwd", "ask"),
        ("read_file", "way-out/passwd", "ask"),
        ("read_file", "../x", "ask"),
        ("read_file", ".env", "ask"),
        ("read_file", "src/.env", "ask"),
        ("read_file", "~/.ssh/config", "ask"),
        ("read_file", "secret/key", "deny"),
        ("read_file", "hidden/key", "deny"),
        ("grep", "secret/key", "deny"),
        ("edit_file", "a", "allow"),
        ("write_file", "new/deep/a", "allow"),
        ("write_file", "/tmp/x", "allow"),
        ("edit_file", "secret/a", "deny"),
        ("edit_file", "hidden/a", "deny"),
        ("edit_file", "src/../secret/a", "deny"),
        ("write_file", "../a", "deny"),
        ("write_file", "/etc/a", "deny"),
        ("write_file", "way-out/a", "deny"),
        ("write_file", "/workspace/../a", "deny"),
        ("write_file", "~/a", "deny"),
        ("write_file", "src/../../a", "deny"),
        ("write_file", "way-out/../a", "deny"),
        ("edit_file", ".git/config", "ask"),
        ("edit_file", "sub/.git/config", "ask"),
        ("edit_file", ".etude/permissions.toml", "ask"),
        ("edit_file", ".envrc", "ask"),
    ],
)
def test_paths(judge: Judge, tool: str, path: str, verdict: str) -> None:
    decision = judge.judge(tool, {"path": path})
    assert decision.verdict == verdict, decision.explain()


def test_a_path_by_its_own_name_is_the_workspace_too(judge: Judge, project: Path) -> None:
    assert judge.judge("write_file", {"path": str(project / "a")}).verdict == "allow"
    assert judge.judge("write_file", {"path": str(project / "secret" / "a")}).verdict == "deny"
    assert judge.judge("write_file", {"path": str(project.parents[-2] / "../var/a")}).verdict == "deny"


def test_without_a_workspace_on_this_machine_names_are_judged() -> None:
    judge = Judge(RULES)
    assert judge.judge("write_file", {"path": "a"}).verdict == "allow"
    assert judge.judge("write_file", {"path": "src/../../a"}).verdict == "deny"
    assert run(judge, "cat /usr/lib/os-release").verdict == "allow"  # a sandbox's, and not the user's


def test_tools_of_others_go_by_name(judge: Judge) -> None:
    verdicts = {
        name: judge.judge(name, {}).verdict for name in ("mcp__docs__find", "mcp__mail__send", "mcp__x", "todo_write")
    }
    assert verdicts == {"mcp__docs__find": "allow", "mcp__mail__send": "deny", "mcp__x": "ask", "todo_write": "allow"}


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("mkdir c && cd c && ls && cd .. && rm c/x", "ask"),
        ("cd src && ls 2>&1 && cd .. && touch src/x", "ask"),
        ("cd src && ls | head && cd .. && touch src/x", "ask"),
        ("cd src 2>/dev/null && [ -f a ] && cd .. && touch src/x", "ask"),
        ("cd src && cd .. && cd .. && touch x", "deny"),
        ("cd src && cd .. || touch ../x", "deny"),
        ("cd src; cd ..; touch x", "deny"),
        ("cd src && (cd ..) && touch ../x", "deny"),
        ("f() { cd ..; }; cd src && f && touch ../x", "ask"),
        ("cd src && for i in 1 2; do cd .. && touch x; done", "ask"),
    ],
)
def test_behind_a_cd_that_succeeded_a_path_is_meant_from_there_alone(judge: Judge, line: str, verdict: str) -> None:
    decision = run(judge, line)
    assert decision.verdict == verdict, decision.explain()


def test_the_rule_that_decided_is_named(judge: Judge) -> None:
    assert run(judge, "ls && git -C . push").explain() == "git -C . push: rule deny run(git push *)"
    assert run(judge, "npm run deploy x").explain() == "npm run deploy x: rule ask run(npm run deploy *)"
    assert run(judge, "foo; wget x").explain().splitlines() == [
        "foo: no rule matches; commands are asked about by default",
        "wget x: rule ask run(wget *), which is built in",
    ]
    assert "only the workspace may be written" in judge.judge("write_file", {"path": "/etc/a"}).explain()
    assert run(judge, "sudo ls").explain() == "sudo ls: rule ask run(sudo *), which is built in"


def test_what_is_remembered_is_narrow_and_then_allows(judge: Judge) -> None:
    remembered = {
        "cargo build -q": ("run(cargo build *)",),
        "foo x && bar": ("run(foo *)", "run(bar *)"),
        "node x.js": ("run(node x.js)",),
        "bash x.sh": ("run(bash x.sh)",),
        "git add -A": ("run(git add *)",),
        "git -C x add": ("run(git -C x add)",),
        "just": ("run(just)",),
        "just -j4 test": ("run(just -j4 test)",),
        "git submodule update x": ("run(git submodule update *)",),
        "git stash": ("run(git stash)",),
        "docker compose up -d": ("run(docker compose up -d)",),
        "uv run python x.py": ("run(uv run python x.py)",),
        "python3 -m pytest -q api": ("run(python3 -m pytest *)",),
        "python3 -m http.server": ("run(python3 -m http.server)",),
        "just $x": (),
        "$x": (),
        "node *.js": (),
        "npm run deploy x": (),
        "cat .env": ("read(.env)",),
        "foo > $x": (),
        "git clean -fd build": ("run(git clean -fd build)",),
        "kill 12": ("run(kill 12)",),
        "sudo ls *.py": (),
    }
    assert {line: run(judge, line).remember for line in remembered} == remembered
    assert judge.judge("read_file", {"path": "/etc/os-release"}).remember[0] == "read(/etc/os-release)"
    assert not any(reason.asked_by_rule for reason in run(judge, "sudo ls *.py").reasons), "an own rule answers it"
    for line in ("cargo build -q", "node x.js", "cat .env"):
        for rule in remembered[line]:
            judge.allow(rule)
        assert run(judge, line).verdict == "allow"
    assert run(judge, "cargo publish").verdict == "ask" and run(judge, "node y.js").verdict == "ask"


def test_denying_goes_before_asking_before_allowing() -> None:
    everything = ("run", "read", "edit")
    assert (
        run(Judge(PermissionConfig(allow=everything, ask=("run(ls *)",), deny=("run(ls -l *)",))), "ls -l").verdict
        == "deny"
    )
    assert run(Judge(PermissionConfig(allow=everything, ask=("run(ls *)",))), "ls -l").verdict == "ask"
    assert run(Judge(PermissionConfig(allow=everything)), "$x | sh").verdict == "allow"
    assert run(Judge(PermissionConfig(deny=("run",))), "ls").verdict == "deny"
    assert run(Judge(PermissionConfig(deny=("run",))), "$x | sh").verdict == "deny"


def test_writing_outside_is_denied_whatever_is_allowed() -> None:
    judge = Judge(PermissionConfig(allow=("run", "edit", "edit(/etc/**)"), runs="allow", builtin=False))
    assert judge.judge("write_file", {"path": "/etc/a"}).verdict == "deny"
    assert run(judge, "echo x > /etc/a").verdict == "deny"


def test_defaults_decide_where_no_rule_does() -> None:
    judge = Judge(PermissionConfig(reads="deny", edits="ask", runs="allow", others="deny", outside="deny"))
    verdicts = [judge.judge(name, {"path": "a"}).verdict for name in ("read_file", "edit_file", "mcp__x")]
    assert verdicts == ["deny", "ask", "deny"]
    assert judge.judge("read_file", {"path": "/etc/a"}).verdict == "deny"
    assert run(judge, "foo").verdict == "allow" and run(judge, "sudo foo").verdict == "ask"
    assert run(Judge(PermissionConfig(runs="allow", builtin=False)), "sudo foo").verdict == "allow"


@pytest.mark.parametrize("rule", ["", "run()", "run(git 'x)", "(x)", "run(a", "mcp__x(a)", "todo write"])
def test_what_is_no_rule_is_refused_with_its_text(rule: str) -> None:
    with pytest.raises(ValidationError, match=r"rule|pattern|quotation"):
        PermissionConfig(allow=(rule,))
    with pytest.raises(ConfigError, match="allow"):
        Judge(PermissionConfig()).allow(rule)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("edit(*.py)", "a.py", True),
        ("edit(*.py)", "src/a.py", False),
        ("edit(**/*.py)", "src/deep/a.py", True),
        ("edit(**/*.py)", "a.py", True),
        ("edit(src/**)", "src", True),
        ("edit(src/**)", "src/a/b", True),
        ("edit(src/**)", "srcs/a", False),
        ("edit(a.b)", "axb", False),
        ("edit(a?)", "ab", True),
        ("edit(a?)", "a/", False),
        # what forbids a directory forbids what lies in it, however it is written
        ("edit(conf)", "conf/deep/a", True),
        ("edit(conf/)", "conf/a", True),
        ("edit(./conf//deep/)", "conf/deep/a", True),
        ("edit( conf/a )", "conf/a", True),
        ("edit(**/a.yaml/)", "conf/a.yaml", True),
        ("edit(./conf/*.yaml)", "conf/new.yaml", True),
        ("edit(.)", "a", True),
        ("edit(./)", "conf/a", True),
        ("edit(conf)", "conf2", False),
    ],
)
def test_path_patterns(pattern: str, path: str, matches: bool) -> None:
    judge = Judge(PermissionConfig(deny=(pattern,)))
    assert (judge.judge("edit_file", {"path": path}).verdict == "deny") is matches


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("read(conf/prod.yam[l])", "a rule for each"),
        ("read({conf,x}/**)", "a rule for each"),
        ("Read", "write read in small letters"),
        ("Run(ls *)", "write run in small letters"),
    ],
)
def test_a_rule_that_would_forbid_nothing_is_refused(rule: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse({"deny": [rule]}, PermissionConfig, "permissions")


def test_to_allow_a_path_is_to_allow_that_very_one() -> None:
    with pytest.raises(ConfigError, match="by its path from / or ~"):
        parse({"allow": ["read(../flask/README.md)"]}, PermissionConfig, "permissions")
    judge = Judge(PermissionConfig(edits="ask", allow=("edit(app/[id]/x.ts)", "edit(conf)", "edit(docs/)")))
    verdicts = {path: judge.judge("edit_file", {"path": path}).verdict for path in ("app/[id]/x.ts", "conf", "docs/a")}
    assert set(verdicts.values()) == {"allow"}
    assert judge.judge("edit_file", {"path": "conf/a"}).verdict == "ask"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("rm build/*.o", "allow"),
        ("rm *.pyc src/*/x?", "allow"),
        ("rm way-out/*", "deny"),
        ("rm /etc/*", "deny"),
        ("rm secret/*", "deny"),
        ("rm ../*", "ask"),
        ("rm .*", "ask"),
        ("rm $x/*", "ask"),
        ("rm {a,b}*", "ask"),
        ("; ".join(["cd src"] * 9) + "; rm a", "allow"),
        ("; ".join(f"cd d{number}" for number in range(40)) + "; rm a", "ask"),
    ],
)
def test_what_a_pattern_or_a_path_could_stand_for(project: Path, line: str, verdict: str) -> None:
    judge = Judge(PermissionConfig(allow=("run(rm *)",), deny=("edit(secret/**)",)), WorkspacePaths(project))
    decision = run(judge, line)
    assert decision.verdict == verdict, decision.explain()


def test_what_is_denied_outright_is_told_to_the_sandbox(project: Path) -> None:
    for name in ("secret/key", "secret/deep/key", "src/.env", ".env", "src/a.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("x")
    config = PermissionConfig(
        deny=("read(secret/**)", "read(**/.env)", "edit(src/**)", "run(x *)"), ask=("read(src/a.py)",)
    )
    assert sorted(unreadable(config, project)) == [".env", "secret", "src/.env"]
    assert unreadable(PermissionConfig(deny=("read", "edit(src/**)")), project) == ()


def test_what_cannot_be_looked_at_is_asked_about(judge: Judge, project: Path) -> None:
    """A process that has ended and is not yet reaped: the link to its program is there, and leads nowhere."""
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    try:
        decision = run(judge, f"grep -r x /proc/{ended}/exe")
        assert decision.verdict == "ask" and "cannot be looked at" in decision.explain()
    finally:
        os.waitpid(ended, 0)


def test_a_short_line_that_stands_for_everything_many_times_over_is_asked_about(project: Path) -> None:
    """Each pattern and each walk has a bound of its own, and a line can have as many of them as it likes."""
    for first in range(20):
        for second in range(20):
            (project / "src" / str(first) / str(second)).mkdir(parents=True)
    judge = Judge(PermissionConfig(), WorkspacePaths(project))
    few = run(judge, "ls -R src/*/* src/*/..")
    assert few.verdict == "allow", few.explain()
    many = run(judge, f"ls {'src/*/*/.. ' * 1500}")
    assert many.verdict == "ask" and "it is too much, or stands for too many files" in many.explain()


def test_what_a_walk_comes_to_anyway_is_walked_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (project / "src" / str(number) / "node_modules" / "deep").mkdir(parents=True)
    walked = list[str]()
    monkeypatch.setattr(os, "walk", lambda top, walk=os.walk: (walked.append(str(top)), walk(top))[1])
    assert run(Judge(PermissionConfig(), WorkspacePaths(project)), "ls -R . src src/* src/*/..").verdict == "allow"
    assert walked == [str(project)]
    run(Judge(PermissionConfig(), WorkspacePaths(project)), "ls -R . src/7/node_modules")
    assert walked[1:] == [str(project), str(project / "src/7/node_modules")], "a walk goes into no package by itself"


def test_of_very_many_reasons_the_first_are_told(project: Path) -> None:
    for number in range(100):
        (project / "secret" / f"key{number}").touch()
    judge = Judge(PermissionConfig(deny=("read(secret/**)",)), WorkspacePaths(project))
    told = run(judge, "cat secret/*").explain().splitlines()
    assert len(told) == 21 and told[-1].startswith("and ") and told[-1].endswith(" more")


LONG = {
    "question marks": f"ls {'?' * 60}z", "stars": f"ls {'*?' * 30}z", "steps": f"cat -{'a/' * 1000}",
    "letters": f"cat -{'a' * 4000}", "words": f"cat {'a ' * 9900}", "options": f"grep {'-a ' * 6000}x",
    "a glob": f"grep -r --include={'a' * 19000}! x .", "a program": f'awk "{"print" * 3900}" README.md',
    "values": f"cat {'a=' * 9900}",
}  # fmt: skip


@pytest.mark.parametrize("line", LONG.values(), ids=LONG)
def test_no_line_takes_long_to_judge(project: Path, line: str) -> None:
    """What fails here is stopped by the time that any test has."""
    (project / ("n" * 200)).touch()
    judge = Judge(PermissionConfig(), WorkspacePaths(project))
    assert run(judge, line).verdict == ("allow" if line.startswith("ls") else "ask")


def test_what_a_walk_could_not_list_on_its_way_is_walked_by_itself(tmp_path: Path) -> None:
    (tmp_path / "shut" / "in").mkdir(parents=True)
    assert starts(["grep", "-r", "a", ".", "shut/in"], *_named(".", "shut/in"), WorkspacePaths(tmp_path)) == [
        str(tmp_path)
    ]
    with pytest.MonkeyPatch.context() as patch:  # the owner of everything may list everything
        patch.setattr(os, "access", lambda path, mode: not str(path).endswith("shut"))
        found = starts(["grep", "-r", "a", ".", "shut/in"], *_named(".", "shut/in"), WorkspacePaths(tmp_path))
    assert found == [str(tmp_path), str(tmp_path / "shut" / "in")]


def _named(*words: str) -> tuple[list[list[str]], list[str]]:
    return [[each] for each in ("grep", "-r", "a", *words)], ["/workspace"]


@pytest.mark.parametrize("space", ["\u3000", "\u2003", "\xa0", "\u1680", "\u202f"])
@pytest.mark.parametrize("line", ["rm{}-rf x", "echo a;{}rm x", "echo '{}'", "ls -l{}a"])
def test_what_looks_like_a_space_and_is_none_is_asked_about(project: Path, line: str, space: str) -> None:
    judge = Judge(PermissionConfig(deny=("run(rm *)",), runs="allow", builtin=False), WorkspacePaths(project), env={})
    assert run(judge, line.format(" ")).verdict == ("deny" if "rm" in line else "allow")
    assert run(judge, line.format(space)).verdict == "ask"


def test_a_word_could_be_what_a_rule_denies_wherever_that_lies(project: Path) -> None:
    """A rule on a name in any directory: none of it is in the workspace, and what is elsewhere nobody has looked at."""
    rules = PermissionConfig(allow=("run(python *)",), deny=("read(**/key)",), builtin=False)
    assert run(Judge(rules, WorkspacePaths(project), env={}), 'python "$1"').verdict == "ask"
    (project / "secret" / "key").touch()
    rules = PermissionConfig(allow=("run(python *)",), deny=("read(other/key)",), builtin=False)
    assert run(Judge(rules, WorkspacePaths(project), env={}), 'python "$1"').verdict == "allow"


@pytest.mark.parametrize("line", ["grep -r K .", "rg K", "grep -rn K src ."])
def test_a_walk_through_too_many_directories_is_asked_about(
    project: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    monkeypatch.setattr(walks, "_MOST_WALKED", 2)
    assert run(judge, line).verdict == "allow"
    (project / "src" / "deeper").mkdir()
    decision = run(judge, line)
    assert decision.verdict == "ask" and "too many directories" in decision.explain()


def test_a_rule_in_another_agents_words_is_told_how_it_is_written() -> None:
    with pytest.raises(ValueError, match=r"write run\(pytest \*\)"):
        PermissionConfig(allow=("run(pytest:*)",))
    PermissionConfig(allow=("run(npm run test:*)",))
