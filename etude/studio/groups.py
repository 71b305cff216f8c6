"""A group's members side by side, and a step's rollouts in time.

Owns `group_answer`, where the members of a group part ways, and `step_answer`, the lanes of a step. Reads archived
trajectories; both look at no more of them than a page can show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.archive.archived import Archived
from etude.archive.reader import ArchiveReader, GroupRows
from etude.archive.records import TrajectoryRow
from etude.errors import EtudeError
from etude.studio.archive_shapes import (
    GroupAnswer,
    Lane,
    LaneRollout,
    MemberAnswer,
    Parting,
    StepAnswer,
    StepGroup,
)
from etude.studio.diffs import file_of
from etude.studio.trajectory import line_of, task_of, turns_of

_MEMBERS, _PARTINGS, _LINES = 64, 50, 200
_SPANS_OF, _COUNTED_FILES = 256, 50


def group_answer(reader: ArchiveReader, group: GroupRows) -> GroupAnswer:
    """Members in their order; one whose chunk is gone has its row alone."""
    archived = [reader.trajectory(row.id) for row in group.rows[:_MEMBERS]]
    members = [_member(row, found) for row, found in zip(group.rows, archived, strict=False)]
    task = next((told for found in archived if found and (told := _task(found))), None)
    return GroupAnswer(group.id, task, members, _partings(members))


def _task(found: Archived) -> Any:
    try:
        return task_of(found.task)
    except EtudeError:
        return None


def _member(row: TrajectoryRow, found: Archived | None) -> MemberAnswer:
    try:
        lines = [line_of(turn) for turn in turns_of(found)[:_LINES]] if found else []
        files = found.files if found else ()
    except EtudeError:  # it was removed meanwhile, as it was too old
        lines, files = [], ()
    counted = [file_of(each, True) for each in files[:_COUNTED_FILES]]
    added, removed = (sum(getattr(each, name) or 0 for each in counted) for name in ("added", "removed"))
    return MemberAnswer(row, lines, len(files), added, removed)


def _partings(members: Sequence[MemberAnswer]) -> list[Parting]:
    found = []
    for turn in range(max((len(member.calls) for member in members), default=0)):
        kinds = {each.row.id: each.calls[turn] if turn < len(each.calls) else None for each in members}
        if len(set(kinds.values())) > 1:
            found.append(Parting(turn, kinds))
        if len(found) >= _PARTINGS:
            break
    return found


def step_answer(reader: ArchiveReader, step: int, line: Mapping[str, Any]) -> StepAnswer:
    """A step with what its archive has of it; without one, with what its line says."""
    groups = [_group(each, step) for each in reader.groups(step)]
    if not groups:
        named = line.get("groups")
        members = named if isinstance(named, dict) else {}
        groups = [
            StepGroup(str(id), "", [], [f"{id}/{each}" for each in of if isinstance(each, int)], {})
            for id, of in members.items() if isinstance(of, list)
        ]  # fmt: skip
    lanes: dict[str, list[LaneRollout]] = {}
    for at, row in enumerate(reader.step(step)):
        found = reader.trajectory(row.id) if at < _SPANS_OF and row.oldest_version != row.newest_version else None
        lanes.setdefault(row.worker, []).append(_rollout(row, found))
    told = {key: value for key, value in line.items() if key != "groups"}
    return StepAnswer(step, told, groups, [Lane(worker, each) for worker, each in sorted(lanes.items())])


def _group(group: GroupRows, step: int) -> StepGroup:
    return StepGroup(
        group.id,
        group.task_id,
        [row.reward for row in group.rows],
        [row.id for row in group.rows if row.step == step],
        {row.id: row.dropped for row in group.rows if row.step != step},
    )


def _rollout(row: TrajectoryRow, found: Archived | None) -> LaneRollout:
    spans = _spans(row, found)
    return LaneRollout(row.id, row.begun_at, row.ended_at, row.outcome, row.reward, row.solved, spans)


def _spans(row: TrajectoryRow, found: Archived | None) -> list[tuple[float, float, int]]:
    """Which weights sampled when: from a message to the next one by other weights."""
    if row.newest_version is None:
        return []
    whole = [(row.begun_at, row.ended_at, row.newest_version)]
    try:
        events = [] if found is None else [said.event for said in found.said if said.event.kind == "completion"]
    except EtudeError:
        return whole
    spans: list[tuple[float, float, int]] = []
    begins = row.begun_at
    for event in events:
        version, at = event.data.get("version"), row.begun_at + event.at
        if not isinstance(version, int):
            continue
        if spans and spans[-1][2] == version:
            spans[-1] = (spans[-1][0], at, version)
        else:
            spans.append((begins, at, version))
        begins = at
    if spans:
        spans[-1] = (spans[-1][0], max(row.ended_at, spans[-1][1]), spans[-1][2])
    return spans or whole
