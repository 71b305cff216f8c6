"""Building an image from a Dockerfile without a Docker engine: steps run in Etude's own sandboxes.

Owns the build: which stages are needed, what each instruction does to the state of its stage, and the cache. A step
that changes files (RUN, COPY, ADD, WORKDIR) makes one layer, kept in the image store under a digest of the layer below,
the instruction, the variables it sees and the files it takes; a layer that is there is not made again. RUN has the
whole root to write, root's powers over the image's own users only (see `root`), and no network beyond the hosts the
build lists; what those answered when a layer was made is no part of its digest, as the date is not.
Names in FROM are names of the image store; no registry is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import platform
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import Field

from etude.config import Config
from etude.environments.base import Resources
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.egress.policy import EgressConfig
from etude.environments.images.confined import Confined
from etude.environments.images.dockerfile import (
    Dockerfile,
    DockerfileError,
    Instruction,
    Stage,
    parse_dockerfile,
    split_quoted,
)
from etude.environments.images.expand import ExpansionError, expand
from etude.environments.images.ignore import Ignore
from etude.environments.images.mounts import Mounts
from etude.environments.images.steps import STEPS, Step
from etude.environments.images.store import Described, Image, ImageStore, settle
from etude.environments.namespace import NamespaceBackend
from etude.errors import ConfigError

SCRATCH = "scratch"
_KEY_LENGTH = 24  # of its digest's hexadecimal form: short names leave room for many layers in a mount's options
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class BuildConfig(Config):
    """What a step of a build may use. Its changes are kept in memory until it ends, so they count as memory too."""

    memory_mb: int = Field(8192, ge=64)
    """Of a step."""
    disk_mb: int = Field(4096, ge=16)
    """What a step may write."""
    pids: int = Field(1024, ge=8)
    """Processes of a step."""
    cpus: float = Field(2.0, gt=0)
    """Processors of a step."""
    step_timeout_s: float = Field(1800.0, gt=0)
    """How long a step may take."""
    egress: EgressConfig = EgressConfig()
    """What RUN steps may reach."""

    @property
    def resources(self) -> Resources:
        return Resources(self.memory_mb, self.pids, self.cpus, self.disk_mb)


@dataclass
class StageState:
    """A stage as it stands after some of its steps."""

    trees: tuple[Path, ...]
    """Layers, highest first, over the base image's tree."""
    key: str
    """The digest of how it came to be."""
    described: Described
    args: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    layers: tuple[str, ...] = ()
    """Keys, lowest first."""
    cmd_is_inherited: bool = True

    @property
    def env(self) -> dict[str, str]:
        return dict(self.described.env)

    @property
    def variables(self) -> dict[str, str]:
        return {**self.args, **self.env}

    def describe(self, **changes: object) -> None:
        self.described = replace(self.described, **changes)


@dataclass
class BuildResult:
    """What a build came to, and how much of it was there already."""

    image: Image
    ran: int = 0
    cached: int = 0


