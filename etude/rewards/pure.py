"""Finds the functions of installed Python that a task can be made of: small, plain, and whole without their package.

Owns `Source` (the standard library and the pinned packages whose licence lets their source be passed on),
`functions_in`, which gives each function with the slice it needs and what is known of its arguments, and
`looked_through`, which also says why the others are none. What a slice may import and name is a short list, so that it
neither touches the machine nor depends on its Python. Parses source, and never imports or runs it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude import syntax
from etude.rewards.callcard import licence_texts
from etude.tasks.kept_out import STDLIB
from etude.tasks.slices import NotSliceable, SourceModule, SourcePackage, slice_of

MOST_CHARS = 2400
LINES = range(4, 41)
MOST_PARAMETERS = 5
IMPORTS = frozenset(
    """
    __future__ abc array ast base64 binascii bisect calendar collections colorsys contextlib copy dataclasses
    datetime decimal enum fnmatch fractions functools hashlib heapq html itertools json keyword math numbers
    operator posixpath re shlex string struct textwrap types typing urllib warnings zlib
    """.split()  # noqa: SIM905
)
NEVER = frozenset(
    """
    open exec eval compile __import__ input print globals locals vars id hash breakpoint exit quit now today
    utcnow gmtime localtime environ getenv urlopen random object super __file__
    """.split()  # noqa: SIM905
)
LICENCES = re.compile(r"^(MIT|BSD|Apache|PSF|Python Software)", re.IGNORECASE)
OTHERS = re.compile(r"GPL|MPL|Mozilla", re.IGNORECASE)
LEFT_TO_TRAINING = frozenset({"transformers", "openai", "ray", "huggingface_hub", "moto", "boto3"})
"""Packages that are not asked: the definitions that the base model reads have to come from somewhere."""
_TEXTS = re.compile(
    r"^_?(s|st|text|string|str|name|path|url|uri|line|key|word|prefix|suffix|pattern|sep|host\w*|file\w*|header\w*|"
    r"content_type|charset|encoding|value|source|src|data|msg|message|label|tag|title|version|part|chars?|fmt|format|"
    r"spec|domain|token|raw|input|body|query|lang\w*)$"
)
_NUMBERS = re.compile(
    r"^_?(n|k|m|i|j|p|q|r|a|b|c|h|l|num\w*|count|size|width|height|length|base|bits|prec|level|depth|start|stop|end|"
    r"year|month|day|index|pos|offset|limit|max\w*|min\w*|total|col\w*|x|y|z|number)$"
)
_LISTS = re.compile(
    r"^_?(items|seq\w*|iter\w*|lst|xs|args|values|lines|words|parts|elements|data|arr\w*|names|keys|list\w*|perm\w*|"
    r"tuple\w*|ranges?|intervals?|groups?)$"
)
TEXTS, WHOLE = ("str", "word"), ("int", "size", "natural")
LISTS = ("list_int", "list_str", "list_word", "list_pair", "list_natural", "tuple_int", "list_list_int", "list_span")
MAPS = ("dict_int", "dict_str")
ANY = (*TEXTS, *WHOLE, *LISTS, *MAPS, "float", "bool", "none", "bytes", "texts", "span", "list_texts", "list_float")


@dataclass(frozen=True)
class Source:
    """A package as it is installed; for the standard library, one of its top-level modules."""

    package: str
    version: str
    licence: str
    home: str
    root: Path
    paths: tuple[str, ...]
    """Of its modules, relative to `root`."""


@dataclass(frozen=True)
class Found:
    """A function, its slice by workspace path, and what `tasks.inside.explore` is told of it."""

    source: Source
    path: str
    name: str
    files: dict[str, str]
    told: dict[str, Any]

    @property
    def module(self) -> str:
        return module_name(self.path)


@dataclass(frozen=True)
class Refused:
    """A function that no task is made of."""

    name: str
    """With its module."""
    why: str


def sources(constraints: Path) -> list[Source]:
    """The standard library's modules, and the packages that `constraints` pins and that are installed at that pin."""
    library = Path(sysconfig.get_path("stdlib"))
    found = []
    for name in sorted(sys.stdlib_module_names - {"this", "antigravity", "idlelib", "turtledemo", "lib2to3", "test"}):
        tree = library / name
        paths = [library / f"{name}.py"] if not tree.is_dir() else sorted(tree.rglob("*.py"))
        inside = untested(path.relative_to(library).as_posix() for path in paths if path.is_file())
        if inside:
            version = ".".join(map(str, sys.version_info[:3]))
            found.append(Source(STDLIB, version, "PSF-2.0", name, library, inside))
    for line in constraints.read_text().splitlines():
        name, _, version = line.strip().partition("==")
        found += _installed(name, version)
    return found


