"""Files in pieces that begin and end with a definition, as a parser sees it.

Owns which languages are parsed, what a definition is in each, and `definitions_of`. The grammars are tree-sitter's, in
the package `semble-grammars` (the extra `search`): compiled, offline, and made for the tree-sitter that Etude needs
anyhow. Without it, or in another language, nothing is found here and `pieces` cuts by lines. Never fails on a file
that is broken: tree-sitter parses around what it does not understand. But what it leaves open costs it time and memory
by its square, some grammars a gigabyte for 16 kB. So a file in which much is opened is parsed by a process of its own,
within bounds: that is this file, run as a program, which is why it imports nothing of Etude.
"""

from __future__ import annotations

import json
import posixpath
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_TYPESCRIPT = (
    "function_declaration generator_function_declaration class_declaration abstract_class_declaration "
    "method_definition interface_declaration enum_declaration type_alias_declaration internal_module "
    "variable_declarator"
)
_CPP = "function_definition class_specifier struct_specifier enum_specifier union_specifier namespace_definition"
_DEFINE = {
    "python": "function_definition class_definition",
    "javascript": "function_declaration generator_function_declaration class_declaration method_definition "
    "variable_declarator",
    "typescript": _TYPESCRIPT,
    "tsx": _TYPESCRIPT,
    "java": "class_declaration interface_declaration enum_declaration record_declaration method_declaration "
    "constructor_declaration annotation_type_declaration",
    "go": "function_declaration method_declaration type_spec",
    "rust": "function_item struct_item enum_item trait_item impl_item mod_item macro_definition union_item",
    "c": "function_definition struct_specifier enum_specifier union_specifier",
    "cpp": _CPP,
    "csharp": "class_declaration interface_declaration struct_declaration enum_declaration record_declaration "
    "method_declaration constructor_declaration property_declaration namespace_declaration",
    "ruby": "method singleton_method class module",
    "php": "function_definition method_declaration class_declaration interface_declaration trait_declaration "
    "enum_declaration",
    "kotlin": "function_declaration class_declaration object_declaration",
    "swift": "function_declaration class_declaration protocol_declaration init_declaration",
    "scala": "function_definition class_definition object_definition trait_definition enum_definition",
    "lua": "function_declaration",
    "bash": "function_definition",
    "zig": "function_declaration variable_declaration",
    "solidity": "contract_declaration interface_declaration library_declaration function_definition "
    "modifier_definition struct_declaration event_definition",
}
_HOLD = ("class", "abstract_class", "struct", "impl", "trait", "interface", "module", "internal_module", "mod_item",
         "namespace", "object", "contract", "protocol", "library", "record", "enum")  # fmt: skip
"""What a kind of definition begins with whose definitions are cut out of it: the methods of a class, say."""
_CALLED = {
    "python": "py pyi", "javascript": "js jsx mjs cjs", "typescript": "ts mts cts", "tsx": "tsx", "java": "java",
    "go": "go", "rust": "rs", "c": "c h", "cpp": "cc cpp cxx hpp hh hxx cu", "csharp": "cs", "ruby": "rb",
    "php": "php", "kotlin": "kt kts", "swift": "swift", "scala": "scala sc", "lua": "lua", "bash": "sh bash",
    "zig": "zig", "solidity": "sol",
}  # fmt: skip
LANGUAGE_OF = {ending: language for language, endings in _CALLED.items() for ending in endings.split()}
_ASSIGNED = ("function", "arrow_function", "function_expression", "class", "generator_function")
_DEPTH = 40
_OPENS = re.compile(rb"[<\[({]|\bfunction\b")
_MOST_OPENED = 1500
"""So much that a file opens, whether it is closed or not, takes 30 MB at worst, and most files open less."""
_MOST_BYTES, _MOST_CPU_S, _MOST_S = 1 << 30, 5, 60.0
"""Of the process for all others. The clock is only for one that does not get to run."""


@dataclass(frozen=True)
class Definition:
    """Lines `first` to `end` from 0, `end` not among them; what it defines, and the names of what it stands in."""

    first: int
    end: int
    name: str
    within: tuple[str, ...]


