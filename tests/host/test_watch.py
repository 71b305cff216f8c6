"""What has changed below a directory: told by the time the call that changed it returns, and never half."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.host import watch
from etude.host.watch import Watch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt", "built/d.txt"):
        path = tmp_path / "w" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("as it was\n")
    return tmp_path / "w"


@pytest.fixture
def watching(root: Path) -> Watch:
    watching = Watch(root)
    watching.cover({"built"})
    assert watching.changed() == set()
    return watching


def test_files_that_change_come_and_go_are_told_once(root: Path, watching: Watch) -> None:
    (root / "a.txt").write_text("other\n")
    with (root / "sub" / "b.txt").open("a") as file:
        file.write("more\n")
        file.flush()
        assert watching.changed() == {"a.txt", "sub/b.txt"}, "before it is closed"
    (root / "sub" / "new.txt").write_text("")
    os.replace(root / "sub" / "new.txt", root / "sub" / "deep" / "c.txt")
    (root / "a.txt").unlink()
    assert watching.changed() == {"sub/b.txt", "sub/new.txt", "sub/deep/c.txt", "a.txt"}
    assert watching.changed() == set()


def test_what_is_ignored_is_not_told(root: Path, watching: Watch) -> None:
    (root / "built" / "d.txt").write_text("other\n")
    assert watching.changed() == set()
    watching.add("built")
    (root / "built" / "d.txt").write_text("again\n")
    assert watching.changed() == {"built/d.txt"}


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "fresh").mkdir(),
        lambda root: (root / "sub").rename(root / "other"),
        lambda root: (root / ".gitignore").write_text("*.txt\n"),
        lambda root: (root / "sub" / ".gitignore").write_text("*.txt\n"),
        lambda root: (root / "sub" / "deep").chmod(0o700),
        lambda root: root.rename(root.parent / "moved"),
    ],
    ids=["made", "moved", "ignores", "ignores below", "mode", "itself"],
)
def test_where_more_than_files_changed_everything_may_have(change: Callable, root: Path, watching: Watch) -> None:
    (root / "a.txt").write_text("other\n")
    change(root)
    assert watching.changed() is None


def test_lost_events_are_everything(root: Path, watching: Watch) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(most):  # two events each, none like the one before
        os.utime(root / ("a.txt" if number % 2 else "sub/b.txt"))
        (root / "sub" / "deep" / "c.txt").chmod(0o600 + 0o40 * (number % 2))
    assert watching.changed() is None
    assert watching.changed() == set()


def test_directories_that_came_are_covered_again(root: Path, watching: Watch) -> None:
    (root / "fresh" / "in").mkdir(parents=True)
    assert watching.changed() is None
    watching.cover({"built"})
    (root / "fresh" / "in" / "e.txt").write_text("")
    assert watching.changed() == {"fresh/in/e.txt"}


def test_no_link_is_followed(root: Path, watching: Watch, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    assert watching.changed() == {"link"}
    watching.cover({"built"})
    (tmp_path / "outside" / "x").write_text("")
    assert watching.changed() == set()


def test_what_cannot_be_watched_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="cannot be watched"):
        Watch(Path("/proc/self"))
    monkeypatch.setattr(watch, "MOST_FOLDERS", 2)
    with pytest.raises(OSError, match="cannot be watched"):
        Watch(root).cover()


def test_who_makes_changes_without_end_is_not_waited_for(
    root: Path, watching: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MOST_EVENTS", 20)
    for number in range(40):
        (root / f"a{number}.txt").write_text("")
    assert watching.changed() is None
    watching.cover()
    assert watching.changed() == set(), "what was before is forgotten"


def test_what_is_watched_no_more_tells_nothing(root: Path, watching: Watch) -> None:
    (root / "sub").rename(root.parent / "out")
    assert watching.changed() is None
    watching.cover()
    (root.parent / "out" / "b.txt").write_text("other\n")
    (root.parent / "out" / "fresh").mkdir()
    assert watching.changed() == set()
