"""What the archive is given of a rollout that has been judged.

Owns `kept_of`. Reads what the judge had: the session's log, the files that it left beside those it was given, and the
verdict. Knows nothing of how it is stored. Talks to: archive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from etude.archive.records import FileChange, Kept, KeptTask, Said, Tokens
from etude.errors import EtudeError
from etude.records import Task, Trajectory
from etude.rewards.audit.state import FILE_MAX, given_workspace
from etude.rewards.sealed import Sealed
from etude.rollouts.sample import Sample

if TYPE_CHECKING:
    from etude.rollouts.session import SealedRollout


def kept_of(rollout: SealedRollout, judged: Trajectory, sample: Sample, log: tuple[Tokens, Sequence[Said]]) -> Kept:
    """Of a rollout, with what a judge and the controller are told of it."""
    request, now = rollout.request, time.time()
    tokens, said = log
    return Kept(
        id=request.id,
        group_id=request.group_id,
        task=_task(request.task),
        tokens=tokens,
        said=said,
        outcome=judged.outcome,
        findings=judged.findings,
        usage=judged.usage,
        conduct=asdict(sample.conduct),
        environment=judged.environment,
        seed=request.seed,
        temperature=request.temperature,
        attempt=request.attempt,
        worker=rollout.worker,
        begun_at=round((rollout.over_at or now) - sample.session_s, 4),
        ended_at=round(now, 4),
        files=tuple(changed(request.task.files, rollout.sealed)) if rollout.sealed else (),
        verifier=judged.verifier,
    )


def changed(given: Mapping[str, bytes], sealed: Sealed) -> Iterator[FileChange]:
    """The files that a session left other than it was given them, by path; none where they cannot be read."""
    try:
        left = sealed.left
    except EtudeError:  # a torn archive, of which the verdict tells
        left = None
    if left is None:
        return
    before = given_workspace(given).files
    for path in sorted({*before, *left.files}):
        was, now = before.get(path), left.files.get(path)
        if was != now and not (was and now and len(now) == FILE_MAX and was.startswith(now)):
            yield FileChange(path, was, now, cut=now is not None and len(now) >= FILE_MAX)


def _task(task: Task) -> KeptTask:
    return KeptTask(
        task.id, task.instruction, tuple(sorted(task.files)), task.verifier.command, task.split, task.provenance
    )
