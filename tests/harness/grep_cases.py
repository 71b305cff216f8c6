"""Greps by chance, and trees that do not stay as they were indexed.

Owns `grep_of`, the arguments of one call, and `Tree`: a directory with files of all kinds, and `Tree.change`, one thing
that may happen to it between two greps. Everything comes from the `random.Random` that is given.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path

from users_git import git

from etude.search.content import MOST_BY_LINES

WORDS = ["return", "None", "parse_header", "ConfigError", "self.items", "x", "if", "größe", "Straße", "KELVIN", "ſet",
         "[0]", "\u212aelvin", "a.b", "header", "error", "日本語", "naïve", "foo(bar)", "-e", "tab\there"]  # fmt: skip
RARE = [f"unique{number}word" for number in range(40)]
CLASSES = [r"\w+", "[a-z]+", "[[:alpha:]]*", r"\d{1,3}", "[^ ]", r"\s", ".", ".*", ".+?", r"[\w.]+", "[0-9]", r"\S{3,}",
           "[]x]", "[^]]", "[a-c[:digit:]]", r"\W"]  # fmt: skip
AROUND = ["^{}", "{}$", r"\b{}\b", r"\b{}", r"\B{}", "({})", "(?:{})?", "({}|None)", "({})+", r"\<{}\>", "{}{2}",
          "^{}$", "{}*", "(?i){}", "(?i:{})", "{}|", "(?={})", r"\Q{}\E", "(?<!x){}", "(?x) {}", "{}??",
          "{}++"]  # fmt: skip
EMPTY = ["", "x*", "^", "$", "^$", "(a|)", "()", "(?:)", r"\b", "a{0}", "(abc)?", r"\B", "|"]
BACK = [r"(\w)\1", r"(return)\s\1", r"(.)\1{2}", r"\b(\w+) \1\b", r"(a|b)c\1", r"(?P<n>el)\w*(?P=n)"]
BYTES = [r"\xff", r"gr\xc3", r"\x{df}", "ß", r"(?-u)\xdf", "\ufffd", r"\u00df", "é|ü", "größe|Straße", "\udcff"]
WRONG = ["a(b", "[", "*a", "a{,3}x", "{", "a{2", ")", r"abc\\", "(?z)", r"\p{Lu}return", "a**", "[z-a]", "+return"]
GLOBS = ["*.py", "*.txt", "**/*.md", "d1/*", "d[12]/*.py", "**/d3/**", "*.{py,md}", "f?.py", "[!f]*", "f1*", "none*",
         "/workspace/d2/*.py", "*"]  # fmt: skip
PATHS = ["d0", "d1/", "d2/deep", "/workspace/d3", "./d4", "d1/f1.py", "none", "link", "ignored", "/etc/git", "d2/../d1"]
_FILLED = (b"~" * 99 + b"\n") * (MOST_BY_LINES // 100 + 1)
"""In lines: some expressions take the cube of a line's length."""
_KINDS = ("rare", "common", "joined", "short", "classes", "empty", "back", "bytes", "wrong", "absent")


def grep_of(chance: random.Random) -> dict[str, str]:
    """What a model might ask for, and what nobody would."""
    values = {"pattern": pattern_of(chance)}
    if chance.random() < 0.3:
        values["ignore_case"] = "true"
    if chance.random() < 0.2:
        values["context"] = str(chance.randrange(4))
    if chance.random() < 0.3:
        values["glob"] = chance.choice(GLOBS)
    if chance.random() < 0.2:
        values["path"] = chance.choice(PATHS)
    return values


def pattern_of(chance: random.Random) -> str:
    kind = chance.choices(_KINDS, (20, 20, 12, 6, 16, 4, 5, 6, 4, 7))[0]
    if kind == "joined":
        found = "|".join(_part(chance) for _ in range(chance.randrange(2, 5)))
    elif kind == "short":
        found = chance.choice(WORDS + RARE)[: chance.randrange(1, 3)]
    elif kind == "classes":
        found = "".join(chance.choice([_part, lambda by: by.choice(CLASSES)])(chance) for _ in range(4))
    elif kind == "absent":
        found = f"nowhere{chance.randrange(999)}"
    elif kind in ("rare", "common"):
        found = chance.choice(RARE) if kind == "rare" else _part(chance)
    else:
        found = chance.choice({"empty": EMPTY, "back": BACK, "bytes": BYTES, "wrong": WRONG}[kind])
    if chance.random() < 0.3:
        found = chance.choice(AROUND).replace("{}", found, 1)
    if chance.random() < 0.1:
        found += chance.choice([" ", ".*", "|", "  "]) + _part(chance)
    return found if found.strip() else "return"


