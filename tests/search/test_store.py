"""The user's store: what is known is not taken in again; killed, damaged or too large it is right, or made anew."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from users_git import git

from etude.errors import ConfigError
from etude.search import Index, Store, workspace
from etude.search.workspace import build, default_path, open_store, search

KILLED = """
import os, signal, sys
from pathlib import Path
from etude.search import index
from etude.search.workspace import build, open_store
index._BATCH_FILES = 6
directory, path, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store = open_store(path=path)
def count(statement, seen=[0]):
    seen[0] += 1
    if seen[0] == last:
        os.kill(os.getpid(), signal.SIGKILL)
store._db.set_trace_callback(count)
build(directory, store)
"""


def wrote(root: Path, files: int = 30, name: str = "thing") -> Path:
    for number in range(files):
        path = root / f"pkg{number % 3}" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"def {name}{number}(x):\n    return shared(x, {number})\n\n\nclass Holder{number}:\n    pass\n"
        )
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return wrote(tmp_path / "w")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(path=tmp_path / "cache" / "index.sqlite")


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every file had been changed long ago."""
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))


def test_what_was_taken_in_otherwise_is_taken_in_anew(
    root: Path, store: Store, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an earlier Etude, or without the grammars that are there now; no file has changed."""
    build(root, store)
    assert build(root, store).read == 0
    for name in ("etude.search.index.cutter", "etude.search.content.cutter"):
        monkeypatch.setattr(name, lambda: "grammars-9.0")
    again = build(root, store)
    assert (again.read, again.taken) == (30, 30)
    assert build(root, store).read == 0


def test_the_store_of_an_earlier_version_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    earlier = default_path().with_name("index-1.sqlite")
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(b"of another form")
    open_store().close()
    assert default_path().exists() and not earlier.exists()


def answers(root: Path, store: Store, said: Callable[[str], None] = print) -> list[tuple[str, int, int]]:
    asked = ("thing7", "shared", "holder 12")
    return [(each.path, each.first, each.last) for words in asked for each in search(root, store, words, 50, said)]


def fresh(root: Path) -> list[tuple[str, int, int]]:
    return answers(root, Store(None))


def test_what_is_known_is_not_taken_in_again(root: Path, store: Store, tmp_path: Path, settled: None) -> None:
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    first = build(root, store)
    assert (first.files, first.read, first.taken) == (30, 30, 30)
    assert first.commit == git(root, "rev-parse", "HEAD").strip() == store.commit_of(str(root))
    again = build(root, open_store(path=store.path))
    assert (again.read, again.taken) == (0, 0)
    git(root, "worktree", "add", "-q", str(tmp_path / "tree"))
    other = build(tmp_path / "tree", store)
    assert (other.read, other.taken) == (30, 0)
    (root / "pkg0" / "m0.py").write_text("def another():\n    pass\n")
    assert build(root, store).taken == 1
    assert answers(root, store) == fresh(root) and answers(tmp_path / "tree", store) == fresh(tmp_path / "tree")
    (root / "pkg0" / "m3.py").unlink()
    assert build(root, store).files == 29 and not [path for path, _, _ in answers(root, store) if path == "pkg0/m3.py"]


def test_what_is_known_for_greps_alone_ranks_nothing(root: Path, store: Store) -> None:
    """A store on disk knows more files than one in memory; how rare the words of paths are must not tell."""
    code = [(path.relative_to(root).as_posix(), path.read_bytes()) for path in sorted(root.rglob("*.py"))]
    memory = Index(Store(None), "/workspace")
    memory.update(dict.fromkeys(dict(code), "1"), code)
    (root / "pkg.lock").write_text("thing7")
    (root / "pkg1" / "long.txt").write_text("# thing7 pkg\n" * 20_000)
    build(root, store)
    assert len(Index(store, str(root)).paths()) == 32
    assert Index(store, str(root)).search("thing7 pkg1", 20) == memory.search("thing7 pkg1", 20)


def test_files_without_grams_come_alone(root: Path, store: Store, settled: None) -> None:
    build(root, store)
    (root / "picture").write_bytes(bytes(9))
    (root / "empty").write_bytes(b"")
    assert build(root, store).taken == 2 and answers(root, store) == fresh(root)


def test_a_file_that_was_changed_just_now_is_read_once_more(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("inf"))
    build(root, store)
    again = build(root, store)
    assert (again.read, again.taken) == (30, 0), "its time may not tell a second change from the first"


def test_a_repository_that_lies_hides_nothing(root: Path, store: Store, settled: None) -> None:
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    build(root, store)
    git(root, "update-index", "--assume-unchanged", "pkg0/m0.py")
    path = root / "pkg0" / "m0.py"
    old = path.stat()
    path.write_text(path.read_text().replace("thing0", "quest0"))
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    [first, *_] = search(root, store, "quest0", 5)
    assert first.path == "pkg0/m0.py" and "def quest0" in first.text


def test_no_link_is_followed_and_nobody_else_reads_it(root: Path, store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("def treasure():\n    pass\n")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    (root / "away").symlink_to(tmp_path)
    assert build(root, store).files == 30 and search(root, store, "treasure", 5) == []
    assert store.path is not None and stat.S_IMODE(store.path.stat().st_mode) == 0o600
    (tmp_path / "linked.sqlite").symlink_to(tmp_path / "secret.py")
    with pytest.raises(ConfigError, match="it is a link"):
        open_store(path=tmp_path / "linked.sqlite")


@pytest.fixture
def statements(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many a build runs."""
    monkeypatch.setattr("etude.search.index._BATCH_FILES", 6)
    counted, seen = open_store(path=tmp_path / "counted.sqlite"), []
    counted._db.set_trace_callback(seen.append)
    build(root, counted)
    return len(seen)


def killed(root: Path, path: Path, last: int) -> None:
    argv = [sys.executable, "-c", KILLED, str(root), str(path), str(last)]
    done = subprocess.run(argv, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("seed", range(6))
def test_a_build_that_was_killed_is_right_afterwards(root: Path, tmp_path: Path, seed: int, statements: int) -> None:
    """At a statement by chance: all that a batch wrote is there, or nothing of it."""
    path = tmp_path / "cache" / "index.sqlite"
    killed(root, path, random.Random(seed).randrange(1, statements))
    (root / "pkg0" / "m0.py").write_text("def another():\n    pass\n")
    store = open_store(path=path)
    assert answers(root, store) == fresh(root)


def test_one_that_was_killed_is_not_begun_anew(root: Path, tmp_path: Path, settled: None, statements: int) -> None:
    path = tmp_path / "cache" / "index.sqlite"
    killed(root, path, statements * 3 // 4)
    assert 0 < build(root, open_store(path=path)).taken < 30


def test_a_damaged_store_is_made_anew_and_says_so(root: Path, store: Store, settled: None) -> None:
    """Whichever page is full of something else, and where it is cut short."""
    build(root, store)
    store.close()
    assert store.path is not None
    whole = store.path.read_bytes()
    pages, told = len(whole) // 4096, 0
    for page in range(pages + 1):
        damaged = whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :]
        store.path.write_bytes(damaged if page < pages else whole[: pages // 2 * 4096])
        said: list[str] = []
        opened = open_store(said.append, store.path)
        assert build(root, opened, said.append).files == 30 and answers(root, opened, said.append) == fresh(root)
        assert matching(root, opened) == {"pkg1/m7.py"}
        opened.close()
        assert len(said) <= 1 and all("damaged" in text and "made anew" in text for text in said)
        told += len(said)
    assert told > pages // 2, "the rest were not looked at"


def matching(root: Path, store: Store) -> set[str]:
    """Files that may hold a line `thing7`, and do."""
    index = Index(store, str(root))
    found = index.having("def thing7\\(", False)
    assert found is not None
    may = index.narrowing(workspace.listing(root).stamps).read(found, False)
    return {path for path in may if "def thing7(" in (root / path).read_text()}


@pytest.mark.parametrize(
    "done",
    [
        "PRAGMA user_version = 9", "DROP TABLE postings", "DROP TABLE counters", "DELETE FROM counters",
        "UPDATE counters SET next_content = 1", "ALTER TABLE contents RENAME COLUMN flags TO other",
    ],
)  # fmt: skip
def test_a_store_of_another_shape_is_made_anew(root: Path, store: Store, done: str, settled: None) -> None:
    build(root, store)
    store._db.execute(done)
    store.close()
    said: list[str] = []
    opened = open_store(said.append, store.path)
    assert build(root, opened).taken == 30 and answers(root, opened) == fresh(root)
    assert len(said) == 1 and "damaged" in said[0]


def test_a_table_that_goes_while_it_is_open_is_made_anew(root: Path, store: Store, settled: None) -> None:
    build(root, store)
    store._db.execute("DROP TABLE postings")
    said: list[str] = []
    assert answers(root, store, said.append) == fresh(root) and len(said) == 1


def test_no_tree_believes_a_wrong_content(root: Path, store: Store, settled: None) -> None:
    build(root, store)
    store._db.execute("UPDATE trees SET content = content % 30 + 1")
    store.close()
    said: list[str] = []
    opened = open_store(said.append, store.path)
    assert build(root, opened, said.append).taken == 30 and matching(root, opened) == {"pkg1/m7.py"} and len(said) == 1


OTHER = """
import sys
from pathlib import Path
from etude.search.workspace import open_store
store = open_store(path=Path(sys.argv[1]))
print(store.status().contents)
store.close()
"""


def test_a_second_store_of_a_process_leaves_the_first_its_locks(root: Path, store: Store) -> None:
    """POSIX drops all of a process where it closes any descriptor of the file; then another removes the log."""
    second = open_store(path=store.path)
    for count in (0, 30):
        done = subprocess.run(
            [sys.executable, "-c", OTHER, str(store.path)], capture_output=True, text=True, timeout=120
        )
        assert done.stdout == f"{count}\n", done.stderr
        assert Path(f"{store.path}-wal").exists(), "the log that we write was removed"
        build(root, store)
    assert second.status().contents == 30


def test_a_damaged_store_is_not_removed_under_others(root: Path, store: Store) -> None:
    build(root, store)
    other = open_store(path=store.path)
    other._db.execute("DROP TABLE postings")
    with pytest.raises(ConfigError, match="made anew when no other process has it open"):
        open_store(path=store.path)
    store.close(), other.close()
    assert answers(root, open_store(path=store.path)) == fresh(root)


def test_what_is_forgotten_in_the_middle_of_a_question_hides_nothing(
    root: Path, store: Store, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(root, store)
    monkeypatch.setattr("etude.search.database._PATIENCE_S", 0.1)
    other, sizes = open_store(path=store.path), store.sizes

    def forgotten_first(terms: list[bytes]) -> dict[bytes, int]:
        other.collect(0)
        return sizes(terms)

    monkeypatch.setattr(store, "sizes", forgotten_first)
    assert matching(root, store) == {"pkg1/m7.py"} and store.status().contents == 0


def test_it_makes_room(root: Path, store: Store, tmp_path: Path) -> None:
    other, gone = wrote(tmp_path / "other", 90, "place"), wrote(tmp_path / "gone", 40)
    (root / "pkg0" / "m0.py").write_text("\n".join(f"{named(n % 260)}{named(n // 7 % 260)} = {n}" for n in range(6000)))
    for place in (root, gone, other):
        build(place, store)
    for path in gone.rglob("*.py"):
        path.unlink()
    for path in sorted(gone.rglob("*"), reverse=True):
        path.rmdir()
    gone.rmdir()
    before = store.status()
    assert (before.workspaces, before.contents) == (3, 131)
    store.collect(before.bytes)
    assert (store.status().workspaces, store.status().contents) == (2, 120), "one is gone, with what no other has"
    build(root, store)
    store.collect(store.size() * 9 // 10, str(other))
    assert (store.status().workspaces, store.status().contents) == (1, 90), "the one that is worked in stays longest"
    assert answers(other, store) == fresh(other)
    store.collect(0)
    assert (store.status().contents, store.status().workspaces) == (0, 0)
    assert answers(root, store) == fresh(root), "what was forgotten is taken in again"


def test_what_another_process_forgets_is_not_missed(root: Path, store: Store) -> None:
    build(root, store)
    index = Index(store, str(root))
    assert index.search("thing7", 3)
    other = open_store(path=store.path)
    other.collect(0)
    there = workspace.listing(root).stamps
    assert index.search("thing7", 3) == [] and sorted(index.stale(there)) == sorted(there)
    assert answers(root, store) == fresh(root)


def test_two_build_at_once(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "index.sqlite"
    argv = [sys.executable, "-c", KILLED, str(root), str(path), "-1"]
    running = [subprocess.Popen(argv, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(each.communicate(timeout=120)[1], each.returncode) for each in running] == [(b"", 0)] * 3
    store = open_store(path=path)
    assert store.status().contents == 30 and answers(root, store) == fresh(root)


def test_many_small_segments_become_few(root: Path, store: Store) -> None:
    for number in range(40):
        (root / "pkg0" / "m0.py").write_text(f"def {named(number)}():\n    pass\n")
        build(root, store)
    [(segments,)] = store._db.execute("SELECT count(*) FROM segments")
    assert segments < 20 and answers(root, store) == fresh(root)
    assert search(root, store, named(39), 1)[0].path == "pkg0/m0.py" and search(root, store, named(38), 1) == []


def named(number: int) -> str:
    """A word for each."""
    return f"w{chr(97 + number // 10)}{chr(97 + number % 10)}q"


def test_where_nothing_can_be_kept_one_sentence_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"no index can be kept there.*XDG_CACHE_HOME"):
        open_store(path=tmp_path / "file" / "index.sqlite")
    with pytest.raises(ConfigError, match="no such directory"):
        build(tmp_path / "none", Store(None))
