"""One session in the foreground: the engine in this process, a real sandbox, every step printed as it happens.

Owns `etude play`: one attempt of a checkpoint, as a benchmark plays it. A directory of the user's is copied into the
sandbox and never written to; what the agent changed is shown as a diff.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from etude.bench.config import BenchConfig, CheckpointPolicy
from etude.bench.policies import AttemptRequest, open_policy
from etude.config import load_recipe, overridden
from etude.engine.config import EngineConfig
from etude.environments.backends import open_backend
from etude.environments.base import WORKSPACE, Sandbox
from etude.errors import ConfigError
from etude.harness.config import HarnessConfig
from etude.harness.session import SessionResult
from etude.harness.tools import ToolConfig
from etude.models.shipped import model_at, shipped_model
from etude.plain import plain
from etude.records import Event, InfraFailed, Limits, Task, Verifier
from etude.rewards.sealed import judge, run_to_seal
from etude.tasks.harbor import read_task
from etude.tasks.ladder import RUNGS, ladder_task
from etude.tasks.mined.shown import install_missing, showing

MAX_FILES, MAX_BYTES = 500, 2_000_000
SMALL = BenchConfig(
    policy=CheckpointPolicy(engine=EngineConfig(cache_tokens=16_384)),
    harness=HarnessConfig(tool=ToolConfig(max_observation_bytes=1500)),
)
"""How the small models play: what holds where no benchmark is named."""


def play_config(file: Path | None, given: Mapping[str, Any]) -> BenchConfig:
    """Of a benchmark, else of the small models with the newest trained one. `given` are keys' values in place of its
    own, None for none. Raises ConfigError, also for a benchmark that no checkpoint plays."""
    config = SMALL if file is None else load_recipe(file, BenchConfig)
    if not isinstance(config.policy, CheckpointPolicy):
        raise ConfigError(
            f"{file}: policy.kind is {config.policy.kind}; here a checkpoint plays, so name its benchmark"
        )
    said = {key: value for key, value in given.items() if value is not None}
    if "policy.path" in said:
        said["policy.path"] = str(model_at(said["policy.path"]))
    elif file is None:
        said["policy.path"] = str(newest_model())
    return overridden(config, [f"{key}={json.dumps(value)}" for key, value in said.items()])


def newest_model() -> Path:
    """The newest trained one, else the base that ships with Etude."""
    trained = sorted(Path("runs").glob("*/model/config.json"), key=lambda path: path.stat().st_mtime)
    return trained[-1].parent if trained else shipped_model()


def task_for(place: str, directory: Path | None, prompt: str | None) -> Task:
    """A generated task, one of real code, a task directory, or the user's own directory as a task with no verifier."""
    if directory is not None:
        if not prompt:
            raise ConfigError("--dir needs a PROMPT: say what is to be done there")
        return Task("directory", prompt, _files_of(directory), Verifier({}), limits=Limits(max_turns=12))
    if prompt is not None:
        raise ConfigError(f"{prompt!r}: a prompt goes with --dir, and a model with --model")
    if Path(place).is_dir():
        return read_task(Path(place))
    rung, _, seed = place.partition(":")
    if rung == "real":
        return _real_task(seed)
    if rung not in map(str, RUNGS) or not seed.isdigit():
        raise ConfigError(
            f"--task {place}: no task directory, not real:NAME, and not RUNG:SEED, with a rung from 1 to {max(RUNGS)}"
        )
    return ladder_task(int(rung), "eval", int(seed))


def _real_task(name: str) -> Task:
    """Of the development set alone: who looks at a session of the exam may do better by it."""
    from etude.tasks.real import real_tasks

    tasks = real_tasks("eval")
    if (found := next((task for task in tasks if name in task.id), None)) is None:
        raise ConfigError(f"--task real:{name}: none of real:eval has this in its name; one is called {tasks[0].id}")
    return found


