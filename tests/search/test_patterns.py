"""Files that a grep need not read: what is left answers as all of them do, to the byte."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from etude.search import Index, workspace
from etude.search.content import MOST_BY_LINES, MOST_BYTES
from etude.search.patterns import ANYTHING, All, Any, Literal, Need, required, selective
from etude.search.workspace import build, open_store

WORDS = [
    "return",
    "None",
    "parse_header",
    "ConfigError",
    "x",
    "if",
    "größe",
    "Straße",
    "self.items",
    "KELVIN",
    "ſet",
    "[0]",
]
GREPS = {
    "posix": ["grep", "-nHIsE", "--null", "--color=never"],
    "perl": ["grep", "-nHIsP", "--null", "--color=never"],
    "rust": ["rg", "--no-config", "-nH0", "--no-heading", "--no-messages", "--color=never", "-j1"],
}


def may_match(index: Index, pattern: str, ignore_case: bool, stamps: dict[str, str]) -> list[str] | None:
    """Of the files with these stamps those that are left to read; None where all are."""
    found = index.having(pattern, ignore_case)
    return None if found is None else index.narrowing(stamps).read(found, ignore_case)


def literal(text: str) -> Literal:
    return Literal(text.encode())


@pytest.mark.parametrize(
    ("pattern", "need"),
    [
        (r"def \w+_header\(", All((literal("def "), literal("_header(")))),
        ("Return None", All((literal("return none"),))),
        ("ab+c", All((literal("ab"), literal("bc")))),
        ("ab{3}c?de", All((literal("abbb"), literal("de")))),
        ("(foo|bar)baz", All((Any((All((literal("foo"),)), All((literal("bar"),)))), literal("baz")))),
        ("(abc)*def", All((literal("def"),))),
        ("[[:space:]]+abc|[^]x]", ANYTHING),
        (r"[a\]b|c]xyz", ANYTHING),
        ("(?i)abc", ANYTHING),
        ("(?=abc)", ANYTHING),
        (r"abc\1", ANYTHING),
        (r"\Qabc", ANYTHING),
        ("abc\ndef", ANYTHING),
        ("a(bc", ANYTHING),
        ("*abc", ANYTHING),
        ("a{2", ANYTHING),
        ("\udcff", ANYTHING),
    ],
)
def test_what_a_line_must_hold(pattern: str, need: Need) -> None:
    assert required(pattern) == need


def test_which_patterns_say_enough() -> None:
    assert selective("abc") and selective("ab|abc") is False and selective("abc|def") and not selective("a.c")
    assert selective("größe") and not selective("üß", ignore_case=True)


def content(chance: random.Random) -> bytes:
    lines = []
    for _ in range(chance.randrange(1, 30)):
        line = " ".join(chance.choice([*WORDS, str(chance.randrange(999))]) for _ in range(chance.randrange(1, 7)))
        lines.append(chance.choice([str, str.upper, str.lower])(line))
    text = "\n".join(lines)
    kind = chance.randrange(12)
    if kind == 0:
        return text.encode("latin-1", "replace")
    if kind == 1:
        return text.encode("utf-16")
    if kind == 2:
        return text.encode() + b"\0" + text.encode()
    if kind == 3:
        return b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    return text.encode() + b"\n" * chance.randrange(2)


def dirty_tree(root: Path, store_path: Path, chance: random.Random) -> Index:
    """Indexed, and then changed: some files by their content alone, their size and time being what they were."""
    for number in range(60):
        path = root / f"d{number % 5}" / f"f{number}.{chance.choice(['py', 'txt', 'md'])}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(chance))
    (root / "long.txt").write_bytes(content(chance) + b"\n" + b"y" * MOST_BY_LINES + b"\nparse_header ConfigError\n")
    store = open_store(path=store_path)
    build(root, store)
    paths = sorted(root.rglob("*.*"))
    for path in chance.sample(paths, 12):
        old = path.stat()
        path.write_bytes(path.read_bytes().replace(b"return", b"ConfEr")[: old.st_size])
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    chance.choice(paths).unlink()
    (root / "new.py").write_bytes(content(chance))
    (root / "link.py").symlink_to("new.py")
    return Index(store, str(root))


def pattern_of(chance: random.Random) -> str:
    """From words of the files, with what dialects have in common and what they do not."""
    parts = []
    for _ in range(chance.randrange(1, 4)):
        word = chance.choice(WORDS)
        start = chance.randrange(len(word))
        part = word[start : start + chance.randrange(1, 8)]
        if chance.random() < 0.8:
            part = part.replace("[", r"\[").replace("]", r"\]").replace(".", r"\.")
        parts.append(
            part + chance.choice([""] * 6 + ["+", "*", "?", "{2}", "{1,3}", ".*", r"\w+", "[a-z]", "[[:alpha:]]"])
        )
    joined = chance.choice(["", "", " ", "|", ".*"]).join(parts)
    around = chance.choice(
        ["{}"] * 6 + ["^{}", "{}$", r"\b{}", "({})", "(?:{})?", "({}|None)", "(?i){}", "({})+", r"{}\>", "{}("]
    )
    return around.replace("{}", joined, 1)


def said(argv: list[str], root: Path, paths: list[str]) -> tuple[list[bytes], int]:
    """The lines of all that match, and how it ended: 0 found, 1 not, 2 wrong."""
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    argv = [*argv, "--", *sorted(paths), os.devnull]
    done = subprocess.run(argv, cwd=root, env=env, capture_output=True, timeout=120)
    return sorted(done.stdout.split(b"\n")), done.returncode


@pytest.mark.parametrize("dialect", GREPS)
@pytest.mark.parametrize("seed", range(2))
def test_a_grep_of_what_may_match_is_a_grep_of_all(
    tmp_path: Path, dialect: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred patterns by chance, over a tree with files of all kinds that has changed since it was indexed."""
    if shutil.which(GREPS[dialect][0]) is None:
        pytest.skip(f"{GREPS[dialect][0]} is not installed")
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))
    chance = random.Random(f"{dialect} {seed}")
    root = tmp_path / "w"
    index = dirty_tree(root, tmp_path / "cache" / "index.sqlite", chance)
    there = workspace.listing(root).stamps
    everything = [str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()]
    narrowed = 0
    for _ in range(80):
        pattern, ignore_case = pattern_of(chance), chance.random() < 0.3
        argv = [*GREPS[dialect], *(["-i"] if ignore_case else []), "-e", pattern]
        may = may_match(index, pattern, ignore_case, there)
        if may is None:
            continue
        some = sorted([*may, *(set(everything) - there.keys())])
        narrowed += len(some) < len(everything)
        assert said(argv, root, some) == said(argv, root, everything), (pattern, ignore_case)
    assert narrowed > 15


