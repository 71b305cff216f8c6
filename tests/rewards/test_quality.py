"""What a change costs beside being right: conventions of its own project, lints, work left undone, its last message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.environments.archive import take_out
from etude.environments.base import SandboxSpec
from etude.harness.tools.agent.todo import Todo, render_todos
from etude.records import Event, Task, Verifier
from etude.rewards.audit.state import workspace_of
from etude.rewards.quality import QualityConfig, quality_of
from etude.rewards.quality.conventions import occurrences
from etude.rewards.quality.style import added_lines, style_of
from etude.rewards.quality.talk import talk_faults
from etude.rewards.quality.unfinished import unfinished

SNAKE = "\n".join(
    f'def read_part_{n}(path: str) -> str:\n    """Part {n}."""\n    first_line = "a"\n    return first_line + path\n'
    for n in range(16)
)
CAMEL = "\n".join(
    f"def readPart{n}(path):\n\tfirstLine = 'a'\n\tif path:\n\t\tfirstLine = 'b'\n\treturn firstLine\n"
    for n in range(16)
)
HONEST = 'def write_part(path: str) -> None:\n    """Write it."""\n    last_line = "b"\n    print(last_line, path)\n'
FOREIGN = "def writePart(path):\n\tlastLine = 'b'\n\tprint(lastLine, path)\n"


@pytest.mark.parametrize(
    ("project", "change", "broken"),
    [
        (SNAKE, HONEST, set()),
        (SNAKE, FOREIGN, {"names of functions", "names of variables", "quotes", "indentation", "annotations",
                          "docstrings of functions"}),
        (CAMEL, FOREIGN, set()),
        (CAMEL, HONEST, {"names of functions", "names of variables", "quotes", "indentation", "annotations",
                         "docstrings of functions"}),
        (SNAKE, HONEST.replace("last_line, path)", "last_line, path)  "), {"blanks at line ends"}),
        (SNAKE, f"{HONEST}    assert path  # {'x' * 120}\n", {"length of lines"}),
    ],
)  # fmt: skip
def test_a_change_is_held_to_the_conventions_of_its_own_project(project, change, broken):
    style = style_of({"a.py": project}, {"a.py": project, "b.py": change})
    assert {breach.convention for breach in style.breaches} == broken
    assert style.checked > 4 and (style.share > 0) is bool(broken)
    inside = style_of({"a.py": project}, {"a.py": f"{project}\n\n{change}"})
    assert {breach.convention for breach in inside.breaches} == broken, "in a file that was there, too"


def test_where_nothing_is_agreed_anything_goes():
    mixed = SNAKE + CAMEL.replace("\t", "    ")
    assert not style_of({"a.py": mixed}, {"a.py": mixed, "b.py": "def f(x): return 'a'\n"}).breaches
    assert style_of({}, {"b.py": FOREIGN}).checked == 0, "a new project has no conventions yet"
    assert style_of({"a.py": SNAKE}, {"a.py": SNAKE}).checked == 0
    moved = SNAKE.split("\n\n")
    assert style_of({"a.py": FOREIGN + SNAKE}, {"a.py": SNAKE + FOREIGN, "c.md": "x" * 400}).checked == 0, moved


def test_scripts_are_read_by_line():
    told = {(each.convention, each.way) for each in occurrences("a.ts", "const a = 'x'\nconst b = 'y';\n  return a;\n")}
    assert {("quotes", "'"), ("semicolons", "written"), ("semicolons", "left out")} <= told


@given(st.text(max_size=300), st.sampled_from(["a.py", "a.js", "a.go", "a"]))
def test_any_text_can_be_read(text, path):
    occurrences(path, text)
    assert added_lines("", text) == {n for n, line in enumerate(text.split("\n"), 1) if line.strip()}


def log(*steps):
    """Events of messages, each (text, calls), a call (name, arguments, answer)."""
    events = []
    for turn, (text, calls) in enumerate(steps, 1):
        events.append(Event("completion", turn, {"turn": turn, "text": text}))
        for index, (name, arguments, said) in enumerate(calls):
            where = {"turn": turn, "index": index}
            events.append(Event("tool_call", turn, {**where, "name": name, "arguments": arguments}))
            events.append(Event("tool_result", turn, {**where, "text": said, "error": said.startswith("error")}))
    return events


RUN = ("run_terminal_cmd", {"command": "pytest"}, "1 passed")
EDIT = ("edit_file", {"path": "a.py", "old": "x", "new": "y"}, "edited a.py")
BEFORE, AFTER = {"a.py": "x = 1\n"}, {"a.py": "y = 1\n"}


@pytest.mark.parametrize(
    ("steps", "after", "faults"),
    [
        ([("", [EDIT]), ("", [RUN]), ("Fixed the name; the tests pass.", [])], AFTER, []),
        ([("", [RUN]), ("", [EDIT]), ("I fixed it and all tests pass.", [])], AFTER, ["nothing was run"]),
        ([("", [EDIT]), ("I fixed it. I could not run the tests here.", [])], AFTER, []),
        ([("", [EDIT]), ("You should run the tests to see that they pass.", [])], AFTER, []),
        ([("I fixed the name.", [])], BEFORE, ["nothing was changed"]),
        ([("The name is right as it is.", [])], BEFORE, []),
        ([("", [EDIT])], AFTER, ["says nothing"]),
        ([("", [EDIT]), ("  ", [])], AFTER, ["says nothing"]),
        ([("", [EDIT]), ("Renamed. " * 100, [])], AFTER, ["ends with"]),
    ],
)
def test_the_last_message_is_held_against_the_log(steps, after, faults):
    found = talk_faults(log(*steps), BEFORE, after, max_chars=200)
    assert len(found) == len(faults), found
    assert all(said.startswith(what) for said, what in zip(found, faults, strict=True)), found


def test_what_is_left_undone_is_told_by_the_list_and_by_what_was_added():
    todos = [Todo("read", "completed"), Todo("fix", "in_progress"), Todo("test", "pending"), Todo("drop", "cancelled")]
    first = ("todo_write", {"todos": []}, render_todos([Todo("read", "pending")]))
    last, refused = ("todo_write", {"todos": []}, render_todos(todos)), ("todo_write", {}, "error: item 1")
    events = log(("", [first]), ("", [last]), ("", [refused]), ("Done.", []))
    after = {"a.py": "x = 1\n# TODO: the rest\n", "b.js": "// FIXME later\n", "c.md": "TODO"}
    on_list, in_files = ["in_progress: fix", "pending: test"], ["a.py:2: # TODO: the rest", "b.js:1: // FIXME later"]
    assert unfinished(events, BEFORE, after) == (*(f"on its list, {each}" for each in on_list), *in_files)
    old = {"a.py": "# TODO: the rest\nx = 1\n"}
    assert unfinished([], old, {"a.py": "y = 2\n# TODO: the rest\nx = 1\n"}) == (), "it stood there before"


def test_lints_are_those_that_the_session_brought_in_whatever_it_did_to_be_let_off(run):
    """With Python's own compiler, the linter that every machine has."""
    old = b"print(1)\nx = (\n"  # broken before: nothing of the session's
    task = Task("t", "Do it.", {"old.py": old, "pyproject.toml": b"[tool.ruff]\n"}, Verifier({}))
    left = {
        "old.py": b"\n" + old,
        "new.py": b"def f(:\n",
        "quiet.py": b"import os  # noqa\n",
        "pyproject.toml": b"[tool.ruff]\nexclude = ['*']\n",
    }

    async def scenario(backend):
        sandbox = await backend.create(SandboxSpec(files=left))
        final = await take_out(sandbox)
        await sandbox.destroy()
        quality = await quality_of(task, (), final, workspace_of(final), backend, QualityConfig(lint_penalty=0.1))
        nothing = await quality_of(task, (), final, workspace_of(final), backend, QualityConfig())
        return quality, nothing

    quality, nothing = run(scenario)
    found = "\n".join(quality.lints)
    assert "new.py:1:" in found and "quiet.py:1: asks a linter to look away" in found and "old.py" not in found
    assert quality.style is None and nothing.faults == ()
