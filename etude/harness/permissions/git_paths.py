"""Which files a git command would write on its way, found before it begins.

Owns `written`. git changes a working tree file by file: where the sandbox's guard refuses one of them, it stops
halfway, with files of the user's put back, or another branch's written, and a next try in its own way. So the judge
asks here first. It is asked of the user's repository, through a git that obeys none of it
(`host.repository.PrivateGitDir`), and best effort: what an alias, a script, a fetch or an earlier command of the line
would change is not seen, and a command that is not understood writes nothing. The guard then refuses what is not found
here. Changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.errors import EtudeError
from etude.harness.permissions.shell import SimpleCommand
from etude.host import beneath
from etude.host.git import GitContext, listed_config, run_git_now
from etude.host.repository import PrivateGitDir, find

UNCOMMITTED = "it has changes that are not committed, and git would put it back"
DIFFERS = "git would write it"
INSTEAD = "Nothing has begun: go on without it, or ask the user to run it, or to commit or stash that file, first"
_DEADLINE_S = 3.0
_PATCH_BYTES = 8 << 20
_VALUED = {
    "merge": "m F s X", "rebase": "s X x onto exec strategy", "pull": "s X", "cherry-pick": "m X strategy",
    "revert": "m X strategy", "commit": "m F C c t", "stash": "m message", "am": "p C", "apply": "p C directory",
    "checkout": "b B orphan", "switch": "c C orphan", "reset": "",
}  # fmt: skip
"""The subcommands that are looked at, and those of their options whose value is a word of its own."""
_STEPS = {"--abort", "--continue", "--skip", "--quit", "--show-current-patch", "--edit-todo", "--help", "-h"}
"""With these a command goes on with what is underway, or writes nothing."""
_STASH = re.compile(r"(?:(?:refs/)?stash@\{)?([0-9]{1,6})\}?")
_STASHES = re.compile(r"pre[-_]commit|lint-staged|lefthook|overcommit|git stash")
"""What a hook runs that puts aside whatever is not staged, and brings it back when it has looked."""
_PATCHED = re.compile(rb"^(?:(?:---|\+\+\+) [^/\n]+/([^\t\n]+)|rename (?:from|to) ([^\n]+))", re.MULTILINE)
_NO_RENAMES = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=all")


@dataclass(frozen=True)
class _GitCommand:
    """One git command: what it is to do, its options, its other words, and what is behind `--`."""

    does: str
    options: frozenset[str]
    values: dict[str, str]
    words: tuple[str, ...]
    paths: tuple[str, ...] | None

    def has(self, *options: str) -> bool:
        return not self.options.isdisjoint(options)


def written(
    command: SimpleCommand, before: Sequence[SimpleCommand], on_host: Callable[[str], str]
) -> Iterator[tuple[Path, str]]:
    """The files, as they lie on this machine, and why git would write each. `before` are earlier commands of the line,
    and `on_host` says where on this machine a path is that the command names."""
    moved, asked = _read_command(command)
    if asked is None or asked.has(*_STEPS):
        return
    try:
        found = find(Path(on_host(moved)))
        if found is None or found.top is None:
            return
        repository = _Repository(PrivateGitDir(found), found.top)
        for why, names in _found(repository, asked, command, before, lambda name: on_host(os.path.join(moved, name))):
            yield from ((found.top / name, why) for name in names)
    except (EtudeError, OSError):  # the command will meet it, and say so better
        return


def ignored(path: Path) -> bool:
    """Whether git passes over a file when it lists what there is: the tools that search do so too."""
    with contextlib.suppress(EtudeError, OSError):
        if (found := find(path.parent)) is not None and found.top is not None:
            aside = PrivateGitDir(found)
            place = GitContext(aside.git_dir, found.top, aside.index)
            listed = ("ls-files", "-co", "--exclude-standard", "--", os.path.relpath(path, found.top))
            ran = run_git_now("--literal-pathspecs", *listed, at=place, deadline_s=_DEADLINE_S)
            return ran.code == 0 and not ran.output
    return False


def _read_command(command: SimpleCommand) -> tuple[str, _GitCommand | None]:
    """From which directory, and what; None for what is not looked at, or not certain."""
    words = [word.text for word in command.words]
    texts = [word for word in words if word is not None]
    if len(texts) < len(words) or not texts or os.path.basename(texts.pop(0)) != "git":
        return "", None
    moved = ""
    while texts and texts[0].startswith("-"):
        option = texts.pop(0)
        if option in ("-C", "-c"):
            value = texts.pop(0) if texts else ""
            moved = os.path.join(moved, value) if option == "-C" else moved
        elif option not in ("--no-pager", "-P", "-p", "--paginate"):
            return "", None
    if not texts or texts[0] not in _VALUED:
        return "", None
    return moved, _taken_apart(texts[0], texts[1:])


def _taken_apart(does: str, texts: list[str]) -> _GitCommand:
    valued = _VALUED[does].split()
    options: set[str] = set()
    values: dict[str, str] = {}
    others: list[str] = []
    paths = None
    while texts:
        word = texts.pop(0)
        if word == "--":
            paths, texts = tuple(texts), []
        elif word.startswith("--"):
            name, has_value, value = word.partition("=")
            options.add(name)
            if has_value or name[2:] in valued:
                values[name] = value if has_value else (texts.pop(0) if texts else "")
        elif word.startswith("-") and word != "-":
            for at, letter in enumerate(word[1:], start=2):
                options.add(f"-{letter}")
                if letter in valued:
                    values[f"-{letter}"] = word[at:] or (texts.pop(0) if texts else "")
                    break
        else:
            others.append(word)
    return _GitCommand(does, frozenset(options), values, tuple(others), paths)


class _Repository:
    """What git says of the user's repository: names of files, relative to its top."""

    def __init__(self, aside: PrivateGitDir, top: Path) -> None:
        self._aside, self.top = aside, top

    def _names(self, *words: str, index: bool = False) -> list[str]:
        """Nothing where git refuses: it will refuse the command itself."""
        place = (
            GitContext(self._aside.git_dir, self.top, self._aside.index) if index else GitContext(self._aside.git_dir)
        )
        ran = run_git_now(*words, at=place, deadline_s=_DEADLINE_S)
        return [os.fsdecode(name) for name in ran.output.split(b"\0") if name] if ran.code == 0 else []

    def commit(self, name: str, *more: str) -> str | None:
        """The first of these that is a commit."""
        for each in (name, *more):
            if not each.startswith("-") and (found := self._names("rev-parse", "-q", "--verify", f"{each}^{{commit}}")):
                return found[0].strip()
        return None

    def between(self, before: str, after: str, since_parting: bool = False) -> set[str]:
        return set(self._names("diff", *_NO_RENAMES, f"{before}{'...' if since_parting else '..'}{after}", "--"))

    def merged(self, head: str, other: str) -> set[str]:
        """What they have changed since the histories parted, and have not the same as we."""
        return self.between(head, other, since_parting=True) & self.between(head, other)

    def changed(self, staged: bool = True, paths: Sequence[str] = ()) -> set[str]:
        """Tracked, and not as committed; or, without `staged`, not as the index has it."""
        found = set(self._names("ls-files", "-m", "-z", "--", *paths, index=True))
        if staged:
            found.update(self._names("diff-index", "--cached", *_NO_RENAMES, "HEAD", "--", *paths, index=True))
        return found

    def untracked(self) -> set[str]:
        return set(self._names("ls-files", "-o", "-z", "--exclude-standard", index=True))

    def descends(self, head: str, other: str) -> bool:
        base = self._names("merge-base", head, other)
        return bool(base) and base[0].strip() == other

    def stash(self, name: str) -> str:
        """The commit of `stash@{2}`, or `2`, as the log of stashes has it; what is named otherwise, as it stands."""
        numbered = _STASH.fullmatch(name)
        if numbered is None or int(numbered[1]) == 0:
            return name if numbered is None else "refs/stash"
        lines = beneath.read(self._aside.found.common, "logs/refs/stash", _PATCH_BYTES).decode(errors="replace")
        new = [line.split()[1] for line in lines.splitlines()]
        return new[-1 - int(numbered[1])] if int(numbered[1]) < len(new) else name

    @property
    def follows(self) -> str:
        """What the branch is brought together with where a command names nothing; empty where there is no such."""
        said = {key: value for _, key, value in listed_config(self.top)}
        remote, ref = (said.get(f"branch.{self.branch}.{key}", "") for key in ("remote", "merge"))
        return ref if remote == "." else f"refs/remotes/{remote}/{ref.removeprefix('refs/heads/')}" if ref else ""

    @property
    def branch(self) -> str:
        return (self._names("symbolic-ref", "--short", "-q", "HEAD") or [""])[0].strip()