@pytest.mark.parametrize("dialect", GREPS)
def test_what_grams_cannot_tell_is_read(tmp_path: Path, dialect: str) -> None:
    """Letters whose other form is no ASCII, files in UTF-16, with a NUL, too long, and changed since."""
    if shutil.which(GREPS[dialect][0]) is None:
        pytest.skip(f"{GREPS[dialect][0]} is not installed")
    root = tmp_path / "w"
    root.mkdir()
    index = Index(open_store(path=tmp_path / "index.sqlite"), str(root))
    texts = {
        "kelvin": "\u212aELVIN".encode(), "wide": "kelvin".encode("utf-16"), "nul": b"kelvin\n\0\n",
        "vast": b"kelvin\n" + b"y" * MOST_BYTES, "long": b"y" * MOST_BY_LINES + b"\nkelvin",
        "changed": b"something", "plain": b"kelvin", "other": b"celsius",
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).write_bytes(text)
    index.update(dict.fromkeys(texts, "1"), list(texts.items()))
    (root / "changed").write_bytes(b"kelvin")
    stamps = {name: "2" if name == "changed" else "1" for name in texts}
    may = may_match(index, "kelvin", True, stamps)
    assert may is not None and "other" not in may and {"vast", "long"} <= {*may}
    argv = [*GREPS[dialect], "-i", "-e", "kelvin"]
    assert said(argv, root, may) == said(argv, root, list(texts))
    assert "kelvin" not in (may_match(index, "kelvin", False, stamps) or ())
    absent = may_match(index, "nowhere", False, stamps)
    assert absent is not None and "vast" in absent and "long" not in absent
