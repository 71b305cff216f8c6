"""What manifests are made of, for KubeRay and SkyPilot alike: a recipe that fits the nodes, and the run's commands.

Owns what is looked at before anything is asked of a cluster that costs money: whether all processes of the run have
room there, and its ranks memory; whether they may make their sandboxes; and whether a secret would be in the manifest.
The recipe goes in as it stands, with what was overridden, so that one file starts the run.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from etude.config import load_recipe
from etude.errors import CheckpointError, ConfigError
from etude.models.files import fault_of
from etude.rollouts.config import RunConfig
from etude.rollouts.fleet import places_of
from etude.rollouts.machines.config import RAY_VARIABLES, Part
from etude.rollouts.machines.nodes_config import NodesConfig, holds_a_login, names_a_secret
from etude.rollouts.machines.room import asked_of, require_room, times, words_of
from etude.trainer.mesh.device import caveat
from etude.trainer.mesh.sizes import Sizes

PORT = 6379
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?")
"""Of a RayJob: longer ones would be cut in the names that KubeRay makes of it."""
_MORE = "`cpus`, `gpus`, `memory_gb` and `resources` of a group"
_IN_URL = "holds a URL with a user's name"
_JOIN_S = 300
"""For all nodes to join: with both forms they are there when the run is started, and have Ray to start."""


@dataclass(frozen=True)
class Planned:
    """A run and the nodes that it has room on. Make one with `planned`."""

    config: RunConfig
    nodes: NodesConfig
    recipe: str
    """Its text."""
    sets: tuple[str, ...]
    """What was overridden."""
    ray: str
    """Ray's version here, which all nodes must have."""

    @property
    def name(self) -> str:
        return f"{self.config.name}-{self.config.seed}"

    @property
    def variables(self) -> dict[str, str]:
        """Of all processes, secrets not among them."""
        return {**RAY_VARIABLES, **self.config.deadlines.variables(), **self.nodes.env}

    def command_lines(self) -> list[str]:
        """In sh, on the head, where `$url` is the head's and `$recipe` the file: wait for all nodes, and train. A run
        that is there already goes on.
        """
        out = self.nodes.shared / "runs" / self.name
        sets = [f"--set {shlex.quote(each)}" for each in self.sets]
        return [
            f'etude cluster wait "$url" {self.nodes.count} --seconds {_JOIN_S}',
            "resume=",
            f"if [ -e {shlex.quote(f'{out}/recipe.json')} ]; then resume=--resume; fi",
            " ".join([
                'etude train "$recipe" --out', shlex.quote(str(out)), *sets,
                '--set "machines.url=$url" --set machines.token_file= $resume',
            ]),
        ]  # fmt: skip


def planned(recipe: Path, sets: Sequence[str], nodes: NodesConfig) -> Planned:
    """The run of a recipe on these nodes. Raises ConfigError, saying what to change, where it could not be."""
    config = load_recipe(recipe, RunConfig, [*sets, f"machines.url=127.0.0.1:{PORT}", "machines.token_file="])
    found = Planned(config, nodes, recipe.read_text("utf-8"), tuple(sets), metadata.version("ray"))
    if not _NAME.fullmatch(found.name):
        raise ConfigError(
            f"name: {found.name!r} (name and seed) cannot be the name of a cluster: give at most 47 small letters, "
            "digits and -, a letter first"
        )
    _require_no_secrets(found)
    if "path" in config.model.model_fields_set and not config.model.path.is_absolute():
        raise ConfigError(
            f"model.path: {config.model.path} is relative to this directory, which no node has; give an absolute path "
            f"of the nodes: --set model.path={nodes.shared}/models/..."
        )
    require_room(config, [each.offers for each in nodes.groups for _ in range(each.count)], _MORE)
    _require_all(config, nodes)
    _require_sandboxes(config, nodes)
    _require_mesh(config, nodes)
    return found


def remarks(run: Planned) -> list[str]:
    """What is asked for and would have nothing to do."""
    assert run.config.machines is not None
    gpus = {each.name for each in run.nodes.groups if each.gpus}
    trained = "GPU" in run.config.machines.places.get("trainer", {})
    idle = "no rank uses the GPUs that machines.places.trainer asks for"
    found = [caveat(run.config.trainer, idle)] if trained else []
    asking = [part for part, asked in run.config.machines.places.items() if "GPU" in asked]
    if gpus and not asking:
        found.append(f"groups.{', '.join(sorted(gpus))}: no part of the run asks for their GPUs (machines.places)")
    return [each for each in found if each]


