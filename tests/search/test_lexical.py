"""Search by words: names are taken apart, definitions come first, and a changed file is found as it is now."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.search import LexicalIndex
from etude.search.pieces import MAX_LINES, pieces_of
from etude.search.words import stem, words_of

FILES = {
    "app/http.py": "def parse_header(line):\n    name, value = line.split(':')\n    return name, value\n",
    "app/store.py": "class SessionStore:\n    def save(self, session):\n        self.items[session.id] = session\n",
    "tests/test_http.py": "def test_parse_header():\n    assert parse_header('a:b') == ('a', 'b')\n",
    "web/HeaderParser.ts": "export class HeaderParser {\n  parseHeader(line: string) {}\n}\n",
}


def indexed(files: dict[str, str]) -> LexicalIndex:
    index = LexicalIndex()
    for path, text in files.items():
        index.put(path, text)
    return index


def paths(index: LexicalIndex, question: str, **options: str) -> list[str]:
    return [hit.path for hit in index.search(question, 5, **options)]


def test_words() -> None:
    assert list(words_of("parseHTTPHeader2(snake_case)")) == [
        "parsehttpheader2", "pars", "http", "head", "2", "snake_case", "snak", "cas",
    ]  # fmt: skip
    assert stem("parsing") == stem("parse") == stem("parser") == stem("parsed")
    assert stem("entries") == stem("entry") and stem("class") == "clas" and stem("planning") == stem("plan")


def test_the_code_a_question_is_about_comes_first() -> None:
    index = indexed(FILES)
    assert set(paths(index, "where are headers parsed?")[:2]) == {"app/http.py", "web/HeaderParser.ts"}
    assert paths(index, "which tests are there for parsing headers?")[0] == "tests/test_http.py"
    assert paths(index, "how is a session saved") == ["app/store.py"]
    assert paths(index, "headers", under="web") == ["web/HeaderParser.ts"]
    assert paths(index, "zebra") == paths(index, "") == []


def test_a_hit_says_where_it_is() -> None:
    text = "".join(f"x{n} = {n}\n" for n in range(200)) + "def wanted():\n    pass\n"
    [hit] = indexed({"long.py": text}).search("wanted", 1)
    assert hit.text.split("\n") == text.split("\n")[hit.first - 1 : hit.last] and "def wanted():" in hit.text


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["one two", "two three", ""])), max_size=12))
def test_an_index_that_was_kept_up_equals_one_made_at_once(changes: list[tuple[str, str]]) -> None:
    index, now = LexicalIndex(), {}
    for path, text in changes:
        if text:
            index.put(path, text)
            now[path] = text
        else:
            index.drop(path)
            now.pop(path, None)
    for question in ("one", "two", "three two"):
        assert index.search(question, 9) == indexed(now).search(question, 9)


@given(st.lists(st.sampled_from(["", "def f():", "    x", "@deco", "class A:", "}"]), max_size=300))
def test_pieces_cover_a_file_without_gaps(lines: list[str]) -> None:
    pieces = pieces_of(lines)
    assert [line for first, end in pieces for line in range(first, end)] == list(range(len(lines)))
    assert all(0 < end - first <= MAX_LINES for first, end in pieces)
