"""Real shells against the reader of command lines: what bash or dash runs, the judge must have seen.

Lines are made of every construct that can hide a command, put into each other at random, and half of them damaged by
random edits as well. Each hides `canary NUMBER`, which is denied. Both shells run them, in a sandbox; where the canary
sang, the line must not have been allowed. So it is not our own idea of a shell that is tested.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.permissions import Judge, PermissionConfig

LINES = int(os.environ.get("ETUDE_SHELL_LINES", "300"))
SEED = int(os.environ.get("ETUDE_SHELL_SEED", "11"))
"""More, and others, for whoever changes the reader."""
JUDGE = Judge(PermissionConfig(deny=("run(canary *)",), runs="allow", outside="allow", builtin=False))
CALLS = (
    "canary @",
    '"canary" @',
    "can\\ary @",
    "ca''nary @",
    "'canary' @",
    "$'canary' @",
    "X=1 canary @",
    ">o canary @",
    "\\canary @",
    "canary  @ 2>&1",
    "canary @ >o",
    "/tmp/bin/canary @",
    "canary\t@",
    "canary @ <<<x",
    "canary '@'",
    'canary "@"',
    "canary \\\n@",
)
AROUND = (
    "%",
    "ls; %",
    "true && %",
    "false || %",
    "ls | %",
    "% &\nwait",
    "(%)",
    "{ %; }",
    "if true; then %; fi",
    "if %; then :; fi",
    "for i in 1; do %; done",
    "for i in $(%); do :; done",
    "while %; do break; done",
    "until %; do break; done",
    "case a in a) %;; esac",
    "case $(%) in *) :;; esac",
    "f() { %; }; f",
    "function g { %; }; g",
    "echo $(%)",
    'echo "$(%)"',
    'echo "a $(%) b"',
    "echo `%`",
    'echo "`%`"',
    "cat <<E\n$(%)\nE",
    "cat <<E\n`%`\nE",
    "cat <<'E'\n%\nE",
    "A=$(%)",
    "A=$(%) ls",
    "export A=$(%)",
    "eval '%'",
    'eval "%"',
    "sh -c '%'",
    'bash -c "%"',
    "sh <<E\n%\nE",
    "sh <<'E'\n%\nE",
    "bash <<< '%'",
    "echo '%' | sh",
    "env %",
    "nice %",
    "time %",
    "! %",
    "timeout 5 %",
    "command %",
    "exec %",
    "xargs % </dev/null",
    "find . -maxdepth 0 -exec % ;",
    "find . -maxdepth 0 -exec % \\;",
    "echo ${Q:-$(%)}",
    'echo "${Q:-$(%)}"',
    'echo "${Q:-`%`}"',
    '[ -n "$(%)" ]',
    "[[ -n $(%) ]]",
    "[[ a || % ]]",
    "((%))",
    "$((%))",
    "echo $(( $(%) + 1 ))",
    "cat <(%)",
    "ls > >(%)",
    "trap '%' EXIT",
    "x=(a $(%))",
    "a[$(%)]=1",
    "unset 'a[$(%)]'",
    "echo a # %",
    "echo '%'",
    'echo "%"',
    "echo \\%",
    "ls\n%",
    "ls & %",
    "ls |& %",
    "% || :",
    ": && % ; :",
    "{ ls; %; } > o",
    "echo $'%'",
    'echo $"%"',
    "echo a\\\n%",
    "echo ${#Q}; %",
    "echo $#; %",
    "coproc %",
    "select x in a; do %; break; done </dev/null",
    "declare -i n='a[$(%)]'",
    "let 'a[$(%)]=1'",
    "printf -v 'a[$(%)]' x",
    "Q='$(%)'; echo ${Q@P}",
    "alias z='%'\nz",
    "shopt -s expand_aliases; alias z='%'\nz",
    "PS4='$(%)'; set -x; :",
    "test -v 'a[$(%)]'",
    "Q='a[$(%)]'; echo $((Q))",
    "Q='a[$(%)]'; [[ $Q -eq 0 ]]",
    "Q='a[$(%)]'; echo ${R:Q}",
    "cat <<E | sh\n%\nE",
    "cat <<\\E | sh\n%\nE",
    "cat <<E\n\\$(%)\nE",
    "echo {a,$(%)}",
    "echo ~$(%)",
    "echo *$(%)",
    "hash -p /tmp/bin/canary ls; ls @",
    "bash -c 'echo $(( $1 ))' _ 'a[$(%)]'",
    "set -- 'a[$(%)]'; echo $(( $1 ))",
    "echo 'a[$(%)]' > g; A=([$(cat g)]=1)",
    "mkdir -p n; cd n; touch -- -v 'a[$(%)]'; test *",
    "mkdir -p n; cd n; touch -- -v 'a[$(%)]'; printf * x",
    'mkdir -p n; cd n; touch -- -v \'a[$(%)]\'; for f in *; do for g in *; do [ "$f" "$g" ]; done; done',
    "echo '%' | xargs -I{} sh -c '{}'",
    "echo '%' | xargs -rI@ sh -c '@'",
    "echo '$(%)' | xargs -0I@ sh -c 'echo @'",
    "echo x | xargs --replace % ls",
    "echo x | xargs --max-lines % ls",
    "echo '%' > g; eval \"$(grep . g)\"",
    "echo '%' > g; eval \"$(sed -n p g)\"",
    "echo '%' > g; . <(cat g)",
    "echo '%' > g; bash <(grep . g)",
    "echo '%' > g; find . -name g -exec sh -c '. \"$1\"' _ {} \\;",
    "env -S '%'",
    'echo "$ $(%)"',
    'echo "a$\t`%`"',
    "cat <<E\n $(%)\nE",
    "cat <<E\na\n\t$(%)\nE",
    "cat <<-E\n\t$(%)\n\tE",
    "echo \"${Q:-'$(%)'}\"",
    'echo `echo "\\$(%)"`',
    "unset PATH; PATH=/tmp/bin; %",
    "printf -vPATH /tmp/bin; %",
    "read -aPATH <<< /tmp/bin; %",
)
PIECES = (
    '"',
    "'",
    "`",
    "$",
    "(",
    ")",
    "{",
    "}",
    ";",
    "&",
    "|",
    "<",
    ">",
    "\n",
    "#",
    "*",
    "!",
    "=",
    "~",
    "[",
    "]",
    "\\",
    " ",
    "\t",
    "\\\n",
    "$(",
    "${",
    "((",
    "))",
    "<<E\n",
    "\nE\n",
    "&&",
    "||",
    ";;",
    "\r",
    "if ",
    "then ",
    "fi",
    "do ",
    "done",
    "$'",
    "\\'",
    "2>",
    "a=",
    "-c ",
)
RUN = """
import json, os, subprocess
os.makedirs("/tmp/bin", exist_ok=True)
with open("/tmp/bin/canary", "w") as file:
    file.write('#!/bin/sh\\nprintf "%s\\\\n" "$@" >> /tmp/sang\\n')