def _part(chance: random.Random) -> str:
    """Of one word or several, mostly with what stands for itself escaped."""
    word = chance.choice([*WORDS, *RARE[:6], "return None", "x = 1"])
    start = chance.randrange(len(word))
    part = word[start : start + chance.randrange(1, 14)]
    if chance.random() < 0.8:
        part = "".join(f"\\{char}" if char in ".[]()*+?|^$" else char for char in part)
    return part.upper() if chance.random() < 0.1 else part


def content_of(chance: random.Random) -> bytes:
    """Text in several encodings, with and without what is none."""
    lines = []
    for _ in range(chance.randrange(1, 25)):
        line = " ".join(chance.choice([*WORDS, str(chance.randrange(999))]) for _ in range(chance.randrange(1, 7)))
        lines.append(chance.choice([str, str, str.upper, str.lower])(line))
    if chance.random() < 0.4:
        lines.insert(chance.randrange(len(lines)), f"{chance.choice(RARE)} = {chance.randrange(9)}")
    text = "\n".join(lines)
    kind = chance.randrange(14)
    if kind == 0:
        return text.encode("latin-1", "replace")
    if kind == 1:
        return text.encode(chance.choice(["utf-16", "utf-16-be", "utf-32"]))
    if kind == 2:
        return text.encode() + b"\n\0\n" + text.encode()
    if kind == 3:
        return b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    if kind == 4:
        return text.encode() + b"\n\xff\xfe return \xdf\n" + text.encode()
    if kind == 5 and chance.random() < 0.3:
        return text.encode() + b"\n" + _FILLED + f"{chance.choice(RARE)} parse_header\n".encode()
    return text.encode() + b"\n" * chance.randrange(2)


