"""The hunter knows what an agent sees: it mends by trying, and its order comes of what the check prints."""

import asyncio
import random
from dataclasses import replace
from statistics import fmean

import pytest
from shelf_tasks import LABEL, SHARE, SHELF

from etude.environments.backends import open_backend
from etude.environments.base import SandboxSpec
from etude.harness.config import HarnessConfig
from etude.harness.scripted import ScriptedDialogue
from etude.harness.session import run_dialogue
from etude.tasks.hunter import Hunter
from etude.tasks.mutate import mends_of, mutations_of
from etude.tasks.suspects import Failure, Suspects, failures_in, suggested

HARNESS = HarnessConfig(tool={"max_observation_bytes": 1500})


def played(task, seed=0, misspell=0.0, harness=HARNESS):
    """What is said and answered."""

    async def scenario():
        backend = open_backend()
        try:
            sandbox = await backend.create(SandboxSpec(files=task.files))
            dialogue = ScriptedDialogue(Hunter(task.instruction, seed, misspell).next_message, harness.chosen())
            return await run_dialogue(
                task.instruction, sandbox, dialogue, harness, replace(task.limits, max_turns=40), session_id="hunt",
                about={}, files=task.files,
            )  # fmt: skip
        finally:
            await backend.close()

    return asyncio.run(scenario())


def calls(result):
    data = [event.data for event in result.events if event.kind == "tool_call"]
    return [(call["name"], call["arguments"]) for call in data]


def answers(result):
    return [event.data["text"] for event in result.events if event.kind == "tool_result"]


@pytest.mark.parametrize("task", [LABEL, SHARE], ids=["constant", "operator"])
def test_it_mends_what_it_has_never_seen_right_and_ends_when_the_check_passes(task):
    result = played(task)
    assert answers(result)[-1] == "passed" and result.stop == "finished"
    (first, _), (second, found), (third, window), (fourth, copy), *tries = calls(result)
    assert (first, second, third, fourth) == ("run_terminal_cmd", "grep", "read_file", "run_terminal_cmd")
    assert found == {"pattern": rf"def {task.provenance['function']}\b"}
    assert window == {"path": "shelf.py", "start": 4 if task is LABEL else 15}
    assert [name for name, _ in tries][-2:] == ["edit_file", "run_terminal_cmd"]
    text = task.files["shelf.py"].decode()
    edits = [(given["old"], given["new"]) for name, given in tries if name == "edit_file"]
    tried = [text.replace(old, new) for old, new in edits]
    assert len({text, *tried}) == 1 + len(tried), "nothing is tried twice"
    assert tried[-1] == task.solution["shelf.py"].decode()
    assert copy == {"command": "cp shelf.py /tmp/before.py"}
    again = [
        at for at, call in enumerate(tries) if call == ("run_terminal_cmd", {"command": "cp /tmp/before.py shelf.py"})
    ]
    assert len(again) == len(edits) - 1 > 0, "each further try begins with the file as it was found"
    assert all(tries[at + 1][0] == "edit_file" for at in again)


def test_nothing_in_the_provenance_or_the_solution_is_used():
    bare = replace(LABEL, provenance={}, solution={})
    for seed in range(3):
        assert calls(played(bare, seed)) == calls(played(LABEL, seed))
    assert len({str(calls(played(LABEL, seed))) for seed in range(3)}) > 1, "another seed tries other mends first"


def test_what_it_puts_into_a_call_was_printed_before():
    """Line and path as the search found them; of an edit the whole line."""
    result = played(LABEL)
    _, (_, found), (_, window), *tries = calls(result)
    assert "path" not in found and answers(result)[1].startswith(f"{window['path']}:{window['start']}:")
    printed = answers(result)[2].split("\n")
    assert all(
        given["old"] in printed and given["new"].startswith("    ") for name, given in tries if name == "edit_file"
    )


def test_of_several_that_are_called_so_it_reads_the_one_in_the_named_file():
    """Where there are so many that the search does not show it, it searches the file."""
    one = {"a.py": b"def label(text):\n    return text\n"}
    many = {f"a{number}.py": one["a.py"] for number in range(60)}
    for others, searches in ((one, 1), (many, 2)):
        result = played(replace(LABEL, files={**others, **LABEL.files}))
        made = [given for name, given in calls(result) if name == "grep"]
        assert len(made) == searches and made[-1].get("path", "shelf.py") == "shelf.py"
        assert next(given for name, given in calls(result) if name == "read_file") == {"path": "shelf.py", "start": 4}
        assert answers(result)[-1] == "passed"


def refused(answer):
    return answer.startswith("error: ") or answer == "no matches"


@pytest.mark.parametrize("seed", range(6))
def test_whoever_slips_at_each_message_is_refused_looks_and_mends_it_all_the_same(seed):
    plain, slipping = played(LABEL, seed), played(LABEL, seed, misspell=1.0)
    assert answers(slipping)[-1] == "passed" and slipping.stop == "finished"
    done = [(call, answer) for call, answer in zip(calls_or_malformed(slipping), answers(slipping), strict=True)]
    well = [call for call, answer in done if call[0] == "edit_file" and not refused(answer)]
    assert well == [call for call in calls(plain) if call[0] == "edit_file"], "the same mends, each once"
    messages = [event.data["turn"] for event in slipping.events if event.kind == "completion"][:-1]
    failed = {
        event.data["turn"] for event in slipping.events if event.kind == "tool_result" and refused(event.data["text"])
    }
    assert len(failed) == len({event.data["turn"] for event in plain.events if event.kind == "tool_result"})
    assert all(turn + 1 in messages and turn + 1 not in failed for turn in failed), "after a refusal it does better"


