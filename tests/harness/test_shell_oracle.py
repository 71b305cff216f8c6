"""Real shells as the oracle of the rules on reading: the kernel says what they opened, strace and bash what they ran.

More lines, and others: ETUDE_SHELL_LINES, ETUDE_SHELL_SEED, and `benchmarks/permissions.py`. What the oracle could not
see would never be found, so most of these make it see something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import permissions
from denied_reads.trial import Trial
from denied_reads.words import unread

from etude.harness.permissions import Judge
from etude.harness.permissions.shell import SimpleCommand, read_script
from etude.harness.permissions.unwrap import unwrap

LINES = int(os.environ.get("ETUDE_SHELL_LINES", "300"))
SEED = int(os.environ.get("ETUDE_SHELL_SEED", "11"))


def test_shells_open_nothing_that_is_denied(trial: Trial) -> None:
    found = permissions.play(trial, LINES, SEED, told=False)
    assert {fault: found[fault] for fault in permissions.FAULTS} == dict.fromkeys(permissions.FAULTS, 0)
    assert found["lines"] == LINES and found["default_allowed"] > found["allowed"] >= found["allowed_distinct"]
    assert found["allowed_distinct"] > LINES / 50  # and not by asking about everything
    assert found["refused_run"] > found["refused_opened"] > found["refused_run"] / 20, "the lines try"


OPENING = (
    "cat .en*", "cat hard", "ls infra/secrets", "grep -r secret .", "(sleep 0.1; cat .env) &",
    "setsid sh -c 'sleep 0.3; cat .env' &", "trap 'sleep 0.1; cat .env &' EXIT", "cat certs/server.pem",
    "cat docs/chain.txt", "cat conf/settings", "git diff --no-index README.md docs/id_rsa", "cat < ~/.codex/*",
)  # fmt: skip


def test_the_trial_sees_what_a_shell_opens(trial: Trial) -> None:
    """It could find something: these are run although they are refused. What is left running belongs to its line."""
    trial.lay_out(secrets=True)
    runs = trial.opened([*OPENING, "cat README.md", "ls infra", "grep a docs/guide.md"])
    assert {(hit.line, hit.shell) for hit in runs.hits} == {
        (line, shell) for line in OPENING for shell in ("dash", "bash") if (line, shell) != (OPENING[-1], "dash")
    }
    assert runs.timed_out == runs.not_found == []
    [files] = {hit.files for hit in runs.hits if hit.line == "cat docs/chain.txt"}
    assert files == {str(trial.project / "certs" / "server.pem")} and files <= trial.secret_files - trial.denied_files


def test_a_line_that_does_not_end_or_is_not_found_is_told(trial: Trial) -> None:
    endless, missing = "while :; do cat README.md; done", "cat README.md; no-such-program a"
    runs = trial.opened([endless, missing, "cat README.md"])
    assert runs.timed_out == [(endless, "dash"), (endless, "bash")]
    assert runs.not_found == [(missing, "dash"), (missing, "bash")]
    assert permissions.missing_programs(missing, trial.env["PATH"]) == {"no-such-program"}


APART = """
import os, sys
from pathlib import Path
from denied_reads.trial import SHARED, Trial
before = {name: (os.stat(name).st_ino, open(name, "rb").read()) for name in SHARED}
trial = Trial(Path(sys.argv[1]))
trial.set_apart()
for name, (number, data) in before.items():
    assert os.stat(name).st_ino != number and open(name, "rb").read() == data, name
trial.lay_out()
assert not trial.opened(["cat /etc/shadow"], own=True).hits
assert {hit.line for hit in trial.opened(["cat /etc/shadow"]).hits} == {"cat /etc/shadow"}
trial.remove()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts of one's own need root")
def test_a_file_of_the_machine_is_set_apart_from_what_others_open(outer: Path) -> None:
    """By inode, as it is watched; and for the process that asks alone."""
    before = os.stat("/etc/shadow").st_ino
    at = Path(permissions.__file__).parent
    subprocess.run([sys.executable, "-c", APART, str(outer / "trial")], cwd=at, check=True, timeout=120)
    assert os.stat("/etc/shadow").st_ino == before


