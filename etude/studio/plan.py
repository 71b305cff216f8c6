"""What `etude plan` would say of a run's own recipe, from the rates in its own files.

Owns `Planner`: one plan is computed at a time, beside the event loop, and kept until the run's files change. A recipe
that names code of its own is not planned here: to read it would be to load what a run's directory says. Nor is one that
would take its time.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

from etude.config import parse_dump
from etude.errors import ConfigError
from etude.plugins import without_paths
from etude.studio.files import Directory
from etude.studio.run import METRICS, Run
from etude.studio.shapes import PlanAnswer

_LAST_BYTES = 32 << 20
_KEPT = 32
_OWN_CODE = "this recipe names code of its own; run `etude plan --from` on it yourself"
_MOST_ROLLOUTS = 1 << 16
"""Of a step, or in flight, that are simulated: so many take a minute."""


class Planner:
    """Of one server."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._kept: dict[str, tuple[int, PlanAnswer]] = {}

    async def plan(self, run: Run) -> PlanAnswer:
        """Raises ConfigError where the run has not gone on for long enough, or its recipe cannot be planned."""
        async with self._one_at_a_time:
            await asyncio.to_thread(run.refresh)
            steps = run.last_step
            kept = self._kept.get(run.id)
            if kept is not None and kept[0] == steps:
                return kept[1]
            found = await asyncio.to_thread(_planned, run.directory)
            self._kept[run.id] = (steps, found)
            for oldest in list(self._kept)[:-_KEPT]:
                del self._kept[oldest]
            return found


def _planned(directory: Directory) -> PlanAnswer:
    from etude.rollouts.config import RunConfig
    from etude.rollouts.plan.planner import lines_of, plan_of
    from etude.rollouts.plan.rates import rates_of

    recipe = directory.table("recipe.json")
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in directory.last(METRICS, _LAST_BYTES):
        try:
            row = json.loads(line)
            lines[row["kind"]].append(row)
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # cut
    try:
        with without_paths(_OWN_CODE):
            config = parse_dump(dict(recipe), RunConfig, "recipe.json")
            _check_size(config)
            plan = plan_of(config, rates_of(lines, "this run"))
    except (TypeError, KeyError, ArithmeticError, AttributeError, ValueError) as error:
        raise ConfigError(f"this run's files cannot be planned from: {type(error).__name__}: {error}") from None
    return PlanAnswer(**plan.as_json(), said=list(lines_of(plan)))


def _check_size(config: Any) -> None:
    rollouts = config.rollouts
    if (most := max(rollouts.concurrency, rollouts.groups_per_step * config.groups.size)) > _MOST_ROLLOUTS:
        said = f"{most} rollouts of a step or in flight are not simulated here, where {_MOST_ROLLOUTS} may be"
        raise ConfigError(f"recipe.json: {said}; run `etude plan --from` on it yourself")
