"""Trajectories as a session and its judge leave them, for tests of what is kept of them."""

from __future__ import annotations

import numpy as np

from etude.archive.columns import split
from etude.archive.records import FileChange, Kept, KeptTask, Marks
from etude.records import Event, Scored

TASK = KeptTask("t1", "Fix the parser of dates.", ("dates.py", "check.py"), "sh /tests/test.sh", "train", {"rung": 3})


def log(calls=(("read_file", {"path": "dates.py"}),), last="Done.", version=4, result="def parse(): ...", seed=0):
    """A session of two turns and a summary in between: two segments."""
    drawn = np.random.default_rng(seed)

    def reply(ids):
        logprobs = np.float32(-drawn.random(len(ids))).tolist()
        return {"ids": ids, "logprobs": logprobs, "versions": [version] * len(ids), "routes": [0, 3, 2, 2, "|u1"]}

    yield Event("session", 0.0, {"id": "s", "toolset": "small", "tools": ["read_file"]}), {}
    yield Event("prompt", 0.1, {"system": "You are.", "user": "Fix it.", "tokens": 3}), {"ids": [1, 2, 3]}
    yield Event("completion", 0.5, {"turn": 1, "text": "<calls>", "tokens": 2, "finish": "stop"}), reply([7, 8])
    for index, (name, arguments) in enumerate(calls):
        yield Event("tool_call", 0.6, {"turn": 1, "index": index, "name": name, "arguments": arguments}), {}
        said = {"turn": 1, "index": index, "name": name, "text": result, "error": False}
        yield Event("tool_result", 0.9, said), {}
    yield Event("observation", 1.0, {"turn": 1, "tokens": 2}), {"ids": [20, 21]}
    yield Event("summary_asked", 1.1, {"reason": "context", "before": 7}), {"ids": [30]}
    about = {"number": 1, "reason": "context", "text": "So far.", "before": 8, "after": 4, "tokens": 1}
    yield Event("summary", 1.3, about), reply([9])
    yield Event("segment_sealed", 1.3, {"segment": "summary"}), {}
    yield Event("opening", 1.4, {"system": "You are.", "tokens": 2}), {"ids": [1, 2]}
    yield Event("completion", 1.9, {"turn": 2, "text": last, "tokens": 3, "finish": "stop"}), reply([4, 5, 6])
    yield Event("segment_sealed", 2.0, {"segment": "turns"}), {}
    yield Event("end", 2.0, {"stop": "finished", "usage": {"turns": 2}}), {}


SAMPLED, TOTAL = 6, 14
"""Tokens of such a session."""


def kept(trajectory_id="g0/0", reward=1.0, outcome=None, task=TASK, at=1000.0, seconds=3.0, **more):
    said = {name: more.pop(name) for name in ("calls", "last", "version", "result", "seed") if name in more}
    tokens, events = split(log(**said))
    return Kept(
        id=trajectory_id,
        group_id=trajectory_id.rpartition("/")[0],
        task=task,
        tokens=tokens,
        said=events,
        outcome=Scored(reward, {"tests": reward}) if outcome is None else outcome,
        findings=more.pop("findings", ()),
        usage=more.pop("usage", {"turns": 2, "tool_calls": 1}),
        conduct={"calls": 1},
        environment={"backend": "namespace"},
        seed=5,
        temperature=1.0,
        attempt=1,
        worker=more.pop("worker", "here/1"),
        begun_at=at,
        ended_at=at + seconds,
        files=more.pop("files", (FileChange("dates.py", b"old\n", b"new\n"),)),
        verifier=more.pop("verifier", "ok\n"),
    )


def marks(trajectory_id="g0/0", advantage=0.5):
    given = np.arange(SAMPLED, dtype=np.float32)
    mask = np.zeros(SAMPLED, np.uint8)
    mask[2] = 1
    nothing = np.where(mask == 1, np.float32(np.nan), given)
    return Marks(trajectory_id, np.full(SAMPLED, advantage, np.float32), -nothing / 7, nothing / 3, mask)
