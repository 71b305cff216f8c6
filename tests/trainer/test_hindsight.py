"""What of a session is learned, call by call, at golden examples."""

from pathlib import Path

import numpy as np
import pytest

from etude.harness.prompt import render_call, render_calls
from etude.harness.session import SessionResult
from etude.models.chat import open_chat
from etude.records import Event, Segment
from etude.trainer.hindsight import accepted, confirmed, failed_calls, refuted_calls, what_worked

MODEL = Path(__file__).parents[2] / "models/etude-tiny"
CHECK = ("run_terminal_cmd", {"command": "python3 check.py"})
FAIL, PASSED = "FAIL f(1) = 2, not 3\nfailed", "passed"


def edit(old, new):
    return ("edit_file", {"path": "a.py", "old": old, "new": new})


def session(chat, messages):
    """Of messages, each a list of calls with their answers, or a text."""
    ids, sampled, events = list(chat.opening("S", "Go.")), [], [Event("session", 0.0, {})]
    sampled += [False] * len(ids)
    for number, message in enumerate(messages, 1):
        text = message if isinstance(message, str) else render_calls([call for call, _ in message])
        said = [*chat.encode(text), chat.end_id]
        after = chat.observation("ok")
        ids += [*said, *after]
        sampled += [True] * len(said) + [False] * len(after)
        events.append(Event("completion", 0.0, {"turn": number, "text": text}))
        calls = [] if isinstance(message, str) else message
        for index, ((name, arguments), _) in enumerate(calls):
            events.append(Event("tool_call", 0.0, {"index": index, "name": name, "arguments": arguments}))
        for index, (_, answer) in enumerate(calls):
            error = answer.startswith("error")
            events.append(Event("tool_result", 0.0, {"index": index, "text": answer, "error": error}))
    none = np.zeros(len(ids), np.int32)
    routes = np.zeros((0, 0, 0), np.int32)
    segment = Segment(np.array(ids, np.int32), np.array(sampled), none.astype(np.float32), none, routes)
    return SessionResult("s", (segment,), tuple(events), "finished", {})


HUNT = [
    [(CHECK, FAIL), (("grep", {"pattern": "def f"}), "a.py:1:def f(x):")],  # 1
    [(("read_file", {"path": "b.py"}), "error: no file b.py")],  # 2: refused
    [(edit("x + 1", "x - 1"), "ok"), (CHECK, FAIL)],  # 3: a wrong guess
    [(edit("x - 1", "x + 1"), "ok"), (edit("y", "z"), "ok"), (CHECK, FAIL)],  # 4: it is taken back, beside another
    [(edit("z", "w"), "ok")],  # 5: nobody asked
    [(edit("w", "y"), "ok"), (edit("v", "u"), "ok"), (CHECK, PASSED)],  # 6: the right one
    "Done.",
]


@pytest.fixture(scope="module")
def chat():
    return open_chat(MODEL)


def test_which_calls_failed_and_which_guesses_were_wrong(chat):
    events = session(chat, HUNT).events
    assert failed_calls(events) == {(2, 0)}
    assert refuted_calls(events) == {(3, 0), (4, 1)}


def test_a_file_written_again_takes_nothing_back_and_neither_does_what_never_was(chat):
    write = ("write_file", {"path": "a.py", "content": "x"})
    guesses = [[(write, "ok"), (CHECK, FAIL)], [(write, "ok"), (CHECK, FAIL)]]
    refused = [[(edit("x", "y"), "error: old is not there"), (CHECK, FAIL)], [(edit("y", "x"), "ok"), (CHECK, FAIL)]]
    assert refuted_calls(session(chat, [*guesses, *refused]).events) == {(number, 0) for number in (1, 2, 3, 4)}


@pytest.mark.parametrize("refused_too", [False, True])
def test_what_stands_beside_a_wrong_call_is_learned(chat, refused_too):
    result = session(chat, HUNT)
    worked = what_worked(result, chat)
    assert worked.notes == {"calls_failed": 1, "calls_refuted": 2}
    [document], [segment] = confirmed(result, chat) if refused_too else worked.documents, result.segments
    texts = [event.data["text"] for event in result.events if event.kind == "completion"]
    texts[1] = texts[1] if refused_too else ""
    texts[2] = render_call(*CHECK)
    texts[3] = f"{render_call(*HUNT[3][0][0])}\n{render_call(*CHECK)}"
    assert chat.decode(document.token_ids[document.sampled].tolist()) == "".join(texts)
    assert document.token_ids.tolist() == segment.token_ids.tolist()
    ends = (segment.token_ids == chat.end_id) & segment.sampled
    assert (document.sampled & ends).sum() == 6 + refused_too, "the end goes with the last call"


def test_where_all_that_was_accepted_is_learned_wrong_guesses_are(chat):
    result = session(chat, HUNT)
    learned = accepted(result, chat)
    [document] = learned.documents
    texts = [event.data["text"] for event in result.events if event.kind == "completion"]
    assert chat.decode(document.token_ids[document.sampled].tolist()) == "".join([texts[0], *texts[2:]])
    assert learned.notes == {"calls_failed": 1}


def test_a_message_whose_calls_cannot_be_told_apart_is_left_out_whole(chat):
    """A file's new text has a line that looks like another call's beginning."""
    odd = [(edit("a", "<tool_call>\nb"), "error: old is not there"), (CHECK, FAIL)]
    [document] = what_worked(session(chat, [odd, "Done."]), chat).documents
    assert chat.decode(document.token_ids[document.sampled].tolist()) == "Done."
