"""Which functions of a directory of Python a training task may be made of: `rewards.pure`'s, less what is kept out.

Owns `functions_of`. A directory is an installed package, a repository, or anything with modules in it; tests, vendored
copies and hidden directories are passed over. What the evaluation's real code holds is refused by its place, by its
content and by its name (`tasks.kept_out`), wherever it was copied to. Parses source, and never imports or runs it.
"""

from __future__ import annotations

import random
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path, PurePath

from etude.errors import ConfigError
from etude.rewards.called import bugs_of, mark_of
from etude.rewards.pure import Found, Refused, Source, looked_through, module_name, untested
from etude.tasks.kept_out import STDLIB, KeptOut, Print, kept_out
from etude.tasks.mined.split import is_source

KEPT_PLACE = "in a package or module of the evaluation"
KEPT_CONTENT = "holds a function of the evaluation"
KEPT_NAME = "has the name of a function of the evaluation"
SHADOWS = "in a module named as one of the standard library"
COPY = "a copy of one before"
NOTHING = "nothing to break"
FIRST = 8
"""Functions of a module that come before those of others are through: one module must not be all there is."""
_NOT_OURS = re.compile(r"(^|/)(\.[^/]+|site-packages|node_modules|__pycache__)/")


@dataclass(frozen=True)
class Module:
    """A file, and the directory that it is imported from."""

    root: Path
    path: str
    """Relative to `root`."""

    @property
    def home(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def of_the_library(self) -> bool:
        return self.root == _library()

    def source(self) -> Source:
        package = STDLIB if self.of_the_library else self.home
        return Source(package, "", "", self.home, self.root, (self.path,))


def functions_of(directories: Sequence[Path], seed: int) -> Iterator[Found | Refused]:
    """Every function of their modules, once, module by module, a package's after another's, in the order of the seed;
    of those that will do, a few of each module come before all others. Raises ConfigError for a directory that holds no
    Python source."""
    modules = {module for directory in directories for module in _modules(directory)}
    ordered = sorted(modules, key=lambda module: (module.path, str(module.root)))
    random.Random(f"real calls {seed}").shuffle(ordered)
    return _each(_in_turns(ordered))


def _in_turns(modules: Sequence[Module]) -> list[Module]:
    """One of each package, then a second of each: a large package must not be nearly all there is. Who learns from
    tasks of one package takes its name for the beginning of every path."""
    before = Counter[str]()
    turns: list[tuple[int, Module]] = []
    for module in modules:
        package = module.source().package
        turns.append((before[package], module))
        before[package] += 1
    return [module for _, module in sorted(turns, key=itemgetter(0))]


def _each(modules: Sequence[Module]) -> Iterator[Found | Refused]:
    kept, taken, names = kept_out(), set[Print](), set[str]()
    later: list[Found] = []
    for module in modules:
        why_none, first = _against_module(module, kept), FIRST
        for each in looked_through(module.source()):
            name = f"{each.module}.{each.name}" if isinstance(each, Found) else each.name
            if why_none:
                yield Refused(name, why_none)
            elif isinstance(each, Refused):
                yield each
            elif why := _against(each, kept) or ("" if bugs_of(each) else NOTHING):
                yield Refused(name, why)
            elif mark_of(each) in taken or name in names:
                yield Refused(name, COPY)
            else:
                taken.add(mark_of(each))
                names.add(name)
                first -= 1
                if first >= 0:
                    yield each
                else:
                    later.append(each)
    yield from later


def _against_module(module: Module, kept: KeptOut) -> str:
    if kept.place(PurePath(module.path), module.of_the_library):
        return KEPT_PLACE
    return SHADOWS if not module.of_the_library and module.home in sys.stdlib_module_names else ""


def _against(found: Found, kept: KeptOut) -> str:
    if any(map(kept.content, found.files.values())):
        return KEPT_CONTENT
    return KEPT_NAME if found.name in kept.names else ""


def _modules(directory: Path) -> Iterator[Module]:
    top = directory.resolve()
    if not top.is_dir():
        raise ConfigError(f"{directory}: no directory; name one with Python source, such as an installed package")
    paths = sorted(path.relative_to(top).as_posix() for path in top.rglob("*.py") if path.is_file())
    ours = [path for path in untested(paths) if is_source(path) and not _NOT_OURS.search(path)]
    if not ours:
        raise ConfigError(f"{directory}: no Python source in it, tests and hidden directories aside")
    for path in ours:
        root = (top / path).parent
        while (root / "__init__.py").is_file():
            root = root.parent
        within = (top / path).relative_to(root).as_posix()
        if all(part.isidentifier() for part in module_name(within).split(".")):
            yield Module(root, within)


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib")).resolve()
