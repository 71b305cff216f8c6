"""Installs what a repository's tests need, once for each set of requirements.

Owns `requirements_of` and `Environments`. An environment is a directory of packages, named by the hash of what
was asked for; sandboxes see all of them, read-only, at `PLACE`. Only wheels are installed, and without running anything
of theirs or of the repository: building a source package would run its code here. Where everything cannot be had, the
optional part is left away, and then the installer gives up and says why. A directory appears whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.config import parse_toml
from etude.durable import SICK
from etude.environments.build import default_cache_dir
from etude.errors import ConfigError, DeadlineExceeded
from etude.host.lock import share, try_hold
from etude.host.processes import start_process

PLACE = "/opt/etude/environments"
"""Where a sandbox finds the environments."""
RUNNERS = ("pytest>=8,<9", "pytest>=8")
"""In this order: the ninth refuses conftest files of the years before, whose hooks take arguments it has dropped."""
INSTALL_TIMEOUT_S = 600.0
_FILES = re.compile(r"(^|/)(requirements[\w.-]*|[\w-]*requirements)\.(txt|in)$|^requirements/[\w.-]+\.txt$")
_OPTIONAL = ("test", "tests", "testing", "dev")
_RECORD = "etude.json"
_INSTALL = "pip install --no-cache-dir --target "
_BY_NAME = re.compile(r"[A-Za-z0-9][^/\\@:]*")
_PIN = re.compile(r"[A-Za-z0-9][\w.-]*==[A-Za-z0-9][\w.!+-]*")


@dataclass(frozen=True)
class Requirements:
    """What a commit asks for: `needed` to be imported, `wanted` for its tests. Lines as pip takes them."""

    needed: tuple[str, ...]
    wanted: tuple[str, ...]

    @property
    def key(self) -> str:
        """Names the environment; the interpreter's version counts, as wheels are made for one."""
        text = json.dumps([self.needed, self.wanted, RUNNERS[0], sys.version_info[:2]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Environment:
    """`pins` are what was installed, `name==version`; `left_away` whether the optional part could not be had."""

    key: str
    pins: tuple[str, ...]
    left_away: bool

    @property
    def path(self) -> str:
        """The directory of packages, inside a sandbox."""
        return f"{PLACE}/{self.key}"

    @property
    def setup(self) -> str:
        """The command that makes the same environment in an image."""
        return f"{_INSTALL}{self.path} {' '.join(self.pins)}"

    def is_installed(self, root: Path) -> bool:
        """Whether it is among the environments below a directory."""
        return (root / self.key / _RECORD).exists()

    @classmethod
    def of_setup(cls, command: str) -> Environment | None:
        """The environment that a task's setup command makes; None for any other command."""
        place, *pins = command.removeprefix(_INSTALL).split(" ")
        key = place.removeprefix(f"{PLACE}/")
        if not command.startswith(_INSTALL) or not re.fullmatch(r"[0-9a-f]{16}", key):
            return None
        return cls(key, tuple(pins), False) if all(_PIN.fullmatch(pin) for pin in pins) else None


class Unavailable(Exception):
    """An environment that cannot be had; its text is what the installer said."""


def requirements_of(files: Mapping[str, bytes]) -> Requirements:
    """From pyproject.toml and requirements files: packages by name alone. An address or a path is left out, as pip
    would build what lies there, on this machine and by its own code, and so is any option. What a repository computes
    in setup.py is not known."""
    try:
        project = parse_toml(files.get("pyproject.toml", b"").decode("utf-8", "replace"))
    except tomllib.TOMLDecodeError:
        project = {}
    table = _table(project, "project")
    needed, wanted = _lines(table, "dependencies"), []
    for extras in (_table(table, "optional-dependencies"), _table(project, "dependency-groups")):
        for name in _OPTIONAL:
            wanted += _lines(extras, name)
    for path in sorted(files):
        if _FILES.search(path) and not path.startswith("docs"):
            lines = files[path].decode("utf-8", "replace").splitlines()
            (needed if path == "requirements.txt" else wanted).extend(line.split(" #")[0] for line in lines)
    return Requirements(*(tuple(sorted(set(filter(None, map(_by_name, lines))))) for lines in (needed, wanted)))


def _by_name(line: str) -> str:
    """A requirement without what pip takes for options; empty where it is not one by name."""
    plain = line.split(" --")[0].strip().rstrip("\\ ")
    return plain if _BY_NAME.fullmatch(plain) else ""


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def _lines(table: Mapping[str, Any], name: str) -> list[str]:
    found = table.get(name)
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []


def default_root() -> Path:
    """Where they are kept when nobody says otherwise: below XDG_CACHE_HOME, or ~/.cache."""
    return default_cache_dir() / "environments"


class Environments:
    """The environments below one directory of this machine. `tell` hears what is installed, which may take minutes."""

    def __init__(self, root: Path, tell: Callable[[str], None] = lambda said: None) -> None:
        self.root, self._tell = root, tell
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o755)
        for torn in root.glob(".installing-*"):  # by a process that was killed; one that installs now holds it
            with contextlib.suppress(OSError), _opened(torn) as handle:
                if try_hold(handle):
                    shutil.rmtree(torn, ignore_errors=True)
        self._one_each: dict[str, asyncio.Lock] = {}
        self._failed: dict[str, str] = {}

    async def get(self, requirements: Requirements) -> Environment:
        """The environment for these, installed now if it is not there. Raises Unavailable."""
        key = requirements.key
        async with self._one_each.setdefault(key, asyncio.Lock()):
            if key in self._failed:
                raise Unavailable(self._failed[key])
            said = self.root / key / _RECORD
            if not said.exists():
                try:
                    await self._make(requirements)
                except Unavailable as error:
                    self._failed[key] = str(error)
                    raise
            found = json.loads(said.read_text())
        return Environment(key, tuple(found["pins"]), found["left_away"])

    async def restore(self, environment: Environment) -> None:
        """Install just what it pins, if it is not there: for tasks that were made elsewhere. Raises Unavailable."""
        async with self._one_each.setdefault(environment.key, asyncio.Lock()):
            if not environment.is_installed(self.root):
                await self._install(environment.key, environment.pins, environment.left_away)

    async def _make(self, requirements: Requirements) -> None:
        whole = (*requirements.needed, *requirements.wanted)
        self._tell(f"installing what the tests need: {', '.join(whole) or RUNNERS[0]}")
        attempts = [(*lines, runner) for lines in dict.fromkeys([whole, requirements.needed]) for runner in RUNNERS]
        why = ""
        for lines in attempts:
            try:
                await self._install(requirements.key, lines, left_away=len(lines) <= len(whole))
                return
            except Unavailable as error:
                why = why or str(error)
        raise Unavailable(why)

    async def _install(self, key: str, lines: Sequence[str], left_away: bool) -> None:
        with (
            tempfile.TemporaryDirectory(prefix=".installing-", dir=self.root) as name,
            _opened(Path(name)) as handle,
        ):
            share(handle)
            packages = Path(name, "packages")
            whole = ("--only-binary", ":all:", "--no-compile", "--target", str(packages))
            await _pip(packages, "install", "-q", *whole, *lines)
            frozen = await _pip(packages, "list", "--format=json", "--path", str(packages))
            pins = sorted(f"{one['name']}=={one['version']}" for one in json.loads(frozen))
            said = {"pins": pins, "left_away": left_away, "asked": list(lines)}
            (packages / _RECORD).write_text(json.dumps(said, indent=1))
            _readable(packages)
            shutil.rmtree(self.root / key, ignore_errors=True)
            packages.rename(self.root / key)


@contextlib.contextmanager
def _opened(directory: Path) -> Generator[int]:
    """A directory's handle. OSError where it is gone."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


async def _pip(place: Path, action: str, *words: str) -> str:
    """What pip prints. Raises Unavailable where it cannot have them; OSError where this machine's disk, and not what
    was asked for, is why: that says nothing of a commit."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", action, *words]
    variables = {**os.environ, "PYTHONNOUSERSITE": "1"}
    try:
        process = await start_process(
            *command, env=variables, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, cwd=place.parent,
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"pip cannot be started: {error}") from None
    try:
        async with asyncio.timeout(INSTALL_TIMEOUT_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise DeadlineExceeded(f"pip {action}", INSTALL_TIMEOUT_S) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()  # what is left is read: asyncio never sees the end of one whose pipe is full
    if process.returncode:
        said = err.decode("utf-8", "replace").strip()[-300:]
        for number in SICK:
            if os.strerror(number) in said:
                raise OSError(number, os.strerror(number), str(place))
        raise Unavailable(said)
    return out.decode("utf-8", "replace")


def _readable(directory: Path) -> None:
    """The sandbox's user is nobody here."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
