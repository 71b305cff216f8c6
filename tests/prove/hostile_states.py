"""States that a hostile policy could leave, made at random, and what becomes of each.

    python tests/prove/hostile_states.py [--states 10000] [--seed 0] [--at-once 3] [--forks 1] [--only NAME]

Each state is one to five of the primitives below, run as commands inside a sandbox; then it is forked, taken out,
judged by a real verifier and audited. Whatever was done, the outcome must be a verdict: that of the tests, where no
harm was done, and none against the policy, where the fault is ours. Prints, last, one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "environments"))
from own_leftovers import left

from etude.environments.base import Backend, Sandbox, SandboxSpec
from etude.environments.namespace import NamespaceBackend, NamespaceConfig, NamespaceSandbox
from etude.errors import EtudeError, SandboxSpoiled
from etude.harness.session import SessionResult
from etude.records import InfraFailed, Task, Verifier
from etude.rewards.judgement import Judges
from etude.rewards.sealed import judge, run_to_seal

TEST = b"""mkdir -p /logs/verifier
reward=0; test -f /workspace/given && sh /workspace/check.sh && reward=1
echo $reward > /logs/verifier/reward.txt
"""
FILES = {"given": b"1\n", "sub/module.py": b"def f():\n    return 1\n", "check.sh": b"false\n"}
TASK = Task(
    "hostile",
    "",
    FILES,
    Verifier({"/tests/test.sh": TEST, "/workspace/check.sh": b'test "$(cat answer)" = 42\n'}, timeout_s=10.0),
)
DEEP = "import os\nfor _ in range({}): os.mkdir('{}'); os.chdir('{}')\nopen('end', 'w').write('x')"
FRAGMENTS = """import os
for n in range({}):
  f = os.open('fragments%d' % n, os.O_CREAT | os.O_WRONLY)
  for i in range(6000): os.pwrite(f, b'x', i * 8192)"""
"""About 49 MB a file, half of which is on the disk."""

PRIMITIVES: dict[str, str] = {
    # sizes
    "sparse_huge": "truncate -s 900G huge",
    "sparse_largest": "truncate -s 9223372036854775807 largest",
    "sparse_many": "for i in 0 1 2 3 4 5 6 7 8 9; do truncate -s 40M sparse$i; done",
    "sparse_some": "truncate -s 12M hole; printf end >> hole",
    "holes": "for i in 1 2 3 4 5 6 7 8 9; do printf x | dd of=holes bs=1 seek=$((i * 1000000)) conv=notrunc; done",
    "twelve_links": "head -c 20000000 /dev/zero | tr '\\0' x > big; for i in 1 2 3 4 5 6 7 8 9 a b; do ln big $i; done",
    "links_across": "echo x > a; mkdir -p d/e; ln a d/a; ln a d/e/a; ln d/e/a z; ln -s a s; ln s s2",
    "links_to_hidden": "mkdir -p .git; echo 'print(1)' > .git/x; ln .git/x hidden.py",
    "fill": "head -c 200M /dev/zero > fill",
    "one_large": "truncate -s 52000000 large",
    "fragmented": f"python3 -c \"{FRAGMENTS.format(5)}\"",
    "fragmented_some": f"python3 -c \"{FRAGMENTS.format(2)}\"",
    # numbers
    "entries": "mkdir -p many; cd many; seq 1 3000 | xargs touch",
    "inodes": "mkdir inodes; cd inodes; seq 1 40000 | xargs touch 2>&1 | tail -1",
    "fifos": "mkdir fifos; cd fifos; seq 1 300 | xargs mkfifo",
    "links_many": "mkdir ln; echo x > ln/0; cd ln; for i in $(seq 1 300); do ln 0 $i; done",
    # shapes
    "deep": f'python3 -c "{DEEP.format(3000, "d", "d")}"',
    "deep_wide": f"python3 -c \"{DEEP.format(24, 'w' * 250, 'w' * 250)}\"",
    "path_max": f"python3 -c \"{DEEP.format(40, 'p' * 200, 'p' * 200)}\"",
    "path_under": f"python3 -c \"{DEEP.format(15, 'q' * 250, 'q' * 250)}\"",
    "loop": "ln -s loop loop; ln -s . here; ln -s .. up",
    "links_out": "ln -s CANARY/file canary; ln -s CANARY/open open; ln -s /proc/1/root root; "
    "ln -s /proc/self/fd fd; ln -s /dev/zero zero",
    "long_target": "ln -s $(head -c 4000 /dev/zero | tr '\\0' t) long",
    "fifo": "mkfifo pipe; rm -f given; mkfifo given",
    "sockets": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
    "whiteout": "mknod white c 0 0; mknod /tmp/w c 0 0; mv /tmp/w white2; cp -a /tmp/w white3; rm -r sub; mkdir sub",
    "opaque": "rm -rf sub; mkdir sub; touch sub/x; rm given; mkdir given; touch given/in",
    "xattrs": (
        "python3 -c \"import os\nfor n in ('user.overlay.opaque', 'user.overlay.redirect', 'trusted.overlay.opaque', "
        "'user.overlay.metacopy', 'security.capability', 'user.big'):\n"
        " for p in ('sub', 'given'):\n  try: os.setxattr(p, n, b'y' * (60000 if 'big' in n else 1))\n"
        '  except OSError: pass"'
    ),
    # names
    "bytes": "touch -- \"$(printf '\\377\\376')\" \"$(printf 'a\\nb')\" \"$(printf '\\033[2J')\" ' ' '-rf' '*' '\\'",
    "dots": "touch ... ..x '. ' .. 2>&1; mkdir -p ..../...; touch '..\\' 'a:b' 'C:' 'nul'",
    "long_names": "touch $(head -c 255 /dev/zero | tr '\\0' n); mkdir $(head -c 255 /dev/zero | tr '\\0' m)",
    "case": "touch Given GIVEN gIVEN; mkdir SUB Sub",
    "unicode": "touch \"$(printf 'e\\314\\201')\" \"$(printf '\\303\\251')\" \"$(printf '\\342\\200\\256gnp')\"",
    # rights and times
    "shut": "mkdir -p no/in; echo x > no/in/x; chmod 0 no/in/x no/in no; chmod 0 given",
    "shut_root": "chmod 0 .",
    "read_only": "chmod 0444 given; chmod 0555 sub .",
    "no_x": "mkdir -p rx/in; touch rx/f; chmod 0444 rx",
    "setuid": "cp /bin/sh s; chmod 7777 s; chmod 1777 sub; chmod +t .",
    "immutable": "chattr +i given; chattr +a sub",
    "times": "touch -d @-1 past; touch -d @9999999999 future; touch -d '1 Jan 99999' far; touch -d @0 sub",
    # places
    "emptied": "rm -rf /workspace/* /workspace/.[!.]*",
    "no_cwd": "mkdir gone; cd gone; rmdir ../gone",
    "moved": "mv /workspace /w2; rmdir /workspace; ln -s /tmp /workspace; mount -t tmpfs x .; mount --bind / .",
    "in_the_way": "rm -f check.sh; mkdir -p check.sh/in/the/way",
    "link_in_the_way": "rm -f check.sh; ln -s CANARY/file check.sh",
    "loop_in_the_way": "rm -f check.sh; ln -s check.sh check.sh",
    "tmp_full": "head -c 100M /dev/zero > /tmp/fill; head -c 50M /dev/zero > ~/fill",
    # processes
    "writer": "(while :; do date > w; mkdir -p m/n; mv m m2; rm -rf m2; done) > /dev/null 2>&1 &",
    "grower": "(while :; do for i in 1 2 3 4 5 6 7 8 9; do truncate -s ${i}0M g$i; done; rm g?; done) 2> /dev/null &",
    "swapper": "mkdir sw; (while :; do rm -rf sw; ln -s CANARY sw; rm sw; mkdir sw; done) 2> /dev/null &",
    "sleepers": "for i in $(seq 1 300); do sleep 60 & done",
    "stopped": "sh -c 'kill -STOP $$' & sleep 0",
    "memory": "python3 -c \"x = bytearray(1 << 30)\"",
    "killer": "kill -9 1; kill -9 -1",
    "python": "mkdir -p __pycache__; printf '\\0' > sub/module.py; printf 'def f(:' > new.py; touch conftest.py",
}  # fmt: skip

HARMLESS = frozenset({
    "sparse_some", "holes", "links_across", "links_to_hidden", "entries", "fifos", "links_many", "path_under",
    "loop", "links_out", "long_target", "sockets", "whiteout", "xattrs", "bytes", "dots", "long_names", "case",
    "unicode", "shut", "shut_root", "read_only", "no_x", "setuid", "immutable", "times", "no_cwd", "writer",
    "swapper", "stopped", "killer",
})  # fmt: skip
"""However many of them make up a state, its tests can be run: they say what became of it, and nobody is blamed."""
TOO_MUCH = frozenset({"sparse_huge", "sparse_largest", "sparse_many", "one_large", "fill", "deep"})
"""Each by itself is more than is taken out of a sandbox."""
FIRST = ("links_across", "sparse_many")
"""Every run begins with these, one by one, so that it has one of either kind, and one that would take too much memory
if it were taken out."""
FAULTS = (
    "infra_failed", "unearned", "unexpected", "spoiled_forks", "outside_touched", "strays", "outside_read", "left_over",
    "left_running", "too_much_memory",
)  # fmt: skip
STATE_MB, SLACK_MB = 256, 100
"""What docs/environments.md says is taken out of a sandbox at most, for each state that is judged at once; and what a
controller may need for itself beyond that. The first is no name of the program's: it would grow with what it bounds."""
CANARY = Path(f"/var/tmp/etude-canary-{os.getpid()}")
"""A directory of the host that states aim at: nothing may change in it, and what its file says may be in no state."""
SAID = secrets.token_hex(16)
ANSWER = "echo 42 > answer"
MARK = f"etude-mark-{secrets.token_hex(8)}"
"""A file of this name is in every state, and of nobody else: where the run is over, no such file may be anywhere."""
SEARCHED = {"/": 2, "/tmp": 3, "/var/tmp": 3, "/dev/shm": 3, str(Path.home()): 3}
"""Where it is looked for outside, and how deep."""
RARE = {
    "fragmented": 0.1, "fragmented_some": 0.3,
    "inodes": 0.02, "fill": 0.05, "deep": 0.1, "entries": 0.1, "links_many": 0.1, "twelve_links": 0.1, "memory": 0.1,
    "sleepers": 0.1, "sparse_huge": 0.3, "sparse_largest": 0.3, "sparse_many": 0.3, "one_large": 0.3, "deep_wide": 0.3,
    "path_max": 0.3, "in_the_way": 0.3, "link_in_the_way": 0.3, "loop_in_the_way": 0.3,
}  # fmt: skip
"""Those that take long, or after which nothing else matters, as shares of how often others are drawn."""


