"""What a run does for its operator: takes changes of its recipe, and lets processes with new code take over.

Owns the order in which a replacement happens: the code is read from the disk first, so that code that cannot be loaded
changes nothing; then the new process is ready before the old one gets no more work. Talks to: live, the controller,
cluster.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from etude.errors import ConfigError, EtudeError
from etude.rollouts.cluster import Cluster
from etude.rollouts.controller import Controller
from etude.rollouts.live import LIVE, Changes

MODULES = {
    "sessions": "etude.rollouts.actors.sessions", "rewards": "etude.rollouts.actors.rewards",
    "engine": "etude.rollouts.actors.engine", "trainer": "etude.rollouts.actors.trainer",
}  # fmt: skip
"""Where the class of each kind of process is; all else a process loads itself, from the disk, when it starts."""


class Operator:
    """Does what `live.ControlSocket` is asked. `controller()` is None while the run does not train."""

    def __init__(
        self,
        changes: Changes,
        cluster: Cluster,
        controller: Callable[[], Controller | None],
        write: Callable[[str, dict[str, Any]], None],
        seen: Callable[[], dict[str, Any]],
    ) -> None:
        """`write` appends a line of a kind to the run's metrics; `seen` is what goes on (`watch.seen`)."""
        self.changes, self.cluster, self.controller, self.write = changes, cluster, controller, write
        self.seen = seen
        self._replacing = asyncio.Lock()

    async def answer(self, request: dict[str, Any]) -> str:
        """Do what is asked, and say what was done. Raises ConfigError for what cannot be."""
        if request.get("command") == "ping":
            return "it goes on"
        if request.get("command") == "watch":
            return json.dumps(self.seen(), default=float)
        if request.get("command") == "set":
            return self._set([str(change) for change in request["changes"]])
        if request.get("command") == "replace":
            return await self._replace(str(request["kind"]))
        if request.get("command") == "engines":
            return await self._engines(request.get("change"), str(request.get("name")))
        raise ConfigError(f"a run knows the commands set, replace, engines and watch, not {request.get('command')!r}")

    async def _engines(self, change: str | None, name: str) -> str:
        """Have one more, or one fewer, and say which there are."""
        fleet = self.cluster.fleet
        if change is not None:
            done = await (fleet.join() if change == "join" else fleet.leave(name))
            self.write("engines", {change: done or name})
        return "\n".join(
            f"{each['engine']} {'lent, ' * each['lent']}{each['state']}, version {each['version']}, "
            f"{each['running']} running, {each['tokens_per_s'] or 0:.0f} tokens a second of work"
            for each in fleet.about()
        )

    def _set(self, overrides: list[str]) -> str:
        changed = self.changes.set(overrides)
        controller = self.controller()
        if controller is not None:
            controller.reconfigure(changed)
        self.write("change", {"set": overrides})
        keys = [override.partition("=")[0].strip() for override in overrides]
        return "\n".join(f"{override} holds for {LIVE[key]}" for override, key in zip(overrides, keys, strict=True))

    async def _replace(self, kind: str) -> str:
        if kind not in MODULES:
            raise ConfigError(f"{kind}: no kind of process of a run; these are: {', '.join(MODULES)}")
        async with self._replacing:
            await asyncio.to_thread(_reload, MODULES[kind])
            count = await self.cluster.renew(kind)
        self.write("replaced", {"process": kind, "count": count})
        return f"{count} of {kind} replaced, with the code that is on the disk now"


def _reload(module: str) -> None:
    """Read a module anew. Raises EtudeError for one that cannot be loaded; the old one stays in use then."""
    before = sys.modules.get(module)
    kept = dict(vars(before)) if before else {}
    try:
        importlib.reload(before) if before else importlib.import_module(module)
    except Exception as error:
        if before:
            vars(before).update(kept)
        raise EtudeError(f"{module}: the new code cannot be loaded, nothing was replaced: {error!r}") from error
