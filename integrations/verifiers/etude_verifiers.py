"""Etude's tasks and harness as an environment of verifiers: its evaluator and its trainers play them.

    vf-eval etude-verifiers --env.taskset.directories '["tasks/shop"]' --env.agent.harness.id etude-verifiers …

Owns `EtudeTaskset`, which reads Harbor task directories, and `EtudeHarness`, which holds one session: Etude's own, in a
sandbox of Etude's, with every message asked of verifiers' interception server, so its trace is the record. The session
is over when it has been judged, in a fresh sandbox; the task's reward is that verdict. A failure of the machinery is an
error of the rollout and never a reward. Written for verifiers 0.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from etude.bench.policies import AttemptRequest, EndpointPlayer
from etude.environments.base import Sandbox
from etude.environments.namespace import NamespaceBackend
from etude.errors import EtudeError
from etude.harness.config import HarnessConfig
from etude.harness.endpoint import Endpoint, EndpointConfig
from etude.harness.session import SessionResult
from etude.records import InfraFailed
from etude.rewards.judgement import Judges
from etude.rewards.sealed import judge, run_to_seal
from etude.tasks.harbor import read_task, task_directories

__all__ = ["EtudeHarness", "EtudeTaskset"]
_VERDICT = "etude"
"""Under which key of a trace's `info` a harness leaves what the judge said, for the task."""


class EtudeTasksetConfig(vf.TasksetConfig):
    directories: list[Path] = []
    """Harbor task directories, or directories of such."""


class EtudeTaskData(vf.TaskData):
    directory: str
    """Where the task is: its files and its verifier are too large, and too secret, for a trace."""


class EtudeTask(vf.Task[EtudeTaskData, vf.State, vf.TaskConfig]):
    @property
    def key(self) -> str:
        return self.data.id or self.hash

    @vf.reward
    async def solved(self, trace: vf.Trace) -> float:
        return float(_verdict(trace)["reward"])

    @vf.metric
    async def counts(self, trace: vf.Trace) -> dict[str, float]:
        return {name: float(count) for name, count in _verdict(trace)["usage"].items()}


class EtudeTaskset(vf.Taskset[EtudeTask, EtudeTasksetConfig]):
    def load(self) -> Iterator[EtudeTask]:
        if not self.config.directories:
            raise ValueError("name task directories: --env.taskset.directories '[\"tasks/shop\"]'")
        for directory in (path for each in self.config.directories for path in task_directories(each)):
            task = read_task(directory)
            data = EtudeTaskData(id=task.id, name=task.id, prompt=task.instruction, directory=str(directory.resolve()))
            yield EtudeTask(data, self.config.task)


class EtudeHarnessConfig(vf.HarnessConfig):
    harness: dict[str, Any] = {"toolset": "agent", "max_turn_tokens": 16_000}
    """The table `[harness]` of a recipe of Etude's; as it stands here, the product's."""


class EtudeHarness(vf.Harness[EtudeHarnessConfig]):
    NEEDS_CONTAINER = False
    """The runtime is not worked in: commands run in a sandbox of Etude's."""

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        if mcp_urls:
            raise vf.HarnessError("Etude's tasks bring their own tools; they are given no tool servers")
        directory = getattr(data, "directory", None)
        if directory is None:
            raise vf.HarnessError("this harness plays tasks of the taskset etude-verifiers alone")
        asked = Endpoint(EndpointConfig(url=endpoint, model=ctx.model, headers={"Authorization": f"Bearer {secret}"}))
        backend = NamespaceBackend()
        try:
            trace.info[_VERDICT] = await self._played(Path(directory), asked, backend, trace.id)
        except EtudeError as error:
            raise vf.HarnessError(f"{type(error).__name__}: {error}") from error
        finally:
            await asked.close()
            await backend.close()
        return vf.ProgramResult(0, "", "")

    async def _played(self, directory: Path, asked: Endpoint, backend: NamespaceBackend, name: str) -> dict[str, Any]:
        """One session, sealed and judged. Raises EtudeError for what is no doing of the model's."""
        task, played = read_task(directory), list[SessionResult]()
        player = EndpointPlayer(asked, HarnessConfig.model_validate(self.config.harness), None)

        async def session(sandbox: Sandbox) -> SessionResult:
            played.append((await player.play(AttemptRequest(task, 0, sandbox, 0))).result)
            return played[-1]

        sealed = await run_to_seal(task, backend, session)
        said = (await judge(task, sealed, backend, Judges())).verdict
        if isinstance(said, InfraFailed):
            raise vf.HarnessError(said.what)
        result = sealed.result
        return {"reward": said.reward, "why": said.reason, "stop": result.stop, "usage": dict(result.usage)}


def _verdict(trace: vf.Trace) -> dict[str, Any]:
    if _VERDICT not in trace.info:
        raise vf.TaskError(
            "no verdict: tasks of etude-verifiers are played by its own harness; add "
            "--env.agent.harness.id etude-verifiers"
        )
    return trace.info[_VERDICT]
