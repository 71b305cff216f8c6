"""Files in pieces: at definitions where a grammar reads the language, by lines elsewhere; and the words in them."""

from __future__ import annotations

import re
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.search import pieces as pieces_module
from etude.search.pieces import MAX_LINES, cut, pieces_of
from etude.search.syntax import LANGUAGE_OF, definitions_of, language_of
from etude.search.words import stem, words_of

SOURCES = {
    "a.py": ("import x\n\n\n@deco\nclass Abc(B):\n    y = 1\n\n    def fgh(self):\n        pass\n", {"Abc", "fgh"}),
    "a.js": ("export class Abc { mno() {} }\nconst fgh = (x) => { return x }\n", {"Abc", "mno", "fgh"}),
    "a.ts": ("export interface Abc { a: string }\nnamespace Nop { export function fgh() {} }\n", {"Abc", "Nop", "fgh"}),
    "a.tsx": ("export function Abc() { return <div/> }\n", {"Abc"}),
    "A.java": ("class Abc { int x;\n Abc() {}\n void mno() {} }\n", {"Abc", "mno"}),
    "a.go": ("package a\ntype Abc struct { x int }\nfunc (t *Abc) Mno() {}\n", {"Abc", "Mno"}),
    "a.rs": ("struct Abc;\nimpl Abc { fn mno(&self) {} }\n", {"Abc", "mno"}),
    "a.c": ("struct abc { int x; };\nstatic int *fgh(int a) { return 0; }\n", {"abc", "fgh"}),
    "a.cpp": ("namespace nop { class Abc { void mno() {} }; }\nvoid Abc::pqr() {}\n", {"nop", "Abc", "mno", "pqr"}),
    "a.cs": ("namespace Nop { class Abc { public int Pqr { get; set; } void Mno() {} } }\n", {"Abc", "Pqr", "Mno"}),
    "a.rb": ("module Nop\n class Abc\n  def fgh\n  end\n end\nend\n", {"Nop", "Abc", "fgh"}),
    "a.php": ("<?php\nfunction fgh() {}\nclass Abc { public function mno() {} }\n", {"fgh", "Abc", "mno"}),
    "a.kt": ("class Abc { fun mno() {} }\nfun fgh() {}\n", {"Abc", "mno", "fgh"}),
    "a.swift": ("struct Abc { func mno() {} }\nprotocol Pqr {}\n", {"Abc", "mno", "Pqr"}),
    "a.scala": ("object Abc { def fgh(x: Int) = x }\ntrait Pqr\n", {"Abc", "fgh", "Pqr"}),
    "a.lua": ("local function fgh() end\nfunction Mod.pqr() end\n", {"fgh", "Mod.pqr"}),
    "a.sh": ("fgh() {\n echo\n}\nfunction pqr { echo; }\n", {"fgh", "pqr"}),
    "a.zig": ("const Abc = struct { pub fn mno() void {} };\n", {"Abc"}),
    "a.sol": ("contract Abc { function fgh() public {} event Pqr(); }\n", {"Abc", "fgh", "Pqr"}),
}


def test_words() -> None:
    assert list(words_of("parseHTTPHeader2(snake_case)")) == [
        "parsehttpheader2", "pars", "http", "head", "2", "snake_case", "snak", "cas",
    ]  # fmt: skip
    assert list(words_of("R0912 x")) == ["r0912", "0912", "x"] and list(words_of("_ the")) == []
    assert stem("parsing") == stem("parse") == stem("parser") == stem("parsed")
    assert list(words_of("findeGröbnerbasis")) == ["findegröbnerbasis", "find", "gröbnerbasi"]
    assert list(words_of("ПростоеЧисло")) == ["простоечисло", "простое", "число"]
    assert set(words_of("素数かどうか")) >= set(words_of("素数")) == {"素数"} and list(words_of("猫")) == ["猫"]
    assert stem("entries") == stem("entry") and stem("class") == "clas" and stem("planning") == stem("plan")