def _found(
    repository: _Repository,
    asked: _GitCommand,
    command: SimpleCommand,
    before: Sequence[SimpleCommand],
    on_host: Callable[[str], str],
) -> Iterator[tuple[str, set[str]]]:
    head = repository.commit(_head(before), "HEAD")
    if asked.does in ("apply", "am"):
        yield DIFFERS, _patched(asked, command, repository.top, on_host)
    if head is None:
        return
    match asked.does:
        case "commit" if not asked.has("--no-verify", "-n", "-a", "--all") and not _all_staged(before):
            if _hook_stashes(repository.top):
                yield UNCOMMITTED, repository.changed(staged=False)
        case "stash":
            yield from _stash(repository, asked)
        case "reset" if asked.has("--hard", "--merge", "--keep"):
            other = repository.commit(asked.words[0] if asked.words else "HEAD")
            yield DIFFERS, repository.between(head, other) if other else set()
            yield UNCOMMITTED, repository.changed() if asked.has("--hard") else set()
        case "checkout" | "switch" if asked.paths is None:
            named = asked.words[0] if asked.words else "HEAD"
            other = repository.commit(named, f"origin/{named}") if not asked.has("--orphan") else None
            yield DIFFERS, repository.between(head, other) if other else set()
            forced = asked.has("-f", "--force", "--discard-changes")
            yield UNCOMMITTED, repository.changed() if forced else set()
        case "cherry-pick" | "revert":
            for word in asked.words:
                first, ranged, last = word.partition("..")
                start = repository.commit(first if ranged else f"{word}^")
                end = repository.commit((last or "HEAD") if ranged else word)
                yield DIFFERS, repository.between(start, end) if start and end else set()
        case "merge" | "rebase" | "pull":
            yield from _brought_together(repository, asked, head)


