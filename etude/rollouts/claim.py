"""Whose a run directory is: one run's, from its first start on, and one living process's at a time.

Owns `claim`, the file `run.lock` and what is said of a directory that cannot be had. Never writes over a recipe that
anything was made by, nor over one that is no run's. The lock is the controller's and not its supervisor's: it ends with
the process, however that ends, so that the next life has it at once. What a controller starts does not inherit it.
Talks to: host.lock.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from etude.deadlines import scaled
from etude.durable import write_whole
from etude.errors import ConfigError
from etude.host.lock import hold, wait_for
from etude.rollouts.config import RunConfig
from etude.rollouts.live import SOCKET

LOCK, RECIPE, RAY_TOKEN = "run.lock", "recipe.json", "ray.token"
_DYING_S = 5.0
"""How long a process that was killed may take to be gone: its supervisor waits for that, who killed both does not."""


_SAID = 6
"""Keys that differ: of so many one sees that it is quite another recipe."""


class Claim:
    """A directory that is had, for as long as `file` is open."""

    def __init__(self, file: IO[str], path: Path, dumped: dict[str, Any]) -> None:
        self.file, self._path, self._dumped = file, path, dumped

    def write_recipe(self) -> None:
        """What the run is made by from now on. Over that of a run that has begun, only once it goes on with this one:
        with another mesh, which its model may not have.
        """
        write_whole(self._path, f"{json.dumps(self._dumped, indent=1, default=float)}\n".encode())


def claim(directory: Path, config: RunConfig, resume: bool) -> Claim:
    """A fresh directory for a fresh run, the same recipe for a resumed one, but for the form of a mesh, and for keys
    that change nothing in it: an earlier version wrote down what it was given of them. One in which nothing has begun
    is fresh, whatever recipe was to be run there. Raises ConfigError.
    """
    dumped = config.model_dump(mode="json")
    if _recipe_in(directory, dumped) is None and resume:
        raise ConfigError(f"{directory}: no run to resume here; start one without --resume")
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / LOCK).open("a")
    try:
        _hold(file, directory)
        _say_where(file)
        claimed = Claim(file, directory / RECIPE, dumped)
        if not _goes_on(directory, config, dumped, resume):
            claimed.write_recipe()
    except BaseException:
        file.close()
        raise
    return claimed


def _hold(file: IO[str], directory: Path) -> None:
    if wait_for(file.fileno(), scaled(_DYING_S)):
        return
    try:
        hold(file.fileno())
    except BlockingIOError as error:
        raise ConfigError(
            f"{directory}: a run is under way there ({error.strerror}); stop it first, or choose another --out"
        ) from None


def _say_where(file: IO[str]) -> None:
    """Which file this is, and on which machine: a copy of it, with all the run, can be told from it."""
    file.truncate(0)
    json.dump({"host": socket.gethostname(), "inode": os.fstat(file.fileno()).st_ino}, file)
    file.flush()


def _goes_on(directory: Path, config: RunConfig, dumped: dict[str, Any], resume: bool) -> bool:
    """Whether the recipe that is there is gone on with, perhaps with another mesh; else there is none, or one that
    nothing was made by."""
    recipe = _recipe_in(directory, dumped)
    if recipe is None:
        return False
    differing = _differing(_meaning(config, recipe), _meaning(config, dumped))
    begun = _is_begun(directory, recipe)
    if begun and not resume:
        raise ConfigError(f"{directory}: holds a run already; go on with --resume, or choose another --out")
    if begun and differing:
        more = f"; and {len(differing) - _SAID} more" if len(differing) > _SAID else ""
        raise ConfigError(
            f"{directory}: was started with another recipe ({'; '.join(differing[:_SAID])}{more}); go on with its own, "
            f"`etude train {directory / RECIPE} --resume`, or choose another --out"
        )
    return begun


def _differing(there: Any, here: Any, key: str = "") -> list[str]:
    """The keys of a run's recipe that are others here, with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = sorted(there.keys() | here.keys())
        found = (_differing(there.get(each), here.get(each), f"{key}.{each}" if key else each) for each in keys)
        return [line for lines in found for line in lines]
    return [] if there == here else [f"{key} was {json.dumps(there)}, and is {json.dumps(here)} now"]


def _recipe_in(directory: Path, dumped: dict[str, Any]) -> dict[str, Any] | None:
    """What a run was to be made by; None where there is nothing of that name. Anything else of that name is somebody's
    own."""
    path = directory / RECIPE
    if not (path.exists() or path.is_symlink()):
        return None
    try:
        recipe = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):  # a directory, a link to nothing, another program's file
        recipe = None
    if recipe != dumped and not _is_dump(recipe):
        raise ConfigError(f"{path}: is no recipe that this version has written; choose another --out")
    return recipe


def _is_dump(recipe: Any) -> bool:
    """Whether it is a whole recipe: a dump has every key, those too that a user may not give where they are idle."""
    if not isinstance(recipe, dict) or recipe.keys() != RunConfig.model_fields.keys():
        return False
    try:
        RunConfig.model_validate(recipe)
    except ValidationError as error:
        return all(each["type"] == "idle" for each in error.errors())
    return True


def _is_begun(directory: Path, recipe: dict[str, Any]) -> bool:
    """Whether anything was made there: a start that came to nothing leaves its recipe, and the lock of a trainer in
    front of a store that is empty. A store elsewhere cannot be seen from here."""
    left = {RECIPE, LOCK, SOCKET, RAY_TOKEN} | ({"trainer.lock"} if recipe["store"] is None else set())
    return any(path.relative_to(directory).as_posix() not in left for path in _files(directory, {directory.resolve()}))


def _files(directory: Path, seen: set[Path]) -> Generator[Path]:
    """All below it that is no directory, also behind links: a store may lie on another disk."""
    for path in directory.iterdir():
        if not path.is_dir():
            yield path
        elif (place := path.resolve()) not in seen:
            seen.add(place)
            yield from _files(path, seen)


def _meaning(config: RunConfig, recipe: dict[str, Any]) -> dict[str, Any]:
    """A dumped recipe less the keys that change nothing in this config, and with any mesh for each other. An earlier
    version had `true` where the model now says whether routes are replayed."""
    meaning = _without(config.all_idle(), recipe)
    if isinstance(meaning["trainer"]["ranks"], dict):
        meaning["trainer"]["ranks"] = "mesh"
    if meaning["trainer"]["router_replay"] is None:
        meaning["trainer"]["router_replay"] = True
    return meaning


def _without(paths: set[str], table: dict[str, Any], above: str = "") -> dict[str, Any]:
    """A dumped recipe less the keys of these dotted paths."""
    return {
        key: _without(paths, value, f"{above}{key}.") if isinstance(value, dict) else value
        for key, value in table.items()
        if f"{above}{key}" not in paths
    }
