"""A run's way into a Ray of several machines: joined, held to what all of them must share, and its processes placed.

Owns what is looked at before any process of the run starts. Every machine must see the run's directory, for tokens go
through it from the worker that plays to the one that judges and to the trainer, whose ranks have their checkpoints
there; must reach the weight store; and must have the same model and the same Etude. So a machine that a process could
be placed on and could do nothing there is named at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from etude import __version__
from etude.deadlines import scaled
from etude.errors import ConfigError, DeadlineExceeded, EtudeError
from etude.rollouts.machines.config import MachinesConfig, Part
from etude.rollouts.machines.room import asked_of, require_room
from etude.rollouts.machines.table import require_ray
from etude.rollouts.own_ray import know_token
from etude.rollouts.ray_signals import own_sigterm
from etude.serving.token import read_token
from etude.weights.opening import is_local, open_store
from etude.weights.store import Patience, Store, StoreConfig

if TYPE_CHECKING:
    from etude.rollouts.config import RunConfig

_LOOK_S = 60.0
"""For a machine to start a process that looks: Python and Ray have to be read from its disk."""
_STORE = Patience(deadline_s=15.0, silence_s=5.0)
"""For the store to be reached from there, within that time."""
_ANYWHERE = {"memory": 1.0}
"""Of a rank that asks for nothing: a place in a group must have something, and every machine has a byte."""
_OWN_WORDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""What Ray calls these where it is asked for them."""
_MORE = "`cpus` and `resources` in the file of `etude cluster`"


def join(machines: MachinesConfig, variables: Mapping[str, str]) -> None:
    """Make this process one of that Ray, whose processes for us have these variables. Raises EtudeError."""
    token = machines.token_file
    if token is not None:
        _require_token(token.expanduser())
        know_token(token.expanduser().resolve())
    require_ray(machines.url)
    try:
        with own_sigterm():
            ray.init(
                machines.url, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False,
                runtime_env={"env_vars": dict(variables)},
            )  # fmt: skip
    except (RayError, OSError, RuntimeError, ValueError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EtudeError(
            f"machines.url: the Ray at {machines.url} cannot be joined ({said}); start the run on a machine of the "
            "cluster, where `etude cluster status` says that it is alive"
        ) from None


def _require_token(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"machines.token_file: {path}: no such file; `etude cluster up` writes it, and says where")
    read_token(path)


async def require_shared(config: RunConfig, directory: Path) -> None:
    """Raises ConfigError, naming the machine, where one does not see or have what this one does."""
    machines = {each["NodeManagerAddress"]: each for each in ray.nodes() if each["Alive"]}
    require_room(config, [each["Resources"] for each in machines.values()], _MORE)
    seen, key = [directory.resolve()], None
    with contextlib.ExitStack() as probes:
        if config.store is not None and is_local(config.store):
            seen.append(Path(config.store.removeprefix("file://")).resolve())
        elif config.store is not None:
            key = probes.enter_context(_word_in(open_store(config.store, config.weight_store)))
        words = [path / probes.enter_context(_probe(path)) for path in seen]
        of = [(address, each["NodeID"]) for address, each in machines.items()]
        await asyncio.gather(*(_require_of(address, node, words, key, config) for address, node in of))


@contextlib.contextmanager
def _probe(directory: Path) -> Generator[str]:
    """A word in a file of this directory, for as long as it is entered; gives the file's name."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f".shared-{secrets.token_hex(8)}"
    path.touch()
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _word_in(store: Store) -> Generator[str]:
    """An object in this store, for as long as it is entered; gives its key."""
    key = f"shared/{secrets.token_hex(8)}"
    store.put(key, b"")
    try:
        yield key
    finally:
        store.delete(key)


async def _require_of(address: str, node: str, words: Sequence[Path], key: str | None, config: RunConfig) -> None:
    looking = ray.remote(num_cpus=0, max_retries=0)(_look).options(
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
    )
    try:
        async with asyncio.timeout(scaled(_LOOK_S)):
            version, model, missing, silent = await looking.remote(
                words, config.model.path, config.store, config.weight_store, key
            )
    except TimeoutError:
        raise DeadlineExceeded(f"machine {address} to look at the run's directory", scaled(_LOOK_S)) from None
    except RayError as error:
        said = (str(error).strip().splitlines() or [""])[-1]
        raise ConfigError(
            f"machines: {address} cannot run Etude ({said}); install the same there as here, with its extra train"
        ) from None
    if version != __version__:
        raise ConfigError(f"machines: {address} has Etude {version}, and this machine {__version__}; install the same")
    if missing:
        raise ConfigError(
            f"machines: {address} does not see {missing[0].parent}; the run's directory and its store must be on a "
            "file system that all machines share under the same path, NFS say: choose another --out, or mount it there"
        )
    if silent is not None:
        raise ConfigError(
            f"machines: {address} does not see what is written into {config.store} ({silent}); every machine must "
            "reach the store, with credentials of its own: [secrets] in the file of `etude cluster` gives them"
        )
    if model != _digest(config.model.path):
        raise ConfigError(
            f"model.path: {address} has {'another model' if model else 'no model'} at {config.model.path}; copy it "
            "there under the same path, or put it where all machines see it"
        )


def _look(
    probes: Sequence[Path], model: Path, store: str | None, options: StoreConfig, key: str | None
) -> tuple[str, str, list[Path], str | None]:
    """Runs on each machine: the Etude there, its model, which probes it does not see, and why the store's not."""
    silent = None
    if store is not None and key is not None:
        try:
            silent = None if open_store(store, options, _STORE).exists(key) else "it is not there"
        except EtudeError as error:
            silent = str(error)
    return __version__, _digest(model), [each for each in probes if not each.exists()], silent


def _digest(model: Path) -> str:
    """Of what tells one model from another without reading its weights; "" where there is none."""
    try:
        config = (model / "config.json").read_bytes()
        sizes = sorted((each.name, each.stat().st_size) for each in model.glob("*.safetensors"))
    except OSError:
        return ""
    return hashlib.sha256(config + repr(sizes).encode()).hexdigest()


# --- where processes are placed ---------------------------------------------------------------------------------------


def placed(actor: Any, part: Part, config: RunConfig, **options: Any) -> Any:
    """The actor as one of a part, which Ray spreads over the machines that have what it asks for: so one that dies
    takes few of them with it. Another takes its place wherever there is room then.
    """
    if config.machines is not None:
        options |= {"scheduling_strategy": "SPREAD", **_options(asked_of(config, part))}
    return actor.options(**options)


class RanksRoom:
    """The trainer's place: room for each rank, all on as few machines as have it (PACK), for they exchange far more
    with each other than with anybody else. A placement group keeps it while a trainer that died is started anew; what
    was on a machine that is gone, Ray finds on others, or waits for. Nothing is asked for in a Ray of the run's own.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._group: PlacementGroup | None = None

    def placed(self, actor: Any, rank: int) -> Any:
        if self._config.machines is None:
            return actor
        asked = asked_of(self._config, "trainer") or _ANYWHERE
        if self._group is None:
            self._group = placement_group([asked] * self._config.trainer.processes, strategy="PACK")
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
        return actor.options(scheduling_strategy=strategy, **_options(asked))


def _options(asked: Mapping[str, float]) -> dict[str, Any]:
    own = {_OWN_WORDS[name]: amount for name, amount in asked.items() if name in _OWN_WORDS}
    return {**own, "resources": {name: amount for name, amount in asked.items() if name not in _OWN_WORDS}}