@pytest.mark.parametrize("only", [True, False])
def test_an_open_is_counted_for_the_rules_that_allowed_its_line(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, only: bool
) -> None:
    """The same lines, allowed by the built-in rules alone, and by those that deny as well."""
    lines = ["cat .env", "cat docs/own", "cat certs/server.pem", "cat README.md"]
    monkeypatch.setattr(permissions, "make_line", lambda draw, *_: lines[draw.randrange(4)])
    allowed = Trial.allowed

    def lax(self: Trial, line: str, judge: Judge | None = None) -> bool:
        return line in lines if judge or not only else allowed(self, line)

    monkeypatch.setattr(Trial, "allowed", lax)
    found = permissions.play(trial, 40, 1, told=False)
    assert (found["denied_opens"], found["secret_opens"]) == (0 if only else 4, 4)
    assert found["default_allowed"] == 40 and found["distinct_run"] == 4


NESTED = (
    "bash -c 'cat README.md .env'", "sh -c 'cat README.md .env'", "env bash -c 'cat README.md .env'",
    "echo README.md .env | xargs cat", "find . -maxdepth 1 -name .env -exec cat {} +", "eval 'cat README.md .env'",
    "time find . -name x -exec cat .env ;", "time env X=1 cat .env", "time timeout 5 cat .env",
    "env nice timeout 5 cat .env", "bash -c 'cd src; printf \"%s\\n\" \"a b\"'", "trap 'cat .env' EXIT",
)  # fmt: skip
"""What runs below another command."""
AS_READ = ("ls a=~/x b=c:~/d", "xargs -'I{} sh -c{}' < README.md", "bash -c \"bash <<'E'\nls\nE\"")
PLAIN = (
    "cat README.md .env",
    "cat $'README.md' .env",
    "cat 'a\nb' .env",
    "find . -name time .env",
    "exec -a x cat .env",
)


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_the_trial_sees_what_runs_and_the_judge_has_not_read(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    everyday = [line for line in permissions.everyday() if trial.allowed(line)]
    assert unread(trial, [*everyday, *NESTED, *PLAIN, *AS_READ]) == ([], 0)

    def lines(of: Sequence[str]) -> set[str]:
        return {line for line, _ in unread(trial, of)[0]}

    for gone in (list, lambda _: []):  # nothing is taken apart; nothing is told of what is
        monkeypatch.setattr("denied_reads.words.unwrap", gone)
        assert lines([*NESTED, *PLAIN[:-1]]) == set(NESTED)
    monkeypatch.setattr("denied_reads.words.unwrap", unwrap)

    def short(line: str) -> list[SimpleCommand]:
        """A reader that loses the last word of each `cat` and `find`."""
        return [
            replace(each, words=each.words[:-1]) if each.words and each.words[0].text in ("cat", "find") else each
            for each in read_script(line)
        ]

    for reader in ("denied_reads.words.read_script", "etude.harness.permissions.unwrap.read_script"):
        monkeypatch.setattr(reader, short)
    assert lines(["cat README.md", *PLAIN[:-1]]) == {"cat README.md", *PLAIN[:-1]}
    texts = {"bash -c 'cat README.md .env'", "eval 'cat README.md .env'", "trap 'cat .env' EXIT"}
    assert lines(NESTED) >= texts


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_what_a_program_starts_of_its_own_accord_is_counted_and_what_that_starts_is_seen(trial: Trial) -> None:
    """git starts a shell, and the shell a command."""
    alias = "git -c alias.x='!cat README.md .env' x"
    assert unread(trial, [alias]) == ([(alias, "cat\0README.md\0.env\0")], 1)


def test_an_open_is_git_s_only_where_git_is_alone() -> None:
    assert permissions._git_alone("cd src && git diff --stat; echo done")
    for line in (
        "rev x.pem # git",
        "cat x.pem > o; git status",
        "tr a b < .env; git status",
        "cat .git/../x.pem | base64",
    ):
        assert not permissions._git_alone(line), line
