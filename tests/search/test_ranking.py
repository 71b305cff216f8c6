"""Search by words: names are taken apart, definitions come first, and a changed file is found as it is now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.search import Index, Store
from etude.search.ranking import WEIGHTS

FILES = {
    "app/http.py": "def parse_header(line):\n    name, value = line.split(':')\n    return name, value\n",
    "app/store.py": "class SessionStore:\n    def save(self, session):\n        self.items[session.id] = session\n",
    "tests/test_http.py": "def test_parse_header():\n    assert parse_header('a:b') == ('a', 'b')\n",
    "web/HeaderParser.ts": "export class HeaderParser {\n  parseHeader(line: string) {}\n}\n",
}


def put(index: Index, files: dict[str, str]) -> None:
    """Make it the index of these files and no others."""
    stamps = {path: str(hash(text)) for path, text in files.items()}
    index.update(stamps, [(path, files[path].encode()) for path in index.stale(stamps)])


def indexed(files: dict[str, str]) -> Index:
    index = Index(Store(None), "/workspace")
    put(index, files)
    return index


def paths(index: Index, question: str, **options: str) -> list[str]:
    return list(dict.fromkeys(hit.path for hit in index.search(question, 5, **options)))


def test_the_code_a_question_is_about_comes_first() -> None:
    index = indexed(FILES)
    assert set(paths(index, "where are headers parsed?")[:2]) == {"app/http.py", "web/HeaderParser.ts"}
    assert paths(index, "which tests are there for parsing headers?")[0] == "tests/test_http.py"
    assert paths(index, "how is a session saved")[0] == "app/store.py"
    assert paths(index, "headers", under="web") == ["web/HeaderParser.ts"]
    assert paths(index, "zebra") == paths(index, "") == []


def test_what_defines_a_name_comes_before_what_uses_it() -> None:
    uses = "".join(f"x{number} = retry(retry(retry))\n" for number in range(4))
    assert paths(indexed({"a.py": uses, "z.py": "def retry(call):\n    return call()\n"}), "retry")[0] == "z.py"


def test_a_path_says_what_a_file_is_about() -> None:
    body = "def run(x):\n    return x.limit\n"
    assert paths(indexed({"a/other.py": body, "z/throttle.py": body}), "throttle limit")[0] == "z/throttle.py"


def test_a_hit_says_where_it_is() -> None:
    text = "".join(f"x{n} = {n}\n" for n in range(200)) + "def wanted():\n    pass\n"
    [hit] = indexed({"long.py": text}).search("wanted", 1)
    assert "def wanted():" in text.split("\n")[hit.first - 1 : hit.last]


def test_files_of_one_content_are_all_found() -> None:
    """The second one for less."""
    assert paths(indexed({"b.py": FILES["app/http.py"], "a.py": FILES["app/http.py"]}), "headers") == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("functions/special/zeta.py", False), ("specifiers.py", False), ("web/testimonials.ts", False),
        ("mockingbird.go", False), ("latest/a.py", False), ("tests/a.py", True), ("test_a.py", True),
        ("a_test.go", True), ("web/a.test.ts", True), ("spec/a.rb", True), ("conftest.py", True),
        ("web/__mocks__/a.js", True), ("ZetaTest.java", True), ("TestZeta.java", True), ("a/testing.py", True),
    ],
)  # fmt: skip
def test_a_test_is_told_by_whole_words_of_its_path(path: str, test: bool) -> None:
    body, other = "def riemann(x):\n    return x\n", f"zz{PurePath(path).suffix}"
    scores = {hit.path: hit.score for hit in indexed({path: body, other: f"{body}# other\n"}).search("riemann", 2)}
    assert (scores[path] < 0.7 * scores[other]) == test


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("test whether a number is prime", "ntheory.py"), ("Tests if a number is prime", "ntheory.py"),
        ("special prime number", "ntheory.py"), ("the test of prime numbers", "test_ntheory.py"),
    ],
)  # fmt: skip
def test_only_who_asks_for_tests_is_given_them_first(question: str, first: str) -> None:
    body = "def isprime(number):\n    return number in primes\n"
    tests = "def test_isprime():\n    # test a number: is it prime or special\n    assert isprime(number)\n"
    assert paths(indexed({"ntheory.py": body, "test_ntheory.py": tests}), question)[0] == first


def test_one_file_does_not_fill_an_answer() -> None:
    many = "".join(f"def latex{n}(expr):\n    return latex(expr, {n})\n\n\n" for n in range(20))
    other = "def printer(expr):\n    # what of an expr goes to latex\n    return str(expr)\n"
    index = indexed({"parser.py": many, "printer.py": other})
    [alone] = [hit.score for hit in index.search("latex expr", 30) if hit.path == "printer.py"]
    scores = [hit.score for hit in index.search("latex expr", 30) if hit.path == "parser.py"]
    assert len(scores) == 20 and scores == sorted(scores, reverse=True) and scores[-1] < 0.7 * scores[0]
    assert alone > scores[-1]


def test_one_text_does_not_fill_an_answer() -> None:
    same = "".join(f"class Context{n}:\n    def expr(self):\n        return self.latex\n\n\n" for n in range(9))
    other = "def printer(expr):\n    # what of an expression goes to latex\n    return str(expr)\n"
    found = indexed({"parser.py": same, "printer.py": other}).search("latex expr", 30)
    assert "printer.py" in [hit.path for hit in found][:4] and len(found) > 9


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["one two", "two three", ""])), max_size=12))
def test_an_index_that_was_kept_up_equals_one_made_at_once(changes: list[tuple[str, str]]) -> None:
    index, now = Index(Store(None), "/workspace"), {}
    for path, text in changes:
        if text:
            now[path] = text
        else:
            now.pop(path, None)
        put(index, now)
    for question in ("one", "two", "three two"):
        assert index.search(question, 9) == indexed(now).search(question, 9)


BODIES = (
    "def parse(header):\n    return header\n",
    "class Session:\n    def save(self):\n        pass\n",
    "x = 1\n",
    "",
)
NAMES = ("a/http.py", "a/header.py", "tests/test_http.py", "b/session.md", "header/z.py", "yarn.lock")
TREES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(BODIES))


@given(st.lists(TREES, min_size=2, max_size=8), st.sampled_from(("parse header", "session tests", "http", "save")))
def test_what_an_index_held_before_changes_no_answer(trees: list[dict[str, str]], question: str) -> None:
    index = Index(Store(None), "/workspace")
    for files in trees:
        put(index, files)
        for under in ("", "a"):
            assert index.search(question, 4, under) == indexed(files).search(question, 4, under)


def test_few_files_with_many_pieces_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have more pieces than are looked at at first; the answer is that of looking at all."""
    many = "".join(f"def header_{n}():\n    return header(header, header, header, {n})\n\n\n" for n in range(700))
    index = indexed({"all.py": many} | {f"one{n}.py": f"def other{n}(header):\n    return {n}\n" for n in range(9)})
    weights = replace(WEIGHTS, same_file=1e6)
    found = index.search("header", 16, weights=weights)
    assert len({hit.path for hit in found}) == 10
    monkeypatch.setattr("etude.search.ranking._AT_FIRST", 1000)
    assert found == index.search("header", 16, weights=weights)