def _brought_together(repository: _Repository, asked: _GitCommand, head: str) -> Iterator[tuple[str, set[str]]]:
    if asked.has("--autostash"):
        yield UNCOMMITTED, repository.changed()
    words = asked.words
    if not words and (follows := repository.follows):
        words = (follows,)
    elif asked.does == "pull":
        remote, *branches = words or ("origin",)
        words = tuple(branch if remote == "." else f"{remote}/{branch}" for branch in branches or [repository.branch])
    others = [found for word in words if (found := repository.commit(word))]
    if asked.does == "merge" or (asked.does == "pull" and not asked.has("--rebase", "-r")):
        ours = "ours" in (asked.values.get("-s"), asked.values.get("--strategy"))
        for other in others if not ours else ():
            yield DIFFERS, repository.merged(head, other)
    elif onto := repository.commit(asked.values.get("--onto", ""), *others[:1]):
        again = asked.has("-i", "--interactive", "--autosquash", "-f", "--force-rebase", "--no-ff", "--onto")
        if again or not repository.descends(head, onto):
            yield DIFFERS, repository.between(head, onto)


def _stash(repository: _Repository, asked: _GitCommand) -> Iterator[tuple[str, set[str]]]:
    does, *rest = asked.words or ("push",)
    if does in ("push", "save"):
        paths = (*(rest if does == "push" else ()), *(asked.paths or ()))
        yield UNCOMMITTED, repository.changed(paths=paths)
        if asked.has("-u", "--include-untracked", "-a", "--all"):
            yield "it is not committed, and git would take it away", repository.untracked()
    elif does in ("pop", "apply", "branch"):
        named = (rest[1:] if does == "branch" else rest) or ["0"]
        at = repository.stash(named[0])
        base, stashed = repository.commit(f"{at}^1"), repository.commit(at)
        yield DIFFERS, repository.between(base, stashed) if base and stashed else set()


def _head(before: Sequence[SimpleCommand]) -> str:
    """Where earlier commands of the line lead."""
    head = "HEAD"
    for _, asked in map(_read_command, before):
        if asked is not None and asked.does in ("checkout", "switch") and asked.paths is None and asked.words:
            head = asked.words[0]
    return head


def _all_staged(before: Sequence[SimpleCommand]) -> bool:
    """Whether earlier commands of the line leave nothing that is not staged, as far as can be told."""
    every = {"-A", "--all", "-u", "--update", ".", ":/"}
    return any(
        [word.text for word in one.words[:2]] == ["git", "add"] and any(word.text in every for word in one.words[2:])
        for one in before
    )


def _hook_stashes(top: Path) -> bool:
    """Whether a commit is preceded by a hook that stashes, as far as its text tells."""
    configured = [value for _, key, value in listed_config(top) if key == "core.hookspath"]
    found = find(top)
    places = [top / os.path.expanduser(configured[-1])] if configured else [found.common / "hooks"] if found else []
    for place in (*places, *(place.parent for place in places if place.name == "_")):
        try:
            text = beneath.read(place, "pre-commit", _PATCH_BYTES).decode(errors="replace")
        except OSError:
            continue
        if _STASHES.search("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))):
            return True
    return False


def _patched(asked: _GitCommand, command: SimpleCommand, top: Path, on_host: Callable[[str], str]) -> set[str]:
    """What a patch names, as far as it is there to be read: a file, or the line's own text."""
    only_looks = asked.has("--check", "--stat", "--numstat", "--summary")
    if asked.does == "apply" and not asked.has("--apply") and (only_looks or asked.options >= {"--cached"}):
        return set()
    texts = [command.input.text.encode()] if command.input is not None and command.input.text else []
    given = [redirect.target.text for redirect in command.redirects if not redirect.writes]
    for name in (*asked.words, *(asked.paths or ()), *given):
        if name is None:
            continue
        try:
            texts.append(beneath.read(top, os.path.relpath(os.path.realpath(on_host(name)), top), _PATCH_BYTES))
        except OSError:
            continue
    names = {os.fsdecode(one or two) for text in texts for one, two in _PATCHED.findall(text)}
    below = Path(os.path.realpath(on_host("."))) if asked.does == "apply" else top  # which passes over all else
    return {name for name in names if (top / name).is_relative_to(below)}