@dataclass
class Tally:
    """What became of the states of a run."""

    scored: int = 0
    blocked: int = 0
    passed: int = 0
    expected: int = 0
    """States whose primitives leave one outcome open."""
    forked: int = 0
    spoiled_forks: int = 0
    infra_failed: list[str] = field(default_factory=list)
    unearned: list[str] = field(default_factory=list)
    """States that passed without the answer."""
    unexpected: list[str] = field(default_factory=list)
    """States whose outcome is another than their primitives, or what we broke, leave open."""
    outside_read: list[str] = field(default_factory=list)
    """States that what lies outside came into."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each primitive was drawn."""
    reasons: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    """Of the commands, by status: 124 is one that had to be stopped."""


def state_of(seed: int, only: str = "") -> tuple[list[str], str]:
    """The names of its primitives, and the commands; half of the states hold the right answer. `only` is one primitive
    in place of those that are drawn."""
    draw = random.Random(f"state {seed}")
    keys = {name: draw.random() ** (1 / RARE.get(name, 1.0)) for name in PRIMITIVES}
    names = sorted(PRIMITIVES, key=lambda name: keys[name])[-draw.randint(1, 5) :]
    draw.shuffle(names)
    names = [only] if only else names
    return names, line_of(names, draw.random() < 0.5)