def _installed(name: str, version: str) -> Iterator[Source]:
    try:
        there = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    licence = licence_of(there)
    pure = "Root-Is-Purelib: true" in (there.read_text("WHEEL") or "")
    if there.version != version or not pure or name in LEFT_TO_TRAINING:
        return
    if not LICENCES.match(licence) or OTHERS.search(licence) or not licence_texts(name).strip():
        return
    paths = sorted(str(path) for path in there.files or () if path.suffix == ".py" and ".." not in path.parts)
    root = Path(str(there.locate_file("")))
    tops = {path.split("/")[0].removesuffix(".py") for path in paths}
    for top in sorted(tops):
        inside = [path for path in paths if path.split("/")[0].removesuffix(".py") == top]
        yield Source(name, version, licence, top, root, untested(inside))


def untested(paths: Iterable[str]) -> tuple[str, ...]:
    """Without what is tests, or other people's."""
    return tuple(path for path in paths if not re.search(r"(^|/)(_?vendor\w*|tests?|testing)/", path))


def licence_of(there: importlib.metadata.Distribution) -> str:
    said = [each for field in ("License-Expression", "License") for each in there.metadata.get_all(field) or ()]
    classes = [each for each in there.metadata.get_all("Classifier") or () if each.startswith("License")]
    named = "; ".join(sorted(each.split("::")[-1].strip() for each in classes))
    return said[0] if "License-Expression" in there.metadata else named or said[0][:40] if said else named


def functions_in(source: Source) -> Iterator[Found]:
    """Every function that passes, in the order of the files."""
    return (each for each in looked_through(source) if isinstance(each, Found))


def looked_through(source: Source) -> Iterator[Found | Refused]:
    """Every function at the top of a module."""
    package = SourcePackage(source.root, source.home)
    for path in source.paths:
        name = module_name(path)
        try:
            module = package.module(name)
            statements = module.statements if module is not None else []
        except (SyntaxError, UnicodeDecodeError, ValueError, OSError):
            continue
        for node in statements:
            if module is None or not isinstance(node, ast.FunctionDef):
                continue
            if not _simple(node):
                yield Refused(f"{name}.{node.name}", "not small and plain")
            else:
                found = _sliced(source, package, module, node)
                yield found or Refused(f"{name}.{node.name}", "needs too much, or touches the machine")


