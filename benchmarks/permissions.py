"""Whether the rules on reading can be talked round, and what they cost in questions.

    python benchmarks/permissions.py [--lines 100000] [--seed 0]

Command lines made at random around denied files are judged by the rules alone; what they allow unasked is run in bash
and dash, where the denied files are there to be read. `denied_opens` counts the lines that opened one. `read_otherwise`
counts those of which bash ran a command with other words than were judged, whatever these do. A sample of what
is refused is run as well: `refused_opened` of `refused_run` opened a denied file, which is what the rules prevented.
`everyday` are the shares of 300 harmless commands that nobody is asked about: with the default rules, with reads denied
and hidden by the sandbox as the product does it, with reads denied and nothing hidden, and, for comparison, with the
rule that other agents have: a known command of plain words. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from denied_reads.lines import make_line
from denied_reads.trial import Trial
from denied_reads.words import unread

from etude.environments.build import default_cache_dir
from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths, unreadable
from etude.harness.permissions.shell import Unreadable, read_script

EVERYDAY = Path(__file__).parents[1] / "tests" / "harness" / "everyday.txt"
BATCH = 2_000
REFUSED_RUN = 100
"""Of a batch."""
_PLAIN = {
    "cat", "cd", "cut", "echo", "expr", "false", "grep", "head", "id", "ls", "nl", "paste", "pwd", "rev", "seq", "stat",
    "tail", "tr", "true", "uname", "uniq", "wc", "which", "whoami", "find", "rg", "git", "sed",
}  # fmt: skip
"""What an agent of the field allows unasked without a sandbox: these, with options that do not write, git's
`status log diff show branch`, and `sed -n Np`; in lists and pipelines, without variables, substitutions, loops or
redirections."""


def everyday() -> list[str]:
    return [line for line in EVERYDAY.read_text().splitlines() if line and not line.startswith("#")]


def shares(trial: Trial) -> dict[str, float]:
    """The part of everyday commands that nobody is asked about, by the rules in force."""
    place, lines = WorkspacePaths(trial.project), everyday()
    gone = [os.path.join(trial.project, path) for path in unreadable(trial.rules, trial.project)]
    judges = {
        "default": Judge(PermissionConfig(), place, env=trial.env),
        "denied_and_hidden": Judge(trial.rules, place, env=trial.env, hidden=gone),
        "denied_only": trial.judge,
    }
    found = {
        name: sum(judge.judge("run_terminal_cmd", {"command": line}).verdict == "allow" for line in lines)
        for name, judge in judges.items()
    }
    found["plain_words"] = sum(_plain_words(line) for line in lines)
    return {name: round(count / len(lines), 4) for name, count in found.items()}


def _plain_words(line: str) -> bool:
    if re.search(r"[$`<>(){}&][^&]|(^|\s)(for|if|while)\s", re.sub(r"'[^']*'|&&", "", line)):
        return False
    try:
        commands = read_script(line)
    except Unreadable:
        return False
    return all(_plain(["*" if word.text is None else word.text for word in command.words]) for command in commands)


def _plain(words: list[str]) -> bool:
    if not words or words[0] not in _PLAIN:
        return False
    if words[0] == "git":
        return len(words) > 1 and words[1] in ("status", "log", "diff", "show", "branch")
    if words[0] == "sed":
        return len(words) == 4 and words[1] == "-n" and re.fullmatch(r"\d+(,\d+)?p", words[2]) is not None
    refused = {"find": ("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fls", "-fprint"), "rg": ("--pre", "-z")}
    return not set(words) & set(refused.get(words[0], ()))


def play(trial: Trial, count: int, seed: int, told: bool = True) -> dict[str, object]:
    """Judge and run so many lines."""
    draw, choice, known = random.Random(seed), random.Random(seed), everyday()
    allowed_in_all, distinct, refused_run, refused_opened, read_otherwise = 0, set[str](), 0, 0, 0
    hits, began = list[tuple[str, str]](), time.monotonic()
    for start in range(0, count, BATCH):
        trial.lay_out()
        lines = [make_line(draw, trial.denied, known) for _ in range(min(BATCH, count - start))]
        lines = [line for line in lines if "\0" not in line]
        allowed = [line for line in lines if trial.allowed(line)]
        allowed_in_all += len(allowed)
        distinct.update(allowed)
        found = trial.opened(allowed)
        hits += found
        for line, shell in found:
            print(f"opened by {shell}: {line!r}", file=sys.stderr, flush=True)
        trial.lay_out()
        for line, words in (otherwise := unread(trial, allowed)):
            print(f"read otherwise than bash does: {line!r}, which ran {words!r}", file=sys.stderr, flush=True)
        read_otherwise += len(otherwise)
        refused = [line for line in lines if line not in distinct]
        sample = choice.sample(refused, min(REFUSED_RUN, len(refused)))
        refused_run += len(sample)
        refused_opened += len({line for line, _ in trial.opened(sample, own=True)})
        if told:
            seconds = time.monotonic() - began
            print(
                f"{start + len(lines)} lines, {allowed_in_all} allowed, {len(hits)} denied opens, {seconds:.0f} s",
                flush=True,
            )
    return {
        "lines": count, "asked": count - allowed_in_all, "allowed": allowed_in_all, "allowed_distinct": len(distinct),
        "denied_opens": len(hits), "read_otherwise": read_otherwise, "refused_run": refused_run,
        "refused_opened": refused_opened,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="etude-permissions-", dir="/var/tmp"))
    try:
        trial = Trial(top)
        os.environ |= {"XDG_CACHE_HOME": str(default_cache_dir().parent), "HOME": str(trial.home)}
        result = play(trial, options.lines, options.seed)
        trial.lay_out()
        result["everyday"] = shares(trial)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(json.dumps(result))
    sys.exit(1 if result["denied_opens"] or result["read_otherwise"] else 0)


if __name__ == "__main__":
    main()
