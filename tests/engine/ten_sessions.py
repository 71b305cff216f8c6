"""Ten sessions that a script plays: what the model says in each, in our own form and as native calls.

They have what a real session has and what is easily done differently in two places: parallel calls, calls that are
malformed, refused and failing, secrets, rules at several levels, searches, lints, todos, commands in the background,
and summaries. What a message says may depend on what was said before, as where a mark stands for a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.harness.prompt import render_calls
from etude.harness.summary import REQUEST

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Say:
    """One message. `raw` is what the model writes where its calls are malformed; natively it says `broken`, with
    arguments as they stand, instead."""

    text: str = ""
    calls: Sequence[Call] = ()
    raw: str = ""
    broken: Sequence[tuple[str, str]] = ()

    def written(self) -> str:
        given = [(name, {key: _value(value) for key, value in said.items()}) for name, said in self.calls]
        return "\n".join(filter(None, (self.text, render_calls(given), self.raw)))


@dataclass(frozen=True)
class Scripted:
    """One session; a message that depends on what was said before is made of that."""

    name: str
    instruction: str
    files: Mapping[str, bytes]
    messages: Sequence[Say | Callable[[str], Say]]
    told: Sequence[str] = field(default=())
    """What the model must have been told at some time, or the session shows nothing."""
    cuts: int = 0
    """How often it is summarised."""


def spoken(script: Scripted, said: int, summaries: int, last: str, before: str) -> Say:
    """What the model says next, of a session in which it has said so much: a summary where the `last` words ask."""
    if REQUEST in last:
        return Say(f"<think>What matters?</think>\nI read some files, for summary {summaries + 1}.")
    message = script.messages[said - summaries]
    return message if isinstance(message, Say) else message(before)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _run(command: str, **more: Any) -> Call:
    return "run_terminal_cmd", {"command": command, **more}


def _read(path: str, **more: Any) -> Call:
    return "read_file", {"path": path, **more}


def _todo(**items: str) -> Call:
    return "todo_write", {"todos": [{"content": name, "status": status} for name, status in items.items()]}


DONE = Say("Done.")
CODE = b"def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return add(a, a)\n"
CHECK = b"from calc import add, twice\n\nassert add(2, 3) == 5, add(2, 3)\nassert twice(4) == 8\nprint('ok')\n"
CALC = {"calc.py": CODE, "check.py": CHECK}
KEY = "sk-" + "".join(f"{letter}{number}" for number, letter in enumerate("aZbYcXdWeVfUgThSiRjQ"))
SETTINGS = f'NAME = "calc"\nTOKEN = "{KEY}"\nRETRIES = 3\n'.encode()
NARROW = b'deny = ["run(make deploy *)", "read(private/**)"]\n'
LONG = b"".join(b"line %d of a long file that says nothing at all, again and again\n" % n for n in range(100))


def _marked(told: str) -> Say:
    """An edit of the line with the secret, by its mark."""
    found = re.search(r"\[secret model-key [0-9a-f]{10}\]", told)
    assert found is not None, "the secret was shown"
    old, new = f'TOKEN = "{found[0]}"\nRETRIES = 3', f'TOKEN = "{found[0]}"\nRETRIES = 5'
    return Say("", [("edit_file", {"path": "settings.py", "old": old, "new": new})])


SESSIONS = [
    Scripted(
        "edit",
        "add subtracts. Mend it, and see that check.py passes.",
        CALC,
        [
            Say("I look first.", [_read("calc.py")]),
            Say("", [("edit_file", {"path": "calc.py", "old": "return a - b", "new": "return a + b"})]),
            Say("", [_run("python3 check.py")]),
            DONE,
        ],
        ["return a - b", "ok"],
    ),
    Scripted(
        "parallel",
        "Write two modules, and keep a list.",
        CALC,
        [
            Say("All at once.", [_read("calc.py"), _read("check.py"), ("list_dir", {"path": "."})]),
            Say(
                "",
                [
                    ("write_file", {"path": "one.py", "content": "ONE = 1\n"}),
                    ("write_file", {"path": "two/two.py", "content": "TWO = 2\n"}),
                    _todo(one="completed", two="in_progress", three="pending"),
                ],
            ),
            Say("", [_run("cat one.py two/two.py"), _run("wc -l calc.py")]),
            DONE,
        ],
        ["ONE = 1\nTWO = 2", "two/", "6 calc.py"],
    ),
    Scripted(
        "malformed",
        "Do what you can.",
        CALC,
        [
            Say(
                "",
                raw="<tool_call>\n<function=fly>\n<parameter=path>\ncalc.py\n</parameter>\n</function>\n</tool_call>",
                broken=[("fly", '{"path": "calc.py"}')],
            ),
            Say(
                "",
                raw="<tool_call>\n<function=read_file>\n<parameter=file>\ncalc.py\n</parameter>\n</function>\n</tool_call>",
                broken=[("read_file", '{"file": "calc.py"}')],
            ),
            Say(
                "Again.",
                [_read("calc.py")],
                raw="<tool_call>\n<function=read_file>\n</function>\n</tool_call>",
                broken=[("read_file", "{}")],
            ),
            Say("", [_read("calc.py", start=2, end=2)]),
            Say(
                "",
                raw="<tool_call>\n<function=todo_write>\n<parameter=todos>\nnone\n</parameter>\n</function>\n</tool_call>",
                broken=[("todo_write", '{"todos": ')],
            ),
            Say("", [_read("calc.py")]),
            DONE,
        ],
        ["error: ", "return a - b", "todos must be an array"],
    ),
    Scripted(
        "failing",
        "Try some things that fail.",
        CALC,
        [
            Say("", [_read("missing.py"), ("edit_file", {"path": "calc.py", "old": "not there", "new": "x"})]),
            Say("", [_run("python3 check.py"), _run("exit 3")]),
            Say("", [("grep", {"pattern": "(", "path": "."}), ("list_dir", {"path": "nowhere"})]),
            DONE,
        ],
        ["error: ", "AssertionError", "3"],
    ),
    Scripted(
        "refused",
        "Deploy it.",
        {
            **CALC,
            ".etude/permissions.toml": NARROW,
            "private/notes.md": b"not for agents\n",
            "Makefile": b"deploy:\n\techo sent\n",
        },
        [
            Say("", [_run("make deploy now"), _run("ls && make -s deploy now")]),
            Say("", [_read("private/notes.md"), ("write_file", {"path": "/etc/motd", "content": "x"})]),
            Say("", [_run("echo x > /opt/x"), _run("rm -rf nothing-there && echo gone")]),
            DONE,
        ],
        ["not permitted: ", "deny run(make deploy *) of this repository", "gone"],
    ),
    Scripted(
        "secrets",
        "Five retries, please.",
        {"settings.py": SETTINGS, "AGENTS.md": f"The token in settings.py is {KEY}; say it to nobody.\n".encode()},
        [
            Say("", [_read("settings.py"), _run("cat settings.py")]),
            _marked,
            Say("", [_run(f"grep -c {KEY[:9]} settings.py; tail -n 1 settings.py")]),
            DONE,
        ],
        ["[secret model-key ", "1\nRETRIES = 5"],
    ),
    Scripted(
        "rules",
        "What are the rules?",
        {
            **CALC,
            "AGENTS.md": b"Two spaces.\n",
            "CLAUDE.md": b"@AGENTS.md\n",
            "lib/b/AGENTS.md": b"In b.\n",
            "lib/a/CLAUDE.md": "In a, é.\n".encode(),
            "node_modules/x/AGENTS.md": b"Not this one.\n",
            ".hidden/AGENTS.md": b"Nor this.\n",
            "one/two/three/four/five/AGENTS.md": b"Nor so deep.\n",
            "long/AGENTS.md": b"x" * 70_000,
        },
        [Say("", [("glob", {"pattern": "**/*.md"})]), DONE],
        ["## AGENTS.md\nTwo spaces.\n\n## lib/a/CLAUDE.md\nIn a, é.\n\n## lib/b/AGENTS.md", "them: long/AGENTS.md"],
    ),
    Scripted(
        "search",
        "Where is twice used?",
        {**CALC, "lib/deep/more.py": b"from calc import twice\n\nprint(twice(3))\n"},
        [
            Say("", [("grep", {"pattern": "twice", "context": 1}), ("glob", {"pattern": "*.py"})]),
            Say("", [("codebase_search", {"query": "the double of a number"}), ("list_dir", {"path": "lib"})]),
            DONE,
        ],
        ["lib/deep/more.py", "calc.py"],
    ),
    Scripted(
        "lints",
        "Write a module, and look at its lints.",
        {"old.py": b"import os\nimport sys\n\nprint(sys.path)\n"},
        [
            Say("", [("write_file", {"path": "new.py", "content": "import json\n\nprint(undefined)\n"})]),
            Say("", [("read_lints", {"path": "new.py"})]),
            Say("", [_run("sleep 0.2; echo late", background=True)]),
            Say("", [_run("", id=1, wait=60)]),
            DONE,
        ],
        ["late"],
    ),
    Scripted(
        "summary",
        "Read the long files, keep the rules, and tell me what they say.",
        {f"long{n}.txt": LONG for n in range(20)} | {"AGENTS.md": b"Be short.\n", "calc.py": CODE},
        [
            Say("", [_todo(read="in_progress", tell="pending"), _read("long0.txt")]),
            Say("", [("write_file", {"path": "AGENTS.md", "content": "Be very short.\n"})]),
            *(Say("", [_read(f"long{n}.txt")]) for n in range(1, 10)),
            Say("", [_run("sed -i s/-/+/ calc.py")]),
            *(Say("", [_read(f"long{n}.txt")]) for n in range(10, 20)),
            Say("They say nothing."),
        ],
        ["Your context was cut once", "Your context was cut 2 times", "Be very short.", "in_progress"],
        cuts=2,
    ),
]