def _files_of(directory: Path) -> dict[str, bytes]:
    """Text files of a directory, hidden ones left out; refuses what would not fit a small session."""
    if not directory.is_dir():
        raise ConfigError(f"--dir {directory}: no such directory")
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(directory).parts)]
    files = {str(path.relative_to(directory)): path.read_bytes() for path in paths[: MAX_FILES + 1]}
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise ConfigError(
            f"--dir {directory}: more than {MAX_FILES} files or {MAX_BYTES // 1_000_000} MB; name a smaller one"
        )
    return files


class Play:
    """One attempt in the foreground."""

    def __init__(self, config: BenchConfig, task: Task, quiet: bool) -> None:
        """`config` is of a checkpoint."""
        assert isinstance(config.policy, CheckpointPolicy)
        self.config, self.policy, [self.task] = config, config.policy, config.limits.given_to([task])
        self.console = Console(quiet=quiet, highlight=False)

    async def execute(self) -> dict[str, Any]:
        """Play the session and judge it; `solved` is None where there is nothing to judge by."""
        self.console.print(f"[dim]{self.policy.path} · {self.task.id}[/dim]")
        changed = ""

        async def session(sandbox: Sandbox) -> SessionResult:
            nonlocal changed
            played = await policy.play(AttemptRequest(self.task, 0, sandbox, self.config.seed, self.show))
            changed = await self._diff(sandbox)
            return played.result

        await install_missing([self.task], self.config.environment)
        backend = open_backend(showing(self.config.environment))
        try:
            async with open_policy(self.policy, self.config.harness, self.config.seed) as policy:
                policy.check(self.task)
                sealed = await run_to_seal(self.task, backend, session)
            verdict = (await judge(self.task, sealed, backend)).verdict if self.task.verifier.files else None
        finally:
            await backend.close()
        if isinstance(verdict, InfraFailed):
            raise ConfigError(f"the verifier could not run: {verdict.what}")
        solved = None if verdict is None else verdict.reward >= 1.0
        result = sealed.result
        self._finish(solved, result.stop, changed)
        return {"solved": solved, "stop": result.stop, "usage": dict(result.usage), "diff": changed}

    def show(self, event: Event) -> None:
        """Print one event of the session."""
        data = event.data
        if event.kind == "prompt":
            self.console.print(Text(plain(data["user"]), style="bold"))
        elif event.kind == "tool_call":
            self.console.print(
                Text.assemble(("● ", "blue"), (plain(data["name"]), "bold"), " ", plain(_arguments(data)))
            )
            if data["name"] == "edit_file":
                self._edit(data["arguments"])
        elif event.kind == "tool_result":
            style = "red" if data["error"] else "dim"
            lines = data["text"].rstrip().splitlines() or [""]
            shown = lines if len(lines) <= 8 else [*lines[:6], f"… {len(lines) - 6} more lines"]
            self.console.print(Text(plain("\n".join(f"  {line}" for line in shown)), style=style))

    def _edit(self, arguments: Mapping[str, Any]) -> None:
        for sign, key, style in (("-", "old", "red"), ("+", "new", "green")):
            for line in str(arguments.get(key, "")).splitlines():
                self.console.print(Text(plain(f"  {sign} {line}"), style=style))

    async def _diff(self, sandbox: Sandbox) -> str:
        """What became of the files the task gave, as a unified diff."""
        parts: list[str] = []
        for name, before in sorted(self.task.files.items()):
            try:
                after = await sandbox.read_file(f"{WORKSPACE}/{name}")
            except FileNotFoundError:
                after = b""
            if after != before:
                old, new = (text.decode(errors="replace").splitlines(keepends=True) for text in (before, after))
                parts += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        return "".join(parts)

    def _finish(self, solved: bool | None, stop: str, changed: str) -> None:
        if solved is None:
            self.console.print(Text(plain(changed) or "nothing was changed", style="cyan"))
        verdict = {True: ("✓ solved", "bold green"), False: ("✗ not solved", "bold red"), None: ("done", "bold")}[
            solved
        ]
        self.console.print(Text.assemble(verdict, f"  ({stop})"))


def _arguments(data: Mapping[str, Any]) -> str:
    values = data.get("arguments", {"": data.get("raw", "")})
    keys = ["path"] if data["name"] == "edit_file" else list(values)
    return " ".join(str(values.get(key, "")) for key in keys)
