"""Whether the rules on reading can be talked round, and what they cost in questions.

    python benchmarks/permissions.py [--lines 100000] [--seed 0]

Command lines made at random around denied files and secrets are judged by the rules alone, once by rules that deny
files and once by the built-in rules, which ask about secrets by name. What either allows unasked is run in bash and
dash, where the files are there to be read, with all that it leaves running.

- `denied_opens` are lines, in a shell, that opened a denied file; `secret_opens` those that the built-in rules allow
  and that opened a secret.
- `read_otherwise` are lines of which a command ran, at any depth, with other words than were judged, whatever these do.
  `not_compared` commands were started by a program of its own accord, or could not be read.
- `timed_out` lines had to be ended, and a missing program ended those that are `not_found`. These show less than
  others: install what `missing` names.
- `refused_run` is a sample of what is refused; `refused_opened` of it opened a denied file, which the rules prevented.
  What the built-in rules ask about the rules that deny ask about too, and are not put to them but for this sample:
  `more_rules_less_asked` counts where that is not so.
- `everyday` are the shares of 300 commands that only read which nobody is asked about: with the default rules, with
  reads denied and hidden by the sandbox as the product does it, with reads denied and nothing hidden, and, for
  comparison, with the rule of an agent that has no sandbox: a known command of plain words. `everyday_by_others` is
  the same of 173 commands that somebody wrote without having seen the judge's table.

The last line is one JSON object. Needs bubblewrap, dash and strace; the lines also try git, rg, jq, tree, xxd, file
and gawk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from denied_reads.lines import make_line
from denied_reads.trial import Trial
from denied_reads.words import unread

from etude.environments.build import default_cache_dir
from etude.harness.permissions import Judge, WorkspacePaths, unreadable
from etude.harness.permissions.reading import opens
from etude.harness.permissions.shell import Unreadable, read_script
from etude.harness.permissions.unwrap import unwrap

LISTS = Path(__file__).parents[1] / "tests" / "harness"
BATCH = 2_000
FAULTS = ("denied_opens", "secret_opens", "read_otherwise", "more_rules_less_asked")
REFUSED_RUN = 100
"""Of a batch."""
_PLAIN = {
    "cat", "cd", "cut", "echo", "expr", "false", "grep", "head", "id", "ls", "nl", "paste", "pwd", "rev", "seq", "stat",
    "tail", "tr", "true", "uname", "uniq", "wc", "which", "whoami", "find", "rg", "git", "sed",
}  # fmt: skip
"""What an agent of the field allows unasked without a sandbox: these, with options that do not write, git's
`status log diff show branch`, and `sed -n Np`; in lists and pipelines, without variables, substitutions, loops or
redirections."""


def everyday(name: str = "everyday") -> list[str]:
    lines = (LISTS / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def shares(trial: Trial, lines: Sequence[str]) -> dict[str, float]:
    """The part of these commands that nobody is asked about, by the rules in force."""
    place = WorkspacePaths(trial.project)
    gone = [os.path.join(trial.project, path) for path in unreadable(trial.rules, trial.project)]
    judges = {
        "default": trial.by_default,
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


@dataclass
class Tally:
    """What a run has found so far."""

    allowed: int = 0
    default_allowed: int = 0
    """Of all lines, by either rules, each as often as it was made."""
    denied_opens: int = 0
    secret_opens: int = 0
    read_otherwise: int = 0
    secrets_compared: int = 0
    """Runs of git that opened a secret and printed nothing of it: `git diff --stat`."""
    not_compared: int = 0
    timed_out: int = 0
    not_found: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    more_rules_less_asked: int = 0
    refused_run: int = 0
    refused_opened: int = 0


def play(trial: Trial, count: int, seed: int, told: bool = True) -> dict[str, object]:
    """Judge so many lines, and run those that are allowed, each once."""
    draw, choice, known = random.Random(seed), random.Random(seed), everyday()
    tally, ran, began = Tally(), dict[str, None](), time.monotonic()
    named = (*trial.denied, *trial.secret)
    distinct = set[str]()
    for start in range(0, count, BATCH):
        trial.lay_out(secrets=True)
        lines = [make_line(draw, named, known) for _ in range(min(BATCH, count - start))]
        lines = [line for line in lines if "\0" not in line]
        default = [line for line in lines if trial.allowed(line, trial.by_default)]
        denying = [line for line in default if trial.allowed(line)]
        tally.allowed += len(denying)
        tally.default_allowed += len(default)
        distinct.update(denying)
        new = [line for line in dict.fromkeys((*denying, *default)) if line not in ran]
        ran |= dict.fromkeys(new)
        _run(trial, tally, new, set(denying), set(default))
        refused = [line for line in lines if line not in ran]
        sample = choice.sample(refused, min(REFUSED_RUN, len(refused)))
        for line in (less := [line for line in sample if trial.allowed(line)]):
            _say(f"asked about, and with more rules not: {line!r}")
        tally.more_rules_less_asked += len(less)
        tally.refused_run += len(sample)
        opened = (hit.line for hit in trial.opened(sample, own=True).hits if hit.files & trial.denied_files)
        tally.refused_opened += len(set(opened))
        if told:
            seconds = time.monotonic() - began
            print(
                f"{start + len(lines)} lines, {len(ran)} run, {tally.denied_opens} denied opens, "
                f"{tally.secret_opens} of secrets, {tally.read_otherwise} read otherwise, {seconds:.0f} s",
                flush=True,
            )
    return {
        "lines": count, "asked": count - tally.allowed, "default_asked": count - tally.default_allowed,
        "allowed_distinct": len(distinct), "distinct_run": len(ran), **asdict(tally),
        "missing": dict(tally.missing.most_common()),
    }  # fmt: skip


def _run(trial: Trial, tally: Tally, lines: list[str], denying: set[str], default: set[str]) -> None:
    """Run what was allowed, by the rules that deny or by the default ones, and say at once what is wrong."""
    runs = trial.opened(lines)
    for line, shell, files in runs.hits:
        denied = files & trial.denied_files if line in denying else frozenset()
        secret = files & trial.secret_files if line in default else frozenset()
        if secret and _git_alone(line) and not trial.shows(line, shell):
            tally.secrets_compared, secret = tally.secrets_compared + 1, frozenset()
        tally.denied_opens += bool(denied)
        tally.secret_opens += bool(secret)
        for kind, found in (("denied", denied), ("secret", secret)):
            if found:
                names = ", ".join(os.path.relpath(path, trial.top) for path in sorted(found))
                _say(f"{kind}, opened by {shell}: {line!r} ({names})")
    for line, shell in runs.timed_out:
        _say(f"had to be ended in {shell}: {line!r}")
    tally.timed_out += len({line for line, _ in runs.timed_out})
    ended = {line for line, shell in runs.not_found if shell == "bash"}  # a dash has no `[[`
    tally.not_found += len(ended)
    tally.missing.update(name for line in ended for name in missing_programs(line, trial.env["PATH"]))
    trial.lay_out()
    otherwise, others = unread(trial, lines)
    for line, words in otherwise:
        _say(f"read otherwise than it was run: {line!r}, of which ran {words!r}")
    tally.read_otherwise += len(otherwise)
    tally.not_compared += others


def _git_alone(line: str) -> bool:
    """Whether nothing but git could have opened a file: beside it stand only commands that open none."""
    try:
        commands = unwrap(read_script(line))
    except Unreadable:
        return False
    words = [[word.text for word in command.words] for command in commands]
    return all(not command.redirects for command in commands) and all(
        not each or each[0] == "git" or opens(each) == "nothing" for each in words
    )


def missing_programs(line: str, path: str) -> set[str]:
    """The plain names in a line that stand where a command's does and that no shell and no directory of `path` has."""
    names = {command.words[0].text for command in unwrap(read_script(line)) if command.words}
    plain = {name for name in names if name and re.fullmatch(r"[\w.+-]+", name)}
    return {name for name in plain - _builtins() if shutil.which(name, path=path) is None}


@cache
def _builtins() -> set[str]:
    return set(subprocess.run(["bash", "-c", "compgen -bk"], check=True, capture_output=True, text=True).stdout.split())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="etude-permissions-", dir="/var/tmp"))
    trial = Trial(top)
    try:
        os.environ |= {"XDG_CACHE_HOME": str(default_cache_dir().parent), "HOME": str(trial.home)}
        trial.set_apart()
        result = play(trial, options.lines, options.seed)
        trial.lay_out(secrets=False)
        result["everyday"] = shares(trial, everyday())
        result["everyday_by_others"] = shares(trial, everyday("everyday_by_others"))
    finally:
        trial.remove()
    if result["missing"]:
        _say(f"not installed here, so that these lines show nothing: {', '.join(result['missing'])}")
    print(json.dumps(result))
    sys.exit(any(result[fault] for fault in FAULTS))


if __name__ == "__main__":
    main()