def language_of(path: str) -> str:
    """By a file's name; "" where no grammar of ours reads it."""
    found = LANGUAGE_OF.get(posixpath.basename(path).rpartition(".")[2].lower(), "")
    return found if found and cutter() and _parser(found) is not None else ""


@lru_cache(1)
def cutter() -> str:
    """The grammars that are installed, as the version of an index names them; "" where there are none."""
    try:
        return f"grammars-{version('semble-grammars')}"
    except PackageNotFoundError:
        return ""


def definitions_of(language: str, data: bytes) -> list[Definition] | None:
    """All that are worth a piece of their own, in the order of their first lines; those in a function are not. None for
    a file that cannot be parsed within bounds."""
    few = all(number < _MOST_OPENED for number, _ in enumerate(_OPENS.finditer(data)))
    return _defined(language, data) if few else _apart(language, data)


def _defined(language: str, data: bytes) -> list[Definition]:
    root = _parser(language).parse(data).root_node
    kinds = frozenset(_DEFINE[language].split())
    return sorted(_found(root, kinds, (), 0), key=lambda each: (each.first, -each.end))


def _apart(language: str, data: bytes) -> list[Definition] | None:
    """The same by another process, which may die of it."""
    argv = [sys.executable, "-P", __file__, language]
    try:
        done = subprocess.run(argv, input=data, capture_output=True, timeout=_MOST_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    return [Definition(first, end, name, tuple(within)) for first, end, name, within in json.loads(done.stdout)]


def _main(language: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.write(json.dumps([astuple(each) for each in _defined(language, sys.stdin.buffer.read())]))


@lru_cache(None)
def _parser(language: str) -> Any:
    """None where this machine can load no such grammar: a platform that has none, a cache that cannot be written."""
    import semble_grammars

    try:
        return semble_grammars.get_parser(language)
    except (semble_grammars.GrammarLoadError, semble_grammars.UnsupportedPlatformError):
        return None


def _found(node: Any, kinds: frozenset[str], within: tuple[str, ...], depth: int) -> Iterator[Definition]:
    if depth > _DEPTH:
        return
    for child in node.named_children:
        if child.type not in kinds or not _counts(child):
            if not child.type.endswith(("expression", "literal", "string")):
                yield from _found(child, kinds, within, depth + 1)
            continue
        name = _name(child)
        yield Definition(_first_line(child), child.end_point[0] + 1, name, within)
        if child.type.startswith(_HOLD):
            yield from _found(child, kinds, (*within, name), depth + 1)


def _counts(node: Any) -> bool:
    """A variable counts where a function or a class is its value, a C struct where it is spelt out."""
    if node.type in ("variable_declarator", "variable_declaration"):
        value = node.child_by_field_name("value") or (node.named_children or [node])[-1]
        return value.type.startswith((*_ASSIGNED, "struct", "enum", "union"))
    return not node.type.endswith("_specifier") or node.child_by_field_name("body") is not None


def _first_line(node: Any) -> int:
    """With what belongs to it: its decorators, and `const x =` or `export` before it."""
    first, line = node, node.start_point[0]
    while first.parent is not None and first.parent.type in _AROUND:
        first = first.parent
        line = first.start_point[0]
    return line


_AROUND = ("decorated_definition", "lexical_declaration", "variable_declaration", "export_statement",
           "template_declaration", "type_declaration", "type_definition")  # fmt: skip


def _name(node: Any) -> str:
    """What is defined: the field `name`, or as C and Rust have it, somewhere below a declarator or a type."""
    for _ in range(_DEPTH):
        below = next(filter(None, map(node.child_by_field_name, ("name", "declarator", "type"))), None)
        below = below or next((each for each in node.named_children if each.type.endswith("identifier")), None)
        if below is None:
            break
        node = below
        if node.type.startswith("dot_") or (node.type.endswith("identifier") and not node.named_children):
            break
    return (
        node.text.decode("utf-8", "replace")
        if node.type.endswith(("identifier", "word", "constant", "name", "_expression"))
        else ""
    )


if __name__ == "__main__":
    _main(sys.argv[1])
