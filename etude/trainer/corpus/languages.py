"""Which language a file is in, by the end of its name: code as `search.syntax` has it, and the texts beside code.

Data (JSON, CSV, lock files, notebooks) is in no language here: it teaches little and weighs much.
"""

from __future__ import annotations

import posixpath

from etude.search.syntax import LANGUAGE_OF

_OTHERS = {
    "markdown": "md markdown", "rst": "rst", "toml": "toml", "yaml": "yaml yml", "html": "html htm", "css": "css scss",
    "sql": "sql", "haskell": "hs", "ocaml": "ml mli", "elixir": "ex exs", "erlang": "erl", "julia": "jl", "r": "r",
    "perl": "pl pm", "dart": "dart", "cmake": "cmake", "protobuf": "proto",
}  # fmt: skip
_NAMED = {"makefile": "make", "gnumakefile": "make", "dockerfile": "dockerfile", "cmakelists.txt": "cmake"}
_BY_ENDING = LANGUAGE_OF | {ending: language for language, endings in _OTHERS.items() for ending in endings.split()}
LANGUAGES = frozenset(_BY_ENDING.values()) | frozenset(_NAMED.values())
PROSE = frozenset(("markdown", "rst"))
"""Whose lines are as long as paragraphs."""


def language_of(path: str) -> str:
    """ "" where no name says."""
    name = posixpath.basename(path).lower()
    return _NAMED.get(name) or (_BY_ENDING.get(name.rpartition(".")[2], "") if "." in name else "")