@pytest.mark.parametrize("path", SOURCES)
def test_definitions_are_known_by_name_in_every_language(path: str) -> None:
    text, names = SOURCES[path]
    assert language_of(path), "the extra `search` is installed where tests run"
    assert names <= {name for each in cut(language_of(path), text) for name in each.names}


def test_every_language_has_a_source_here() -> None:
    assert {language_of(path) for path in SOURCES} == set(LANGUAGE_OF.values()) and len(set(LANGUAGE_OF.values())) >= 12


def test_a_method_is_a_piece_with_its_comment_and_knows_its_class() -> None:
    text = (
        "import os\n\n\nclass Abc:\n    x = 1\n\n    # Why.\n    @deco\n    def fgh(self):\n        pass\n\n    y = 2\n"
    )
    pieces = [(each.first, each.end, each.names, each.within) for each in cut("python", text)]
    assert pieces == [
        (0, 1, (), ()), (3, 5, ("Abc",), ()), (6, 10, ("fgh",), ("Abc",)), (11, 12, (), ()),
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["A.java", "a.json"])
def test_no_piece_is_nothing_but_closing_brackets(path: str) -> None:
    methods = "".join(f"  void m{n}() {{\n    if (a) {{\n      b();\n    }}\n\n  }}\n\n" for n in range(30))
    text = f"class A {{\n\n{methods}  // end\n\n{'  }' + chr(10)}{'}' + chr(10)}" + "\n" + "}\n" * 90
    lines = text.split("\n")
    pieces = cut(language_of(path), text)
    assert len(pieces) > 3 and all(re.search(r"\w", "".join(lines[each.first : each.end])) for each in pieces)


def test_without_a_grammar_lines_are_cut_and_names_still_found() -> None:
    text = "".join(f"func f{n}() {{\n  return {n}\n}}\n\n" for n in range(40))
    pieces = cut("", text)
    assert len(pieces) > 1 and {f"f{n}" for n in range(40)} == {name for each in pieces for name in each.names}


@given(st.lists(st.sampled_from(["", "def f():", "    x", "@deco", "class A:", "}", "    def g(self):"]), max_size=200))
def test_pieces_cover_a_file_without_gaps(lines: list[str]) -> None:
    pieces = pieces_of(lines)
    assert [line for first, end in pieces for line in range(first, end)] == list(range(len(lines)))
    assert all(0 < end - first <= MAX_LINES for first, end in pieces)
    said = {number for number, line in enumerate(lines) if re.search(r"\w", line)}
    for language in ("", "python"):
        covered = [line for each in cut(language, "\n".join(lines)) for line in range(each.first, each.end)]
        assert len(covered) == len(set(covered)) and said <= set(covered)
        assert all(each.end - each.first <= MAX_LINES for each in cut(language, "\n".join(lines)))


def test_a_small_file_that_would_take_all_memory_is_cut_by_lines() -> None:
    """Parsed here, it takes 2 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = "class A {}\n" + "a<" * 12_000
    assert cut("java", text) == cut("", text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_what_another_process_parses_is_as_if_it_were_parsed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"class Café{n}(B):\n    def fgh(self):\n        return f((), [])\n\n" for n in range(400)).encode()
    apart = definitions_of("python", text)
    monkeypatch.setattr("etude.search.syntax._MOST_OPENED", 1 << 20)
    assert apart is not None and len(apart) == 800 and definitions_of("python", text) == apart


def test_a_comment_above_many_definitions_is_not_read_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    class Counting:
        def match(self, line: str) -> re.Match[str] | None:
            nonlocal looked
            looked += 1
            return comment.match(line)

    comment = pieces_module._COMMENT
    monkeypatch.setattr(pieces_module, "_COMMENT", Counting())
    assert cut("c", "//\n" * 5000 + "/**/void f(){}\n" * 100)
    assert 0 < looked < 100 * 250
