"""Etude's half: the quickstart recipe's reinforcement learning, without its evaluations and its control.

Runs the same actors, controller and loop as `etude train`, for a wall budget that begins when the first rollout is
dispatched and ends with the first optimizer step past it. Started by quickstart_vs_trl.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import Measured, training_task

from etude.config import load_recipe
from etude.records import Version
from etude.rollouts.cluster import Cluster
from etude.rollouts.config import RunConfig
from etude.rollouts.controller import Controller
from etude.rollouts.groups import GroupPool
from etude.rollouts.ledger import GroupLedger
from etude.rollouts.loop import train
from etude.rollouts.sample import Sample, SampleGroup
from etude.rollouts.stats import RunStats
from etude.rollouts.stream import TaskStream, of_family


class MeasuredStats(RunStats):
    """A run's statistics that tell `Measured` as well."""

    def __init__(self, path: Path, measured: Measured) -> None:
        super().__init__(path)
        self.measured = measured
        self.groups: list[SampleGroup] = []

    def rolled_out(self, sample: Sample) -> None:
        super().rolled_out(sample)
        self.measured.rolled_out(sample)

    def before_step(
        self, groups: list[SampleGroup], pool: GroupPool, version: Version, elapsed_s: float
    ) -> dict[str, Any]:
        self.groups = groups
        return super().before_step(groups, pool, version, elapsed_s)

    def stepped(self, line: dict[str, Any]) -> None:
        super().stepped(line)
        self.measured.trained([list(group.samples) for group in self.groups])


async def run(config: RunConfig, directory: Path, out: Path) -> None:
    cluster = await Cluster.start(config, directory)
    try:
        published = await cluster.trainer.publish()
        await cluster.fleet.deliver(published)
        measured = Measured()
        stats = MeasuredStats(directory / "metrics.jsonl", measured)
        family = of_family(config.rollouts.family, config.rollouts.rungs, config.seed)
        source = replace(family, make=lambda rung, index: training_task(config, index))  # those that TRL trains on
        stream = TaskStream(source, config.seed)
        controller = Controller(config, cluster, stream, stats, GroupLedger(directory / "ledger"))
        base = Version(published["version"])
        await controller.start(base, base)
        try:
            await train(controller)
            measured.write(out, dropped=dict(stats.dropped), max_staleness=config.groups.max_staleness)
        finally:
            await controller.stop()
    finally:
        await cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    config = load_recipe(options.recipe, RunConfig, options.set)
    options.directory.mkdir(parents=True, exist_ok=True)
    (options.directory / "recipe.json").write_text(json.dumps(config.model_dump(mode="json"), default=str))
    asyncio.run(run(config, options.directory, options.out))


if __name__ == "__main__":
    main()