def _require_mesh(config: RunConfig, nodes: NodesConfig) -> None:
    """That the model can be cut so, and that its ranks have the memory, which is the host's. A model that only the
    nodes have is looked at there.
    """
    if config.trainer.mesh is None or fault_of(config.model.path) is not None:
        return
    from etude.models.checkpoint import shape_of  # torch: most manifests need none
    from etude.trainer.mesh.rehearsal import kept_of

    try:
        shape = shape_of(config.model.path)
    except CheckpointError as error:
        raise ConfigError(f"model.path: {error}") from None
    Sizes.of(config.trainer.mesh).require(shape)
    asked = asked_of(config, "trainer")
    rooms = [(min(times(asked, each.offers), config.trainer.processes), each) for each in nodes.groups if asked]
    ranks, tightest = min(
        ((count, each) for count, each in rooms if count),
        key=lambda each: each[1].memory_gb / each[0],
        default=(0, None),
    )
    if tightest is None:
        return  # they may be anywhere
    kept = math.ceil(kept_of(config.trainer, shape) * ranks / (1 << 30))
    if kept > tightest.memory_gb:
        raise ConfigError(
            f"groups.{tightest.name}: {ranks} ranks have room there by machines.places.trainer, and keep up to {kept} "
            f"GiB in its memory, a checkpoint and versions to publish among it; it has memory_gb = "
            f"{tightest.memory_gb}: raise that, or have a rank ask for more, so that fewer are on a node"
        )


def _require_no_secrets(run: Planned) -> None:
    """As far as names and URLs tell; in comments, URLs."""
    found = [*_secrets_in(run.config.model_dump(exclude_unset=True))]  # in which paths of files are no texts
    lines = enumerate(run.recipe.split("\n"), 1)
    found += [(f"line {number} of the recipe", _IN_URL) for number, line in lines if holds_a_login(line)]
    if found:
        where, why = found[0]
        raise ConfigError(f"{where}: {why}, and its value would be in the manifest; put it in secrets")


def _secrets_in(table: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The dotted paths of keys that hold a secret's value, and how it is known."""
    if isinstance(table, Mapping):
        for key, value in table.items():
            below = f"{path}.{key}" if path else str(key)
            if isinstance(value, str) and names_a_secret(str(key)):
                yield below, "names a secret"
            yield from _secrets_in(value, below)
    elif isinstance(table, list | tuple):
        for each in table:
            yield from _secrets_in(each, path)
    elif isinstance(table, str) and holds_a_login(table):
        yield path, _IN_URL


def _processes(config: RunConfig) -> dict[Part, int]:
    """How many a run starts of each part."""
    spares, workers = config.faults.spares, config.rollouts.workers
    engines = places_of(config) + (spares if config.engine.kind == "etude" else 0)
    return {"trainer": config.trainer.processes, "engine": engines, "sessions": workers + spares, "rewards": workers}


def _require_all(config: RunConfig, nodes: NodesConfig) -> None:
    """All processes together must have room: one that has none would wait until the run has failed."""
    assert config.machines is not None
    asked: dict[str, float] = {}
    for part, count in _processes(config).items():
        for name, amount in asked_of(config, part).items():
            asked[name] = asked.get(name, 0) + count * amount
    there = {name: sum(each.count * each.offers.get(name, 0) for each in nodes.groups) for name in asked}
    if lacking := [name for name, amount in asked.items() if amount > there[name]]:
        counts = ", ".join(f"{count} of {part}" for part, count in _processes(config).items())
        raise ConfigError(
            f"machines.places: the processes of the run ({counts}) ask for "
            f"{words_of({name: asked[name] for name in lacking})} in all, and the groups have "
            f"{words_of({name: there[name] for name in lacking})}; ask for less, or raise a group's count"
        )


def _require_sandboxes(config: RunConfig, nodes: NodesConfig) -> None:
    """A session worker makes sandboxes where Ray places it."""
    if config.environment.kind != "namespace":
        return
    for part in ("sessions", "rewards"):
        asked = asked_of(config, part)
        for group in nodes.groups:
            if times(asked, group.offers) and not group.privileged:
                raise ConfigError(
                    f"groups.{group.name}: {part} can be placed there, and need a privileged container for the "
                    'sandboxes of environment.kind = "namespace": set privileged = true, or have '
                    f"machines.places.{part} ask for a resource that only other groups have"
                )


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they stand, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def yaml_of(documents: Sequence[Mapping[str, Any]]) -> str:
    """One file of them."""
    each = (yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=120) for document in documents)
    return "---\n".join(each).rstrip("\n")
