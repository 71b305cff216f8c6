"""What each instruction of a Dockerfile does to the state of its stage.

Owns one function an instruction; `build` calls them in order. Those that only describe the image change the
description; RUN, COPY, ADD and WORKDIR also make a layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shlex
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from etude.environments.egress.policy import EgressConfig
from etude.environments.images.confined import Confined
from etude.environments.images.copying import (
    CopyOptions,
    Source,
    digest_sources,
    find_sources,
    place_sources,
    place_texts,
)
from etude.environments.images.dockerfile import Instruction, is_heredoc, split_quoted
from etude.environments.images.expand import expand, expand_literal, pairs
from etude.environments.images.ignore import Ignore
from etude.environments.images.root import DEFAULT_PATH, Root, check_points
from etude.environments.images.users import home_of, resolve_user
from etude.environments.namespace import NamespaceSandbox
from etude.errors import BuildError, ConfigError, DeadlineExceeded

if TYPE_CHECKING:
    from etude.environments.images.build import Build, StageState

Step = Callable[["Build", "StageState", Instruction, dict[str, str]], Awaitable[None]]
_SCRIPT = "/dev/shm/step"
_QUOTED_BYTES = 4000
_OUTPUT_BYTES = 1 << 20


async def _arg(build: Build, state: StageState, step: Instruction, globals_: dict[str, str]) -> None:
    for word in split_quoted(step.text, build.dockerfile.escape):
        name, equals, default = word.partition("=")
        fallback = expand(default, state.variables, build.dockerfile.escape) if equals else globals_.get(name)
        value = build.argument(name, fallback)
        if value is not None:
            state.args[name] = value


async def _env(build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    new = pairs(step.text, state.variables, build.dockerfile.escape)
    state.describe(env=tuple({**state.env, **dict(new)}.items()))


async def _label(build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    new = pairs(step.text, state.variables, build.dockerfile.escape)
    state.describe(labels=tuple({**dict(state.described.labels), **dict(new)}.items()))


async def _user(build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    state.describe(user=_expanded(build, state, step.text))


async def _expose(build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    ports = [_expanded(build, state, word) for word in step.text.split()]
    ports = [port if "/" in port else f"{port}/tcp" for port in ports]
    state.describe(exposed=tuple(dict.fromkeys((*state.described.exposed, *ports))))


async def _shell(_build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    state.shell = step.words or ()


async def _cmd(_build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    state.describe(cmd=step.words if step.words is not None else (*state.shell, step.text))
    state.cmd_is_inherited = False


async def _entrypoint(_build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    state.describe(entrypoint=step.words if step.words is not None else (*state.shell, step.text))
    if state.cmd_is_inherited:  # it was meant for another entry point
        state.describe(cmd=())


async def _workdir(build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    directory = _absolute(state, _expanded(build, state, step.text))
    state.describe(workdir=directory)
    if await asyncio.to_thread(_has_directory, build, state, directory):
        return
    write = functools.partial(_write_layer, build, state, lambda tree: tree.directory(directory))
    await build.layer(state, ["WORKDIR", directory], functools.partial(asyncio.to_thread, write))


async def _copy(build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    escape = build.dockerfile.escape
    words = step.words if step.words is not None else [word for word in step.text.split() if not is_heredoc(word)]
    *names, destination = [expand(word, state.variables, escape) for word in words]
    if not names and not step.heredocs:
        raise build.error(step, f"{step.keyword} needs a source and a destination")
    if any(name.startswith(("http://", "https://", "git@", "ssh://")) for name in names):
        raise build.error(step, f"{step.keyword}: a URL; put the file beside the Dockerfile and name it there")
    texts = [
        (doc.name, (doc.content if doc.literal else expand_literal(doc.content, state.variables, escape)).encode())
        for doc in step.heredocs
    ]
    await _copy_layer(build, state, step, names, texts, _absolute(state, destination))


async def _copy_layer(
    build: Build,
    state: StageState,
    step: Instruction,
    names: list[str],
    texts: list[tuple[str, bytes]],
    destination: str,
) -> None:
    owner, mode = await asyncio.to_thread(_ownership, build, state, step)
    foreign = step.flag("from") is not None
    kept_owner = owner if owner is not None or foreign else (0, 0)
    placing = CopyOptions(destination, kept_owner, mode, unpack=step.keyword == "ADD")

    def identify() -> str:
        with _files(build, step) as (tree, ignore):
            return digest_sources(find_sources(tree, names, ignore), owners=foreign and owner is None)

    def write(target: Path) -> None:
        with _files(build, step) as (tree, ignore):
            found: list[Source] = find_sources(tree, names, ignore)
            _write_layer(build, state, lambda into: _place(found, texts, into, placing), target)

    content = await asyncio.to_thread(identify)
    what = [step.keyword, content, [[name, text.hex()] for name, text in texts], repr(placing)]
    await build.layer(state, what, functools.partial(asyncio.to_thread, write))


async def _run(build: Build, state: StageState, step: Instruction, _: dict[str, str]) -> None:
    if step.flag("network") not in (None, "default", "none"):
        raise build.error(step, "RUN --network: say none, or nothing: a build reaches the hosts it was given, no more")
    env = {**state.args, **state.env}
    what = ["RUN", step.words or step.shell_text, list(state.shell), state.described.user, state.described.workdir, env]
    what += ["no network"] if step.flag("network") == "none" else []
    await build.layer(state, what, functools.partial(_run_layer, build, state, step, env))


async def _run_layer(build: Build, state: StageState, step: Instruction, env: dict[str, str], target: Path) -> None:
    root = await asyncio.to_thread(_root, build, state, env)
    egress = EgressConfig() if step.flag("network") == "none" else build.config.egress
    box = await build.backend.create_build(state.trees, root, build.config.resources, egress)
    try:
        log = await _run_step(build, state, step, box)
        await box.copy_changes(target)
        if log is not None:  # the guest's own, of what the step printed, in /tmp; which the step may have led elsewhere
            place = target / log.lstrip("/")
            if place.parent.is_dir() and not place.parent.is_symlink():
                place.unlink(missing_ok=True)
    finally:
        await box.destroy()


async def _run_step(build: Build, state: StageState, step: Instruction, box: NamespaceSandbox) -> str | None:
    """Run the command; returns the place of a log the guest has written."""
    command = await _command(state, step, box)
    limit = build.config.step_timeout_s
    done = await box.exec(command, cwd=state.described.workdir, timeout_s=limit, max_output_bytes=_OUTPUT_BYTES)
    said = f"{build.dockerfile.origin}:{step.line}: RUN {step.text[:100]}"
    output = done.output[-_QUOTED_BYTES:].decode(errors="replace").strip()
    if done.timed_out:
        raise DeadlineExceeded(said, limit, f"it had said: {output[-500:]}")
    if done.exit_code != 0:
        raise BuildError(f"{said}: ended with {done.exit_code}{_reached(box)}. It said:\n{output}")
    return done.log_path


def _reached(box: NamespaceSandbox) -> str:
    """What may be behind a failure: that the step wanted something of the network."""
    if box.proxy is None:
        return " (it had no network: `--egress HOST` lets a build reach a host)"
    return f" (refused: {'; '.join(box.proxy.refused)})" if box.proxy.refused else ""


async def _command(state: StageState, step: Instruction, box: NamespaceSandbox) -> str:
    if step.words is not None:
        return f"exec {shlex.join(step.words)}"
    text = step.shell_text
    if len(step.heredocs) == 1 and len(step.text.split()) == 1:  # nothing but the here-document: it is the command
        text = step.heredocs[0].content
        if text.startswith("#!"):
            await box.write_file(_SCRIPT, text.encode())
            return f"chmod 755 {_SCRIPT} && exec {_SCRIPT}"
    return f"exec {shlex.join([*state.shell, text])}"


def _root(build: Build, state: StageState, env: dict[str, str]) -> Root:
    with build.seen(state.trees) as tree:
        check_points(tree, (), building=True)
        uid, gid = resolve_user(tree, state.described.user)
        env = {"PATH": DEFAULT_PATH, "HOME": home_of(tree, uid), **env}
    return Root(trees=(), mounts="", uid=uid, gid=gid, env=env, building=True)


def _ownership(build: Build, state: StageState, step: Instruction) -> tuple[tuple[int, int] | None, int | None]:
    owner, mode = None, None
    if (chown := step.flag("chown")) is not None:
        with build.seen(state.trees) as tree:
            user = _expanded(build, state, chown)
            uid, gid = resolve_user(tree, user)
            # as Docker has it: a group that is not named is the one of the same number as the user
            owner = (uid, gid) if ":" in user or not user.isdigit() else (uid, uid)
    if (chmod := step.flag("chmod")) is not None:
        text = _expanded(build, state, chmod)
        if not text or set(text) - set("01234567"):
            raise build.error(step, f"{step.keyword} --chmod={text}: write the mode in octal, such as 755")
        mode = int(text, 8)
    return owner, mode


@contextlib.contextmanager
def _files(build: Build, step: Instruction) -> Generator[tuple[Confined, Ignore]]:
    """The files a COPY takes from: the context's, another stage's, or an image's."""
    name = step.flag("from")
    if name is None:
        yield build.context, build.ignore
        return
    state = build.stages.get(name.lower())
    with build.seen(state.trees if state is not None else (build.store.get(name).path,)) as tree:
        yield tree, Ignore()


