"""What a reward worker keeps of a session that it has judged, before anybody hears of the verdict."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import killed_rollout
import numpy as np
from killed_rollout import FromContext, config, small_chat

from etude.archive.reader import ArchiveReader
from etude.archive.writer import ArchiveWriter
from etude.environments.namespace import NamespaceBackend
from etude.records import InfraFailed, Scored, Verifier
from etude.rollouts.kept import changed
from etude.rollouts.session import RolloutRequest, judge_as_blocked, judge_kept, judge_sealed, play_request
from etude.rollouts.trajectory_store import TrajectoryStore

SETTINGS = {"harness": {"summary": {"trigger_tokens": 640, "max_tokens": 200}}}
TEST = b"echo lines: $(wc -l < /workspace/ledger); echo 1 > /logs/verifier/reward.txt\n"
TASK = replace(killed_rollout.task(), verifier=Verifier({"/tests/test.sh": TEST}), files={"ledger": b"", "same": b"s"})


def test_what_was_judged_is_in_the_archive_before_its_verdict(tmp_path):
    request = RolloutRequest("g7/2", "g7", TASK, 5, kept=tmp_path / "trajectories", attempt=2)
    settings, chat = config(**SETTINGS), small_chat()

    async def whole():
        backend, archive = NamespaceBackend(), ArchiveWriter(tmp_path)
        try:
            played = await play_request(request, settings, backend, FromContext(chat, 3), chat, lambda *_: None)
            async with settings.rewards.judges() as judges:

                async def judge(rollout):
                    with ArchiveReader(tmp_path) as reader:
                        assert reader.count() == len(verdicts)
                    return await judge_sealed(rollout, settings, backend, judges)

                verdicts = []
                verdicts.append(await judge_kept(request, judge, archive))
                with ArchiveReader(tmp_path) as reader:
                    first = reader.row(request.id)
                verdicts.append(
                    await judge_kept(request, lambda rollout: judge_sealed(rollout, settings, backend, judges), archive)
                )
                blocked = replace(request, id="g7/2")
                verdicts.append(
                    await judge_kept(
                        blocked, lambda rollout: judge_as_blocked(rollout, "it hangs", settings, backend), archive
                    )
                )
                archive.close()
                (tmp_path / "archive/chunks").rename(tmp_path / "chunks")
                (tmp_path / "archive/chunks").write_text("no directory")
                refused = await judge_kept(
                    request, lambda rollout: judge_sealed(rollout, settings, backend, judges), archive
                )
                (tmp_path / "archive/chunks").unlink()
                (tmp_path / "chunks").rename(tmp_path / "archive/chunks")
                return played, verdicts, first, refused
        finally:
            await backend.close()

    played, verdicts, first, refused = asyncio.run(whole())
    assert [type(sample.outcome) for sample in verdicts] == [Scored] * 3
    assert [sample.usage["archived"] for sample in verdicts] == [1, 1, 1]
    assert isinstance(refused.outcome, InfraFailed) and "chunks" in refused.outcome.what, "no verdict without it"
    store = TrajectoryStore(request.kept)
    with ArchiveReader(tmp_path) as reader:
        [row] = reader.trajectories().rows
        assert (first.reward, row.reward) == (verdicts[0].outcome.reward, verdicts[2].outcome.reward)
        assert first.solved and not row.solved and row.id == "g7/2" and row.seconds > 0
        assert row.begun_at <= played.over_at <= row.ended_at and row.worker == played.worker
        found = reader.trajectory("g7/2")
        segments = store.trajectory(verdicts[2]).segments
        assert len(segments) > 1 and [each.kind for each in found.tokens.segments] == [each.kind for each in segments]
        for name in ("token_ids", "sampled", "logprobs", "versions"):
            whole = np.concatenate([getattr(each, name) for each in segments])
            np.testing.assert_array_equal(getattr(found.tokens, name), whole)
        assert [each.event for each in found.said] == list(store.events("g7/2"))
        assert found.about["attempt"] == 2 and found.about["conduct"]["calls"] == row.calls > 0
        assert "it hangs" in found.verifier


def test_the_files_that_a_session_changed_are_kept_with_what_they_were(tmp_path):
    request = RolloutRequest("g7/2", "g7", TASK, 5, kept=tmp_path / "trajectories")
    settings, chat = config(), small_chat()

    async def whole():
        backend = NamespaceBackend()
        try:
            played = await play_request(request, settings, backend, FromContext(chat, 0), chat, lambda *_: None)
            with ArchiveWriter(tmp_path) as archive:
                async with settings.rewards.judges() as judges:
                    await judge_kept(request, lambda rollout: judge_sealed(rollout, settings, backend, judges), archive)
            return played
        finally:
            await backend.close()

    played = asyncio.run(whole())
    with ArchiveReader(tmp_path) as reader:
        found = reader.trajectory("g7/2")
    assert [change.path for change in found.files] == ["ledger"] and found.files[0].before == b""
    lines = found.files[0].after.count(b"\n")
    assert lines > 3 and found.verifier == f"lines: {lines}\n" and found.task.files == ("ledger", "same")
    removed = list(changed({**TASK.files, "gone": b"1", ".git/HEAD": b"2"}, played.sealed))
    assert [(change.path, change.after) for change in removed if change.path != "ledger"] == [("gone", None)]
    assert list(changed(TASK.files, replace(played.sealed, blocked="too much"))) == []
