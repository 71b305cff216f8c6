"""Runs lines in bash and says which commands ran, word by word. Alone in a sandbox, without Etude; needs strace.

    python tracer.py PLAN    # {"lines": […], "directory": …}

bash tells each simple command before it runs it (`set -x`), and so does every bash below it, builtins too; the kernel
tells each program that anything below it starts (execve), with its words and who started it.
"""

import json
import os
import re
import sys
import tempfile

import leash

MOST = 64 << 10
_CALL = re.compile(rb"(\d+) +(?:<\.\.\. )?(\w+)(?:\((.*)| resumed>(.*))")
_STRING = rb'"((?:\\x[0-9a-f]{2})*)"'
_EXECVE = re.compile(_STRING + rb", \[((?:" + _STRING + rb"(?:, )?)*)\]")
_FORKS = (b"clone", b"clone3", b"fork", b"vfork")


def main() -> None:
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    os.chdir(plan["directory"])
    bell = leash.adopt()
    print("\n" + json.dumps({"traced": [traced(bell, line) for line in plan["lines"]]}))


def traced(bell: int, line: str) -> dict[str, object]:
    """`told` is bash's own account; `started` the programs: by which program, its path, its words."""
    with tempfile.TemporaryFile("a+b") as told, tempfile.NamedTemporaryFile() as calls:
        env = {**os.environ, "BASH_XTRACEFD": str(told.fileno()), "SHELLOPTS": "xtrace"}
        strace = ["strace", "-f", "-qq", "-xx", "-v", "-s", "65536", "--seccomp-bpf", "--signal=none"]
        shell = ["-e", "trace=execve,clone,clone3,fork,vfork", "-o", calls.name, "bash", "-c", line]
        leash.run(bell, strace + shell, env=env, pass_fds=[told.fileno()])
        told.seek(0)
        started, unread = starts(calls.read())
        return {"told": told.read(MOST).decode(errors="surrogateescape"), "started": started, "unread": unread}


def starts(calls: bytes) -> tuple[list[tuple[str, str, list[str]]], int]:
    """What strace told of, and how many of its lines on programs could not be read."""
    programs: dict[int, list[tuple[int, str]]] = {}
    parents: dict[int, tuple[int, int]] = {}
    found, unread, waiting = [], 0, {}
    for at, call in enumerate(calls.splitlines()):
        if (read := _CALL.match(call)) is None:
            continue
        pid, name, rest = int(read[1]), read[2], read[3] or read[4] or b""
        if name in _FORKS and (child := re.search(rb"= (\d+)$", call)):
            parents[int(child[1])] = pid, at
        elif name == b"execve":
            if read[3] is not None and (words := _EXECVE.match(read[3])):
                waiting[pid] = _text(words[1]), [_text(word) for word in re.findall(_STRING, words[2])]
                found.append((pid, at, *waiting[pid]))
            elif read[3] is not None:
                unread += 1
            if rest.endswith(b" = 0") and pid in waiting:
                programs.setdefault(pid, []).append((at, waiting[pid][0]))
    return [(_program(pid, at, programs, parents), path, words) for pid, at, path, words in found], unread


def _program(pid: int, at: int, programs: dict[int, list[tuple[int, str]]], parents: dict[int, tuple[int, int]]) -> str:
    """Which program a process was then; none for the first."""
    while True:
        if before := [path for number, path in programs.get(pid, ()) if number < at]:
            return before[-1]
        if pid not in parents:
            return ""
        pid, at = parents[pid]


def _text(told: bytes) -> str:
    return bytes.fromhex(told.decode().replace("\\x", "")).decode(errors="surrogateescape")


main()