def line_of(names: Sequence[str], answered: bool) -> str:
    """The commands of a state."""
    lines = [ANSWER] if answered else []
    lines += [f"echo > {MARK}; mkdir sub/{MARK}"]
    lines += [f"cd /workspace; ( {PRIMITIVES[name]}\n) > /dev/null 2>&1" for name in names]
    return "\n".join(lines).replace("CANARY", str(CANARY))


def expected(names: Sequence[str], answered: bool) -> str:
    """The reason of the verdict on a state, where its primitives leave no other open."""
    if HARMLESS.issuperset(names):
        return "passed" if answered else "failed"
    return "blocked" if len(names) == 1 and TOO_MUCH.issuperset(names) else ""


async def outcome_of(
    seed: int, names: Sequence[str], command: str, backend: Backend, judges: Judges, tally: Tally, fork: bool = True
) -> None:
    """Play, fork, seal and judge one state."""
    tally.kinds.update(names)
    answered = command.startswith(ANSWER)

    async def session(sandbox: Sandbox) -> SessionResult:
        tally.exits[(await sandbox.exec(command, timeout_s=20.0)).exit_code] += 1
        if fork:
            await _fork(sandbox, tally)
        return SessionResult(str(seed), (), (), "finished", {})

    try:
        sealed = await run_to_seal(TASK, backend, session)
        if any(SAID.encode() in tar for _, tar in sealed.final.parts):
            tally.outside_read.append(f"{seed} {names}")
        verdict = (await judge(TASK, sealed, backend, judges)).verdict
    except (EtudeError, OSError) as error:  # as rollouts.session does
        verdict = InfraFailed(f"{type(error).__name__}: {error}")
    if isinstance(verdict, InfraFailed):
        tally.infra_failed.append(f"{seed} {names}: {verdict.what[:500]}")
        return
    tally.reasons[verdict.reason] += 1
    tally.scored += 1
    tally.blocked += verdict.reason == "blocked"
    tally.passed += verdict.reward == 1.0
    if verdict.reward == 1.0 and not answered:
        tally.unearned.append(f"{seed} {names}")
    due = expected(names, answered)
    tally.expected += bool(due)
    if due and verdict.reason != due:
        tally.unexpected.append(f"{seed} {names}: {verdict.reason} in place of {due}: {verdict.detail[:500]}")