class Build:
    """One build under way; made by `build_image`. Steps (see `steps`) use it for what is not theirs: files, caches."""

    def __init__(
        self,
        store: ImageStore,
        backend: NamespaceBackend,
        config: BuildConfig,
        context: Path,
        dockerfile: Dockerfile,
        args: Mapping[str, str],
        work: Path,
        mounts: Mounts,
    ) -> None:
        self.store = store
        self.backend = backend
        self.config = config
        self.dockerfile = dockerfile
        self.context = Confined(context)
        ignoring = context / ".dockerignore"
        self.ignore = Ignore(ignoring.read_text() if ignoring.is_file() else "")
        self.args = dict(args)
        self.stages: dict[str, StageState] = {}
        self.ran = self.cached = 0
        self.empty = work / "empty"  # what `scratch` is
        self.empty.mkdir()
        self.empty.chmod(0o755)
        self._mounts = mounts
        self._used_args: set[str] = set()

    async def run(self, target: str | None, name: str | None) -> Image:
        wanted = self._wanted(target)
        globals_ = self._globals()
        for index in sorted(self._needed(wanted, globals_)):
            stage = self.dockerfile.stages[index]
            state = await self._stage(stage, globals_)
            self.stages[str(index)] = state
            if stage.name is not None:
                self.stages[stage.name] = state
        if unused := sorted(self.args.keys() - self._used_args):
            raise ConfigError(f"build argument {unused[0]!r}: no ARG of {self.dockerfile.origin} takes it; remove it")
        state = self.stages[str(wanted)]
        return await asyncio.to_thread(self._keep, state, name)

    # --- for steps --------------------------------------------------------------------------------------------------

    def error(self, step: Instruction, message: object) -> ConfigError:
        return self.dockerfile.error(step.line, str(message))

    def argument(self, name: str, default: str | None) -> str | None:
        """What ARG `name` comes to: given, or predefined, or its default."""
        self._used_args.add(name)
        return self.args.get(name, _platform_args().get(name, default))

    async def layer(self, state: StageState, what: object, make: Callable[[Path], Awaitable[None]]) -> None:
        """Add the layer identified by `what` to the state; `make` writes it to the directory it is given."""
        key = _key(state.key, what)
        place = self.store.root / "layers" / key
        if place.is_dir():
            self.cached += 1
        else:
            self.ran += 1
            with self.store.new() as partial:
                await make(partial / "layer")
                await asyncio.to_thread(settle, partial / "layer", place)
        state.key = key
        state.trees = (place, *state.trees)
        state.layers = (*state.layers, key)

    @contextlib.contextmanager
    def seen(self, trees: Sequence[Path], upper: Path | None = None) -> Generator[Confined]:
        """A stage's files as one tree; with `upper`, one whose changes land there. Blocks shortly."""
        with contextlib.ExitStack() as stack:
            lowers = []
            for tree in trees:
                if not tree.is_dir():
                    mounted = self._mounts.erofs(tree)
                    stack.callback(self._mounts.gone, mounted)
                    tree = mounted
                lowers.append(tree)
            if upper is not None:
                for made in (upper, Path(f"{upper}.work")):
                    made.mkdir()
                    made.chmod(0o755)
            elif len(lowers) == 1:
                yield Confined(self._mounts.seen(lowers[0]))
                return
            target = self._mounts.overlay(lowers, upper)
            stack.callback(self._mounts.gone, target)
            yield Confined(self._mounts.seen(target))

    # ----------------------------------------------------------------------------------------------------------------

    async def _stage(self, stage: Stage, globals_: dict[str, str]) -> StageState:
        state = self._start(stage, globals_)
        for step in stage.steps:
            run: Step = STEPS[step.keyword]
            try:
                await run(self, state, step, globals_)
            except DockerfileError:
                raise
            except (ExpansionError, ConfigError, OSError) as error:
                raise self.error(step, f"{step.keyword}: {error}") from None
        return state

    def _start(self, stage: Stage, globals_: dict[str, str]) -> StageState:
        base = self._base_name(stage, globals_)
        wanted = stage.platform and expand(stage.platform, globals_, self.dockerfile.escape)
        if wanted and wanted != _platform_args()["TARGETPLATFORM"]:
            raise self.dockerfile.error(stage.line, f"platform {wanted}: this machine builds only for itself")
        if base in self.stages:
            before = self.stages[base]
            return StageState(before.trees, before.key, before.described, shell=before.shell, layers=before.layers)
        if base == SCRATCH:
            return StageState((self.empty,), SCRATCH, Described())
        try:
            image = self.store.get(base)
        except ConfigError as error:
            raise self.dockerfile.error(stage.line, f"FROM: {error}") from None
        return StageState((image.path,), image.tree, image.described)

    def _base_name(self, stage: Stage, globals_: dict[str, str]) -> str:
        try:
            base = expand(stage.base, globals_, self.dockerfile.escape)
        except ExpansionError as error:
            raise self.dockerfile.error(stage.line, f"FROM: {error}") from None
        if not base:
            raise self.dockerfile.error(stage.line, f"FROM {stage.base} comes to nothing; give its ARG a default")
        known = {each.name for each in self.dockerfile.stages if each.line < stage.line}
        return base.lower() if base.lower() in known else base

    def _globals(self) -> dict[str, str]:
        values = _platform_args()
        for step in self.dockerfile.args:
            for word in split_quoted(step.text, self.dockerfile.escape):
                name, equals, default = word.partition("=")
                value = self.argument(name, expand(default, values, self.dockerfile.escape) if equals else None)
                if value is not None:
                    values[name] = value
        return values

    def _wanted(self, target: str | None) -> int:
        if target is None:
            return len(self.dockerfile.stages) - 1
        for index, stage in enumerate(self.dockerfile.stages):
            if target in (stage.name, str(index)):
                return index
        raise ConfigError(f"target: {self.dockerfile.origin} has no stage {target!r}")

    def _needed(self, wanted: int, globals_: dict[str, str]) -> set[int]:
        """The stages an image needs: itself, and those it stands on or copies from."""
        numbers = {stage.name: index for index, stage in enumerate(self.dockerfile.stages) if stage.name is not None}
        needed, ahead = set(), [wanted]
        while ahead:
            index = ahead.pop()
            needed.add(index)
            stage = self.dockerfile.stages[index]
            names = [self._base_name(stage, globals_), *(step.flag("from") or "" for step in stage.steps)]
            for name in names:
                number = numbers.get(name.lower(), int(name) if name.isdigit() else None)
                if number is not None and number < index and number not in needed:
                    ahead.append(number)
        return needed

    def _keep(self, state: StageState, name: str | None) -> Image:
        with self.seen(state.trees) as tree:
            return self.store.keep_tree(tree.root, state.described, name, state.layers)


async def build_image(
    store: ImageStore,
    backend: NamespaceBackend,
    context: Path,
    *,
    dockerfile: Path | None = None,
    args: Mapping[str, str] | None = None,
    target: str | None = None,
    name: str | None = None,
    config: BuildConfig | None = None,
) -> BuildResult:
    """Build `context`/Dockerfile (or `dockerfile`) and add the image to the store, under `name` if given.

    Raises DockerfileError for what cannot be built, BuildError for a step that fails.
    """
    path = dockerfile or context / "Dockerfile"
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such Dockerfile")
    parsed = parse_dockerfile(path.read_text(), str(path))
    program = guest_program(default_cache_dir())
    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, store.writing())
        work = stack.enter_context(store.new())
        mounts = Mounts(program, work)
        stack.callback(mounts.close)
        build = Build(store, backend, config or BuildConfig(), context, parsed, args or {}, work, mounts)
        image = await build.run(target, name)
        return BuildResult(image, build.ran, build.cached)


def _key(below: str, what: object) -> str:
    return hashlib.sha256(json.dumps([below, what], sort_keys=True).encode()).hexdigest()[:_KEY_LENGTH]


def _platform_args() -> dict[str, str]:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    parts = {"PLATFORM": f"linux/{machine}", "OS": "linux", "ARCH": machine, "VARIANT": ""}
    return {f"{prefix}{name}": value for prefix in ("TARGET", "BUILD") for name, value in parts.items()}