def calls_or_malformed(result):
    data = [event.data for event in result.events if event.kind == "tool_call"]
    return [(call["name"], call.get("arguments")) for call in data]


@pytest.mark.parametrize(
    ("refusal", "look"),
    [
        ("error: no file shel.py; did you mean shelf.py?", ("grep", {"pattern": r"def label\b"})),
        ("error: sh.py: No such file or directory", ("grep", {"pattern": r"def label\b"})),
        (
            "error: old is not there; nearest is line 9: x",
            ("read_file", {"path": "shelf.py", "start": "9", "end": "9"}),
        ),
        ("error: old is not there", ("read_file", {"path": "shelf.py", "start": "1"})),
        ("error: old is at lines 3, 9; include lines around it", None),
        ("error: parameter new is missing; it is edit_file(path, old, new)", None),
        ("no matches", None),
    ],
)
def test_what_it_looks_at_is_what_the_refusal_leaves_open(refusal, look):
    assert Hunter(LABEL.instruction, 0, 0.5)._look_after(refusal) == look


def test_a_function_longer_than_one_answer_is_read_to_its_end():
    """And no mend is tried outside it."""
    filling = "".join(f"    # what follows is not so simple as it may seem, part {n} of many\n" for n in range(36))
    long = SHELF.replace("    words = text.split()\n", f"{filling}    words = text.split()\n")
    broken = long.replace("[: width - 1]", "[: width - 2]")
    result = played(replace(LABEL, files={**LABEL.files, "shelf.py": broken.encode()}))
    assert answers(result)[-1] == "passed"
    assert len([name for name, _ in calls(result) if name == "read_file"]) > 1


def test_an_edit_that_is_refused_changes_nothing_and_the_next_is_tried():
    """The file has a line of the function once more: no edit can name it."""
    twice = LABEL.files["shelf.py"].decode() + "\n\nif 0:\n        label = label[: width - 2]\n"
    result = played(replace(LABEL, files={**LABEL.files, "shelf.py": twice.encode()}))
    refused = [text for text in answers(result) if text.startswith("error: old is at lines")]
    assert refused and result.stop == "finished"


@pytest.mark.parametrize("instruction", ["Fix the bug.", "There is a bug in shelf.py. Fix it."])
def test_of_what_names_no_function_it_says_nothing(instruction):
    assert Hunter(instruction, 0).next_message([]) == "Done."


def test_every_mutation_has_its_mend():
    """Of a function that has nearly all there is to break."""
    text = """\
def f(left, right, flag):
    total = left * right
    ratio = left / right
    rest = left % right
    half = right // 2
    if not flag and left < right:
        total = total - rest
    while flag:
        total += 3
        flag = False
    names = [each for each in left if not each]
    if left is None or right == 0:
        return not names
    return [total, ratio][0], names[-1], names[:left], max(half, right), left.startswith(right)
"""
    mutations = mutations_of(text, "f")
    assert len(mutations) > 40
    without = []
    for mutation in mutations:
        broken = mutation.apply(text)
        if not any(mend.apply(broken) == text for mend in mends_of(broken, "f")):
            without.append((mutation.bug, mutation.wrong.strip()))
    assert without == []


def test_a_failing_call_is_read_whatever_stands_in_its_texts():
    said = (
        "FAIL f('a) = b, not c', 3) = ['x, not y'], not ('z', 1)\n"
        "FAIL f(2) = IndexError('list index out of range'), not 4\nfailed\n[exit 1]"
    )
    one, other = failures_in(said)
    assert one == Failure(["a) = b, not c", 3], ["x, not y"], ("z", 1), False)
    assert other == Failure([2], "IndexError('list index out of range')", 4, True)
    assert failures_in("FAIL f(object()) = 3, not 4\nFAIL suite.test: x # Y") == []


def test_what_the_check_prints_brings_the_likely_kinds_and_lines_first():
    text = "def f(a, b):\n    if a == 'left':\n        a = a.lower()\n    if b == 'right':\n        a = b + a\n"
    assert suggested(Failure([1], "ABC", "abc", False)) == {"method"}
    mends = mends_of(text, "f")

    def place(said, wanted):
        found = []
        for seed in range(200):
            suspects = Suspects(mends, text, random.Random(seed))
            suspects.hear(said)
            order = [suspects.take() for _ in mends]
            assert suspects.take() is None and len(set(order)) == len(mends)
            found.append(next(number for number, mend in enumerate(order) if wanted in map(str.strip, mend)))
        return fmean(found)

    upper, right = "a = a.upper()", "if b == 'right':"
    assert place("FAIL f('x', 'y') = 'X', not 'x'", upper) < place("", upper) - 0.5
    assert place("FAIL f('x', 'right') = 3, not 'x'", right) < place("", right) - 0.5


def test_a_line_whose_mend_changed_nothing_comes_later():
    text = "def f(a, b):\n    if a < 1 and b < 2:\n        return 3\n    return 7 + b\n"
    mends = mends_of(text, "f")

    def share_of_second_line(after):
        hits = 0
        for seed in range(300):
            suspects = Suspects(mends, text, random.Random(seed))
            suspects.hear("FAIL f(1, 2) = 3, not 4")
            first = suspects.take()
            while first.old.strip() != "if a < 1 and b < 2:":
                first = suspects.take()
            suspects.learn(first, "before", after)
            hits += (suspects.take() or first).old == first.old
        return hits / 300

    assert share_of_second_line("before") < share_of_second_line("after") - 0.1