def _place(found: list[Source], texts: list[tuple[str, bytes]], tree: Confined, placing: CopyOptions) -> None:
    place_sources(found, tree, placing)
    place_texts(texts, tree, placing)


def _write_layer(build: Build, state: StageState, write: Callable[[Confined], object], target: Path) -> None:
    with build.seen(state.trees, upper=target) as tree:
        write(tree)


def _has_directory(build: Build, state: StageState, directory: str) -> bool:
    with build.seen(state.trees) as tree:
        place = tree.resolve(directory)
        if place.exists() and not place.is_dir():
            raise ConfigError(f"{directory} is a file")
        return place.is_dir()


def _absolute(state: StageState, path: str) -> str:
    """From the working directory; a trailing slash, which says `a directory`, stays."""
    whole = str(PurePosixPath(state.described.workdir or "/", path))
    return f"{whole}/" if path.endswith(("/", "/.")) or path == "." else whole


def _expanded(build: Build, state: StageState, text: str) -> str:
    return expand(text, state.variables, build.dockerfile.escape)


STEPS: dict[str, Step] = {
    "ARG": _arg, "ENV": _env, "LABEL": _label, "USER": _user, "EXPOSE": _expose, "SHELL": _shell, "CMD": _cmd,
    "ENTRYPOINT": _entrypoint, "WORKDIR": _workdir, "COPY": _copy, "ADD": _copy, "RUN": _run,
}  # fmt: skip