async def _fork(sandbox: Sandbox, tally: Tally) -> None:
    try:
        (copy,) = await sandbox.fork(1)
    except SandboxSpoiled:
        tally.spoiled_forks += 1
        return
    tally.forked += 1
    await copy.destroy()


class Dying(NamespaceBackend):
    """Its sandboxes are gone as soon as they are made."""

    async def create(self, spec: SandboxSpec) -> NamespaceSandbox:
        sandbox = await super().create(spec)
        await sandbox.destroy()
        return sandbox


async def first(backend: Backend, dying: Backend, judges: Judges) -> list[str]:
    """What is unexpected of the states that every run begins with; the last is harmless, and judged where we fail: that
    may be held against nobody."""
    tally = Tally()
    for name in FIRST:
        await outcome_of(-1, [name], line_of([name], True), backend, judges, tally)

    async def session(sandbox: Sandbox) -> SessionResult:
        await sandbox.exec(line_of(FIRST[:1], True), timeout_s=20.0)
        return SessionResult("first", (), (), "finished", {})

    sealed = await run_to_seal(TASK, backend, session)
    verdict = (await judge(TASK, sealed, dying, judges)).verdict
    blamed = [] if isinstance(verdict, InfraFailed) else [f"what we broke is held against a policy: {verdict}"]
    return [*tally.infra_failed, *tally.unexpected, *blamed]


async def many(seeds: range, backend: Backend, at_once: int, forks: int = 1, only: str = "") -> Tally:
    """Of every `forks`-th state a fork is made."""
    tally, waiting = Tally(), iter(seeds)

    async def worker() -> None:
        for seed in waiting:
            names, command = state_of(seed, only) if only else state_of(seed)
            await outcome_of(seed, names, command, backend, judges, tally, seed % forks == 0)
            if seed % 500 == 499:
                print(
                    f"{seed + 1 - seeds.start}: {tally.scored} scored, {len(tally.infra_failed)} not", file=sys.stderr
                )

    async with Judges(audited=True) as judges:
        await asyncio.gather(*(worker() for _ in range(at_once)))
    return tally