class Tree:
    """A directory below which files come, go and change. With `repository` git says which there are."""

    def __init__(self, root: Path, chance: random.Random, repository: bool) -> None:
        self.root, self.chance, self.repository = root, chance, repository
        self.done: list[str] = []
        """What has happened, for who reads a failure."""
        for number in range(120):
            folder = chance.choice(["", "d0", "d1", "d2", "d2/deep", "d3", "d4", "ignored"])
            self.write(f"{folder}/f{number}.{chance.choice(['py', 'txt', 'md'])}".lstrip("/"))
        self.odd_name()
        (root / "link").symlink_to("d1")
        (root / "empty").mkdir()
        if repository:
            (root / ".gitignore").write_text("ignored\n*.tmp\n")
            git(root, "init", "-q")
            git(root, "add", "-A")
            git(root, "commit", "-qm", "one")

    def write(self, path: str, data: bytes | None = None) -> None:
        target = self.root / path
        with contextlib.suppress(OSError):  # a file stands where a directory should
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content_of(self.chance) if data is None else data)

    def files(self) -> list[Path]:
        return sorted(
            path for path in self.root.rglob("*") if ".git" not in path.parts and not path.is_dir() and _plain(path)
        )

    def change(self) -> None:
        """One thing, by chance; it may touch nothing."""
        ways = [self.rewrite, self.rewrite, self.same_stamp, self.add, self.add, self.remove, self.replace, self.binary,
                self.long, self.link, self.hard_link, self.odd_name, self.folder, self.fresh_folder, self.move_folder,
                self.temporary, self.mode]  # fmt: skip
        if self.repository:
            ways += [self.ignore, self.stage, self.commit, self.untrack, self.exclude, self.nested]
        way = self.chance.choice(ways)
        self.done.append(way.__name__)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            way()

    def one(self) -> Path:
        return self.chance.choice(self.files())

    def rewrite(self) -> None:
        self.one().write_bytes(content_of(self.chance))

    def same_stamp(self) -> None:
        """Of the same length, and as old as before."""
        path = self.one()
        old = path.stat()
        path.write_bytes(path.read_bytes().replace(b"return", b"ConfEr").replace(b"unique1", b"unique2"))
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))

    def add(self) -> None:
        self.write(f"{self.chance.choice(['d0', 'd1', 'd2/deep', 'empty', 'ignored', '.'])}/n{len(self.done)}.py")

    def remove(self) -> None:
        self.one().unlink()

    def replace(self) -> None:
        """As editors save."""
        path = self.one()
        fresh = path.with_name(f"{path.name}.swap")
        fresh.write_bytes(content_of(self.chance))
        fresh.rename(path)

    def binary(self) -> None:
        self.one().write_bytes(b"return\0None parse_header\n")

    def long(self) -> None:
        path = self.one()
        path.write_bytes(path.read_bytes()[:5000] + b"\n" + _FILLED + b"ConfigError unique3word\n")

    def link(self) -> None:
        path = self.one()
        target = self.one()
        path.unlink()
        path.symlink_to(os.path.relpath(target, path.parent))

    def hard_link(self) -> None:
        """A second name, by which it is changed."""
        path, other = self.one(), self.root / f"h{len(self.done)}.py"
        os.link(path, other)
        with other.open("ab") as file:
            file.write(b"\nunique7word by another name\n")

    def odd_name(self) -> None:
        names = [b"a b.py", b"-n", b"new\nline.py", b"quo'te\".txt", b"\xff\xfe.md", "größe.txt".encode(), b"$(x).py",
                 b"back\\slash.py", b"tab\t.md", b"*.py"]  # fmt: skip
        name = os.fsencode(self.root) + b"/" + self.chance.choice(names)
        Path(os.fsdecode(name)).write_bytes(content_of(self.chance))

    def folder(self) -> None:
        """A directory in place of a file."""
        path = self.one()
        path.unlink()
        path.mkdir()
        (path / "inner.py").write_bytes(content_of(self.chance))

    def fresh_folder(self) -> None:
        self.write(f"e{len(self.done)}/deep/f.py")

    def move_folder(self) -> None:
        folders = sorted(path for path in self.root.iterdir() if path.is_dir() and path.name[0] in "de")
        self.chance.choice(folders).rename(self.root / f"d{self.chance.randrange(9)}m")

    def temporary(self) -> None:
        self.write(f"d0/t{len(self.done)}.tmp")

    def mode(self) -> None:
        self.one().chmod(self.chance.choice([0o000, 0o644, 0o444]))

    def ignore(self) -> None:
        lines = ["ignored", "*.tmp", "*.md", "d1/", "!d1/f1.py", "n*", "/d2/deep"]
        place = self.chance.choice(["", "", "d0/", "d2/"])
        (self.root / f"{place}.gitignore").write_text("\n".join(self.chance.sample(lines, 2)) + "\n")

    def exclude(self) -> None:
        (self.root / ".git" / "info").mkdir(exist_ok=True)
        (self.root / ".git" / "info" / "exclude").write_text(self.chance.choice(["*.txt\n", "d3\n", ""]))

    def stage(self) -> None:
        git(self.root, "add", "-f", "--", os.path.relpath(self.one(), self.root))

    def commit(self) -> None:
        git(self.root, "add", "-A")
        git(self.root, "commit", "-qm", "more")

    def untrack(self) -> None:
        git(self.root, "rm", "-q", "--cached", "--", os.path.relpath(self.one(), self.root))

    def nested(self) -> None:
        """A repository in the repository."""
        place = self.root / f"r{len(self.done)}"
        place.mkdir()
        self.write(f"{place.name}/inner.py")
        git(place, "init", "-q")


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def without_ripgrep(at: Path) -> str:
    """A PATH on which there is everything that a grep runs, but no ripgrep."""
    at.mkdir()
    names = "bash sh cat date find git grep head printf sed sort stat xargs touch rm mv env true"
    for name in names.split():
        if found := shutil.which(name):
            (at / name).symlink_to(os.path.realpath(found))
    return str(at)