os.chmod("/tmp/bin/canary", 0o755)
env = {**os.environ, "PATH": "/tmp/bin:" + os.environ["PATH"]}
os.makedirs("/tmp/here", exist_ok=True)
for line in json.load(open("/workspace/lines.json")):
    for shell in ("dash", "bash"):
        try:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run([shell, "-c", line], cwd="/tmp/here", env=env, timeout=3, **quiet)
        except (subprocess.TimeoutExpired, ValueError):
            pass
print(open("/tmp/sang").read())
"""


def make_line(draw: random.Random, number: int) -> str:
    line = draw.choice(CALLS)
    for _ in range(draw.choice((1, 1, 2, 2, 3))):
        line = draw.choice(AROUND).replace("%", line)
    if draw.random() < 0.5:
        for _ in range(draw.randrange(1, 5)):
            at, kind = draw.randrange(len(line) + 1), draw.random()
            if kind < 0.6:
                line = line[:at] + draw.choice(PIECES) + line[at:]
            elif kind < 0.8:
                line = line[:at] + line[at + 1 :]
            else:
                line = line[:at] + line[at : at + draw.randrange(1, 8)] + line[at:]
    return line.replace("@", str(number))


def test_what_a_shell_runs_was_seen(in_sandbox: Callable[..., Any]) -> None:
    draw = random.Random(SEED)
    lines = [make_line(draw, 100_000 + number) for number in range(LINES)]

    async def scenario(sandbox: Sandbox) -> str:
        done = await sandbox.exec("python3 run.py", timeout_s=LINES * 0.5 + 50, max_output_bytes=10_000_000)
        assert done.exit_code == 0, done.output[-2000:]
        return done.output.decode(errors="replace")

    sang = set(in_sandbox(scenario, {"run.py": RUN.encode(), "lines.json": json.dumps(lines).encode()}).split())
    ran = [line for number, line in enumerate(lines) if str(100_000 + number) in sang]
    verdicts = [JUDGE.judge("run_terminal_cmd", {"command": line}).verdict for line in ran]
    assert [line for line, verdict in zip(ran, verdicts, strict=True) if verdict == "allow"] == []
    assert len(ran) > LINES / 5 and verdicts.count("deny") > len(ran) / 4  # and not by asking about everything