def fingerprint(*places: Path) -> dict[str, tuple[object, ...]]:
    """Of everything below some directories of the host: names, kinds, sizes, times; and contents, where small."""
    found = {}
    for path in (each for place in places for each in (place, *place.rglob("*"))):
        with contextlib.suppress(FileNotFoundError):  # others of this machine work in /etc too
            info = path.lstat()
            if path.is_symlink():
                data = os.fsencode(os.readlink(path))  # not where it leads: /etc/mtab to what anybody mounts
            else:
                data = path.read_bytes() if path.is_file() and info.st_size < 100_000 else b""
            found[str(path)] = (info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns, hash(data))
    return found


def strays(mark: str = MARK) -> list[str]:
    """What states made and is outside of any sandbox, after all of these are gone."""
    found = set[str]()
    for top, depth in SEARCHED.items():
        find = ["find", top, "-xdev", "-maxdepth", str(depth), "-name", f"{mark}*"]
        found.update(
            subprocess.run(find, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
        )
    return sorted(found)


def _children() -> set[str]:
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def _peak_mb() -> int:
    """Of this program alone: what getrusage tells begins with the peak of the process that started it."""
    (kib,) = re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kib) // 1024


def prove(states: int, seed: int, at_once: int, forks: int, only: str = "") -> dict[str, Any]:
    """Run, and say what became of them."""
    (CANARY / "open").mkdir(parents=True, exist_ok=True)
    (CANARY / "open").chmod(0o777)
    (CANARY / "file").write_text(SAID)
    (CANARY / "file").chmod(0o666)
    try:
        places = (CANARY, Path(__file__).parent, Path("/etc"))
        before, began = fingerprint(*places), time.monotonic()

        async def whole() -> tuple[Tally, int, int, list[str]]:
            config = NamespaceConfig(limits="cgroup" if os.geteuid() == 0 else "rlimit")
            opened, dying = NamespaceBackend(config), Dying(config)
            try:
                base = _peak_mb()
                others = _children()  # the backends'
                async with Judges(audited=True) as judges:
                    unexpected, peak = await first(opened, dying, judges), _peak_mb()
                tally = await many(range(seed, seed + states), opened, at_once, forks, only)
                tally.unexpected = [*unexpected, *tally.unexpected]
                return tally, base, peak, sorted(_children() - others)
            finally:
                await dying.close()
                await opened.close()

        tally, base, peak, running = asyncio.run(whole())
        touched = sorted({path for path, _ in before.items() ^ fingerprint(*places).items()})
    finally:
        shutil.rmtree(CANARY)
    return {
        "states": states,
        "infra_failed": len(tally.infra_failed),
        "blocked": tally.blocked,
        "scored": tally.scored,
        "passed": tally.passed,
        "blocked_share": round(tally.blocked / states, 3),
        "passed_share": round(tally.passed / states, 3),
        "expected": tally.expected,
        "reasons": dict(tally.reasons),
        "kinds": dict(tally.kinds.most_common()),
        "exits": dict(tally.exits),
        "forked": tally.forked,
        "spoiled_forks": tally.spoiled_forks,
        "max_rss_mb": _peak_mb(),
        "base_rss_mb": base,
        "first_rss_mb": peak,
        "unearned": tally.unearned[:20],
        "unexpected": tally.unexpected[:20],
        "outside_touched": touched[:20],
        "strays": strays()[:20],
        "outside_read": tally.outside_read[:20],
        "left_over": left(),
        "left_running": running,
        "backend": "namespace",
        "root": os.geteuid() == 0,
        "wall_s": round(time.monotonic() - began, 1),
        "failures": tally.infra_failed[:20],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--forks", type=int, default=1, help="fork every so manyth state")
    parser.add_argument("--only", choices=PRIMITIVES, default="", help="this primitive in every state, and no other")
    given = parser.parse_args()
    found = prove(given.states, given.seed, given.at_once, given.forks, given.only)
    found["budget_mb"] = found["base_rss_mb"] + given.at_once * STATE_MB + SLACK_MB
    found["too_much_memory"] = (
        found["max_rss_mb"] > found["budget_mb"] or found["first_rss_mb"] > found["base_rss_mb"] + STATE_MB + SLACK_MB
    )
    print(json.dumps(found))
    sys.exit(any(found[fault] for fault in FAULTS))