def module_name(path: str) -> str:
    """Of a file below what its package lies in."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _simple(node: ast.FunctionDef) -> bool:
    arguments = node.args
    given = [*arguments.posonlyargs, *arguments.args]
    size = (node.end_lineno or 0) - node.lineno + 1
    return (
        size in LINES
        and 1 <= len(given) <= MOST_PARAMETERS
        and given[0].arg not in ("self", "cls", "ctx")
        and all(default is not None for default in arguments.kw_defaults)
        and all(ast.unparse(each) in ("lru_cache", "cache", "functools.lru_cache", "functools.cache")
                or ast.unparse(each).startswith(("lru_cache(", "functools.lru_cache(")) for each in node.decorator_list)
        and not node.name.startswith(("test", "main", "__"))
    )  # fmt: skip


def _sliced(source: Source, package: SourcePackage, module: SourceModule, node: ast.FunctionDef) -> Found | None:
    text = module.source_of(node)
    if len(text) > MOST_CHARS or module.binders.get(node.name) is not node or not _harmless({"": text}, source.home):
        return None
    try:
        files = slice_of(package, [(module.name, node.name)], MOST_CHARS)
    except (NotSliceable, RecursionError, AssertionError, OSError, SyntaxError, UnicodeDecodeError):
        return None
    files = {path: text for path, text in files.items() if "/" in path or text.strip()}
    if sum(map(len, files.values())) > MOST_CHARS or not _harmless(files, source.home):
        return None
    path = module.path
    if source.package == STDLIB:  # a module of its own name would stand before the real one
        if sum(bool(text.strip()) for text in files.values()) != 1:
            return None
        files = {f"{STDLIB}/{where}": text for where, text in files.items()} | {f"{STDLIB}/__init__.py": ""}
        path = f"{STDLIB}/{path}"
    return Found(source, path, node.name, dict(sorted(files.items())), _told(node, files))


def _harmless(files: Mapping[str, str], home: str) -> bool:
    for text in files.values():
        try:
            tree = syntax.parse(text)
        except (SyntaxError, ValueError):
            return False
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    tops = {alias.name.split(".")[0] for alias in names}
                case ast.ImportFrom(module=name, level=0):
                    tops = {(name or "").split(".")[0]}
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    if name in NEVER:
                        return False
                    continue
                case _:
                    continue
            if not tops <= (IMPORTS | {home} if home not in sys.stdlib_module_names else IMPORTS - {home}):
                return False
    return True


def _told(node: ast.FunctionDef, files: Mapping[str, str]) -> dict[str, Any]:
    given = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(given) - len(node.args.defaults)) + list(node.args.defaults)
    constants = [each.value for text in files.values() for each in ast.walk(syntax.parse(text))
                 if isinstance(each, ast.Constant)]  # fmt: skip
    words = {word for word in constants if isinstance(word, str) and 0 < len(word) <= 16 and "\n" not in word}
    numbers = {number for number in constants if type(number) is int and abs(number) < 5000}
    return {
        "kinds": [_kinds(argument, default) for argument, default in zip(given, defaults, strict=True)],
        "least": max(1, len(given) - len(node.args.defaults)),
        "words": sorted(words)[:40],
        "numbers": sorted(numbers)[:40],
        "examples": list(_examples(node, [argument.arg for argument in given]))[:12],
    }


def _kinds(argument: ast.arg, default: ast.expr | None) -> list[str]:
    """Kinds of values to draw for a parameter: by its annotation, its default, its name, or else any."""
    said = ast.unparse(argument.annotation).lower() if argument.annotation else ""
    none = ["none"] if "none" in said or "optional" in said else []
    if said:
        inner = "str" if "str" in said else "int" if "int" in said else "float" if "float" in said else ""
        if re.search(r"dict|mapping", said):
            return ["dict_int" if "int" in said else "dict_str", *none]
        if re.search(r"list|sequence|iterable|collection", said):
            return [*([f"list_{inner}"] if inner else LISTS), *none]
        if "tuple" in said:
            return ["tuple_int", "pair", "span", "texts", *none]
        plain = {"str": TEXTS, "int": WHOLE, "float": ("float", "int"), "bool": ("bool",), "bytes": ("bytes",)}
        if found := [kind for word, kinds in plain.items() if re.search(rf"\b{word}\b", said) for kind in kinds]:
            return [*found, *none]
    if isinstance(default, ast.Constant) and default.value is not None:
        kind = type(default.value).__name__
        return {"str": [*TEXTS], "int": [*WHOLE], "bool": ["bool"], "float": ["float", "int"]}.get(kind, [*ANY])
    likely = [kind for names, kinds in ((_TEXTS, TEXTS), (_NUMBERS, WHOLE), (_LISTS, LISTS))
              if names.match(argument.arg.lower()) for kind in kinds]  # fmt: skip
    return [*likely * 6, *ANY] if likely else [*ANY]


def _examples(node: ast.FunctionDef, names: list[str]) -> Iterator[list[Any]]:
    """Positional arguments of the calls that the documentation shows, where they are literals."""
    for line in re.findall(r">>>\s*(.+)", ast.get_docstring(node) or ""):
        try:
            tree = syntax.parse(line.strip())
        except (SyntaxError, ValueError):
            continue
        for call in ast.walk(tree):
            match call:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_] as given, keywords=[]):
                    if name == node.name and len(given) <= len(names):
                        with suppress(ValueError, TypeError, SyntaxError):
                            yield [ast.literal_eval(argument) for argument in given]
