"""Many tasks in one small file: a git bundle whose one commit holds their Harbor directories.

Owns `pack_tasks`, `unpack_tasks` and `packed_names`. Tasks of one repository hold nearly the same files again and
again, and git stores what is the same once: thirty tasks of a megabyte and a half are a bundle of less than half a
megabyte. It is git's own format: without Etude, `git clone FILE DIRECTORY` gives the directories too. Bytes are stored
and given back as they are, whatever attributes a workspace names, and nothing that is in a bundle is run. It may be a
stranger's: a name in it is that of a directory below `out`, or the bundle is refused.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from etude.durable import naming, write_whole
from etude.errors import ConfigError
from etude.host.git import GitContext
from etude.tasks.git import run_git
from etude.tasks.harbor import read_task
from etude.tasks.mined.history import History
from etude.tasks.names import is_name

_LOCAL = {"GIT_ALLOW_PROTOCOL": "file"}
"""A bundle is fetched from."""
_COMMIT = b"""commit refs/heads/main
committer Etude <etude@localhost> 946684800 +0000
data 6
Tasks
"""
TASK_MAX = 64 << 20
"""Most bytes of one task's directory."""


def pack_tasks(directories: Sequence[Path], bundle: Path) -> None:
    """Write the task directories, which keep their names, into a new file. Raises ConfigError with the path of a
    directory that is no task, or of a file that is there already.
    """
    if bundle.exists():
        raise ConfigError(f"{bundle}: exists already; remove it or name another file")
    if not directories:
        raise ConfigError("no task directories to pack; name at least one")
    for name, times in Counter(directory.resolve().name for directory in directories).items():
        if not is_name(name):
            raise ConfigError(f"{name!r:.80} is no name that a bundle can hold; rename the directory")
        if times > 1:
            raise ConfigError(f"{times} of the task directories are called {name}; a bundle holds one of a name")
    with tempfile.TemporaryDirectory(prefix="etude-pack-") as scratch:
        root = Path(scratch)
        _git(root, "init", "-q", "--bare", "--template=")
        _git(root, "fast-import", "--quiet", given=b"".join(_stream(directories)))
        _git(root, "repack", "-q", "-a", "-d", "-f", "--depth=50", "--window=250")
        _git(root, "bundle", "create", "-q", str(root / "bundle"), "HEAD", "main")
        bundle.parent.mkdir(parents=True, exist_ok=True)
        write_whole(bundle, (root / "bundle").read_bytes())


def unpack_tasks(bundle: Path, out: Path, only: Collection[str] | None = None) -> list[Path]:
    """Write the tasks of a bundle below `out`, all or those named, and return their directories, sorted; one that is
    there already must not be. Raises ConfigError for a file that is no bundle of tasks, or a name it does not have.
    """
    with _opened(bundle) as root:
        history, names = History(root), _names(root, bundle)
        if only is not None and (unknown := sorted(set(only) - set(names))):
            raise ConfigError(f"{bundle}: holds no task {unknown[0]}")
        return [_write(history, bundle, name, out / name) for name in names if only is None or name in only]


def packed_names(bundle: Path) -> list[str]:
    """The names of the tasks in a bundle, sorted. Raises ConfigError for a file that is none."""
    with _opened(bundle) as root:
        return _names(root, bundle)


@contextmanager
def _opened(bundle: Path) -> Generator[Path]:
    if not bundle.is_file():
        raise ConfigError(f"{bundle}: no such file; name a bundle that `etude tasks pack` wrote")
    with tempfile.TemporaryDirectory(prefix="etude-unpack-") as scratch:
        root = Path(scratch)
        _git(root, "init", "-q", "--bare", "--template=")
        _git(root, "fetch", "-q", str(bundle.resolve()), "HEAD:refs/heads/main")
        yield root


def _names(root: Path, bundle: Path) -> list[str]:
    told = _git(root, "ls-tree", "-z", "--name-only", "main").decode("utf-8", "surrogateescape")
    names = sorted(told.split("\0")[:-1])
    if odd := next((name for name in names if not is_name(name)), None):
        raise ConfigError(f"{bundle}: holds {odd!r:.80}, no plain name of a directory; none of it is written")
    return names


def _write(history: History, bundle: Path, name: str, directory: Path) -> Path:
    if directory.exists():
        raise ConfigError(f"{directory}: exists already; remove it or name another directory")
    tree = history.tree(f"main:{name}", TASK_MAX)
    if tree is None or "task.toml" not in tree.files or tree.left_out:
        raise ConfigError(f"{bundle}: {name} is no task of plain files of at most {TASK_MAX >> 20} MB")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with naming(directory), tempfile.TemporaryDirectory(prefix=".writing-", dir=directory.parent) as partial:
        root = Path(partial) / "task"
        for path, content in tree.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        for path in tree.executable:
            (root / path).chmod(0o755)
        root.rename(directory)
    return directory


def _stream(directories: Sequence[Path]) -> Iterator[bytes]:
    """What `git fast-import` reads: a commit of every file, as it is."""
    yield _COMMIT
    for directory in sorted(directories, key=lambda path: path.resolve().name):
        read_task(directory)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                content, mode = path.read_bytes(), "100755" if path.stat().st_mode & 0o100 else "100644"
                where = f"{directory.resolve().name}/{path.relative_to(directory).as_posix()}"
                yield f"M {mode} inline {_quoted(where)}\ndata {len(content)}\n".encode() + content + b"\n"


def _quoted(path: str) -> str:
    """As git writes a path that may hold anything."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _git(root: Path, *words: str, given: bytes = b"") -> bytes:
    return run_git(*words, at=GitContext(root), env=_LOCAL, given=given)
