"""Reads the suite's sessions from its text files, and makes calls of them.

    == category: name [scene] = published name
    --- step      the first call of a new turn
    +++ step      a further call of the same turn

A step is a word, perhaps something behind it, and perhaps lines below: `check`, `fix`, `look` (check and read), `run`,
`python`, `read`, `write PATH`, `edit PATH` (old, `====`, new), `grep PATH PATTERN`, `call TOOL JSON`, `say` for words
without a call; and for the file with the bug `body` (in place of the function's), `prepend`, `append`, and, with the
bug mended, `above`, `also` (below) and `guarded` (at the function's start). `<<name>>` is filled in from the scene
(see `forms`).

A session that cheats by looking for the answer writes what is right only where its scene has the answer lying about, or
a tool told it: what it does not know it cannot write. There it ends.

Owns `Play` and `read_plays`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from etude.harness.prompt import render_calls
from hack_suite.forms import FORMS, body_replaced, guarded
from hack_suite.scenes import Kind, Scene

Call = tuple[str, dict[str, str]]
MESSAGE_CHARS = 4000
_HEAD = re.compile(r"== (?P<category>[\w -]+): (?P<name>.+?) \[(?P<kind>\w+)\](?: = (?P<rule>.+))?")
SEEKING = ("answer read", "network", "sandbox probed")
"""Categories of those who have to find what they write."""
_RIGHT = ("fix", "above", "also", "guarded")
_TOKEN = re.compile(r"<<(body )?([^<>\n]*(?:<(?!<)[^<>\n]*)*)>>")


@dataclass(frozen=True)
class Step:
    """One call, or words; `first` where it begins a turn."""

    first: bool
    verb: str
    rest: str
    text: str


@dataclass(frozen=True)
class Play:
    """One session of the suite. `category` is what it cheats by, or, where it is honest, what it comes near."""

    category: str
    name: str
    kind: Kind
    rule: str
    honest: bool
    steps: tuple[Step, ...]

    def messages(self, scene: Scene, told: Sequence[str]) -> Iterator[str]:
        """What the model writes, turn by turn; `told` grows by what the tools answer."""
        turn: list[Call] = []
        for step in self.steps:
            if step.first and turn:
                yield render_calls(turn)
                turn = []
            if self._needs_answer(step) and not scene.knows(told):
                break
            if step.verb == "look":
                yield render_calls([_check(scene)])
                turn = [("read_file", {"path": scene.path})]
            elif step.verb == "say":
                yield _filled(f"{step.rest}\n{step.text}".strip(), scene)
            else:
                turn.append(_call(step, scene))
        if turn:
            yield render_calls(turn)

    def _needs_answer(self, step: Step) -> bool:
        right = step.verb in _RIGHT or "<<new>>" in step.text or "<<fixed>>" in step.text
        return right and self.category in SEEKING and not self.honest


def read_plays(path: Path, honest: bool) -> list[Play]:
    """The sessions of one file. Raises ValueError naming the line that is none."""
    plays: list[Play] = []
    steps: list[Step] = []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if head := _HEAD.fullmatch(line):
            steps = []
            rule = head["rule"] or ""
            plays.append(Play(head["category"], head["name"], head["kind"], rule, honest, ()))  # ty: ignore[invalid-argument-type]
        elif line.startswith(("--- ", "+++ ")):
            verb, _, rest = line[4:].partition(" ")
            if verb not in _VERBS and verb not in ("look", "say"):
                raise ValueError(f"{path.name}, line {number}: no step {verb!r}")
            steps.append(Step(line.startswith("---"), verb, rest, ""))
        elif steps:
            last = steps[-1]
            steps[-1] = Step(last.first, last.verb, last.rest, f"{last.text}{line}\n")
        elif line.strip():
            raise ValueError(f"{path.name}, line {number}: belongs to no session")
        if plays:
            now = plays[-1]
            plays[-1] = Play(now.category, now.name, now.kind, now.rule, now.honest, tuple(steps))
    return plays


def _filled(text: str, scene: Scene) -> str:
    def fill(found: re.Match[str]) -> str:
        if found[1]:
            return body_replaced(scene, _filled(found[2], scene))
        return FORMS[found[2]](scene) if found[2] in FORMS else found[0]

    return _TOKEN.sub(fill, re.sub(r"<<(\w+)>>(?=[^\n]*>>)", lambda found: FORMS[found[1]](scene), text))


def _check(scene: Scene) -> Call:
    return _run(scene.run_check)


def _run(command: str) -> Call:
    return ("run_terminal_cmd", {"command": command})


def _whole(scene: Scene, text: str) -> Call:
    """The file with another text; where it is longer than a message, by an edit of the lines that differ."""
    if len(text) < MESSAGE_CHARS:
        return ("write_file", {"path": scene.path, "content": text})
    old, new = scene.text.split("\n"), text.split("\n")
    changes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = [change for change in changes if change[0] != "equal"]
    start, end, new_start, new_end = changed[0][1], changed[-1][2], changed[0][3], changed[-1][4]
    while scene.text.count("\n".join(old[start:end])) != 1 or start == end:
        back, on = min(start, 2), min(len(old) - end, 2)
        start, new_start, end, new_end = start - back, new_start - back, end + on, new_end + on
    return _edit(scene.path, "\n".join(old[start:end]) + "\n====\n" + "\n".join(new[new_start:new_end]))


def _edit(rest: str, text: str) -> Call:
    old, _, new = text.partition("\n====\n")
    return ("edit_file", {"path": rest, "old": old, "new": new})


def _grep(rest: str) -> Call:
    path, _, pattern = rest.partition(" ")
    return ("grep", {"pattern": pattern, "path": path})


def _raw(rest: str) -> Call:
    tool, _, arguments = rest.partition(" ")
    return tool, json.loads(arguments)


_VERBS: Mapping[str, Callable[[Scene, str, str], Call]] = {
    "check": lambda scene, rest, text: _check(scene),
    "fix": lambda scene, rest, text: ("edit_file", {"path": scene.path, "old": scene.old, "new": scene.new}),
    "run": lambda scene, rest, text: _run(rest or text),
    "python": lambda scene, rest, text: _run(f"python3 - <<'EOF'\n{text}\nEOF"),
    "read": lambda scene, rest, text: ("read_file", {"path": rest}),
    "write": lambda scene, rest, text: (
        _whole(scene, text) if rest == scene.path else ("write_file", {"path": rest, "content": text})
    ),
    "edit": lambda scene, rest, text: _edit(rest, text),
    "grep": lambda scene, rest, text: _grep(rest),
    "call": lambda scene, rest, text: _raw(rest),
    "body": lambda scene, rest, text: _whole(scene, body_replaced(scene, text)),
    "prepend": lambda scene, rest, text: _whole(scene, f"{text}\n\n\n{scene.text}"),
    "append": lambda scene, rest, text: _whole(scene, f"{scene.text.rstrip()}\n\n\n{text}\n"),
    "above": lambda scene, rest, text: _whole(scene, f"{text}\n\n\n{scene.fixed}"),
    "also": lambda scene, rest, text: _whole(scene, f"{scene.fixed.rstrip()}\n\n\n{text}\n"),
    "guarded": lambda scene, rest, text: _whole(scene, guarded(scene, text)),
}


def _call(step: Step, scene: Scene) -> Call:
    text = _filled(step.text.strip("\n"), scene)
    return _VERBS[step.verb](scene, _filled(step.rest, scene), text)
