"""An index that a team shares: the same answers without the work, and nothing for who does not hold the files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from users_git import git

sys.path.append(str(Path(__file__).parents[1] / "weights"))
from s3_server import S3Server

from etude.cli.main import main
from etude.errors import ConfigError
from etude.product import searching
from etude.search import Store
from etude.search.content import Piece, key_of
from etude.search.sealed import _HEAD, _ROW, _SHAPE, Entry, Sealed, seal
from etude.search.sharing import Pushed
from etude.search.workspace import Built, build, open_store, search

TOKEN = "ghp_" + "a1B2c3D4e5" * 4
FILES = {
    "cart.py": "class Cart:\n    def total(self):\n        return sum(self.prices)\n",
    "mail.py": "def send_zebra(letter, to):\n    post(letter, to)\n    return True\n",
    "same.py": "class Cart:\n    def total(self):\n        return sum(self.prices)\n",
    "notes.md": "How giraffes are delivered\n",
}


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "shop"
    root.mkdir()
    git(root, "init", "-q")
    for name, text in FILES.items():
        (root / name).write_text(text)
    committed(root)
    return root


def committed(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "as it is")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "team")


@pytest.fixture
def pushed(root: Path, url: str, tmp_path: Path) -> Path:
    """The object that a push made."""
    made = push(root, url, tmp_path / "first.sqlite")
    assert (made.files, made.secret) == (3, 0), "two files have one content"
    return Path(url) / made.name


def push(root: Path, url: str, at: Path) -> Pushed:
    return searching.push(root, open_store(path=at), url, {}, print)


def fetch(root: Path, url: str, store: Store) -> Built:
    return searching.fetch(root, store, url, {}, print, lambda *_: None)


def clone(root: Path, at: Path) -> Path:
    subprocess.run(["git", "clone", "-q", str(root), str(at)], check=True, timeout=60)
    return at


def answers(root: Path, store: Store) -> list[tuple[str, int, int, float]]:
    asked = ("total of prices", "send zebra", "giraffes", "cart", "letters by post")
    return [(each.path, each.first, each.last, each.score) for text in asked for each in search(root, store, text, 9)]


def test_what_was_fetched_is_not_made_and_answers_the_same(root: Path, url: str, pushed: Path, tmp_path: Path) -> None:
    other, store = clone(root, tmp_path / "other"), open_store(path=tmp_path / "second.sqlite")
    built = fetch(other, url, store)
    assert (built.taken, built.fetched, built.embedded) == (3, 3, 0)
    assert answers(other, store) == answers(other, Store(None)) != []


def test_a_later_commit_takes_in_what_has_changed_and_no_more(
    root: Path, url: str, pushed: Path, tmp_path: Path
) -> None:
    (root / "mail.py").write_text("def receive():\n    return 1\n")
    (root / "new.py").write_text("def unheard():\n    return 2\n")
    committed(root)
    (root / "notes.md").write_text("changed, and in no commit\n")
    store = open_store(path=tmp_path / "second.sqlite")
    built = fetch(root, url, store)
    assert (built.taken, built.fetched, built.embedded) == (4, 1, 3)
    assert answers(root, store) == answers(root, Store(None))


def test_an_earlier_commit_takes_what_was_pushed_for_a_later_one(root: Path, url: str, tmp_path: Path) -> None:
    behind = clone(root, tmp_path / "behind")
    for number in range(5):
        (root / "new.py").write_text(f"def unheard():\n    return {number}\n")
        committed(root)
    made = push(root, url, tmp_path / "first.sqlite")
    store = open_store(path=tmp_path / "second.sqlite")
    assert (made.files, fetch(behind, url, store).fetched) == (4, 3)
    assert answers(behind, store) == answers(behind, Store(None))
    (root / "new.py").write_text("def heard():\n    return 5\n")
    committed(root)
    newest = push(root, url, tmp_path / "first.sqlite").name
    pointers = {path.read_text() for path in (Path(url) / "index-after").iterdir()}
    assert pointers == {newest}, "they name the newest"
    for path in (Path(url) / "index-after").iterdir():
        path.write_text("index/../elsewhere")
    assert fetch(behind, url, open_store(path=tmp_path / "third.sqlite")).fetched == 0


def test_where_nothing_was_pushed_all_is_made_here_and_that_is_said(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "team").mkdir()
    assert main(["index", "fetch", str(tmp_path / "team"), "--dir", str(root)]) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and "has no index of a commit within 50 of this one" in err
    assert "4 files, 4 of them new or changed" in out and list((tmp_path / "team").iterdir()) == []


def test_a_bucket_that_nobody_gives_a_key_for_is_told_so(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    asked = ("--set", "metadata_endpoint=http://127.0.0.1:9", "--set", "region=nowhere")
    assert main(["index", "fetch", "s3://bucket/team", "--dir", str(root), *asked]) == 42
    said = capsys.readouterr().err
    assert "there are no credentials: export AWS_ACCESS_KEY_ID" in said and said.count("\n") == 1


def test_what_is_in_no_commit_is_not_pushed(root: Path, url: str, tmp_path: Path) -> None:
    (root / "mail.py").write_text("def changed():\n    return 1\n")
    (root / "untracked.py").write_text("def untracked():\n    return 2\n")
    assert push(root, url, tmp_path / "first.sqlite").files == 2


def test_nobody_learns_of_a_file_that_he_does_not_hold(root: Path, url: str, pushed: Path, tmp_path: Path) -> None:
    other, store = clone(root, tmp_path / "other"), open_store(path=tmp_path / "second.sqlite")
    (other / "mail.py").unlink()
    built = fetch(other, url, store)
    assert (built.taken, built.fetched) == (2, 2) and store.find(b"wzebra")[0].size == 0
    assert [hit.path for hit in search(other, store, "send zebra", 9)] == []
    data = pushed.read_bytes()
    assert not [word for word in ("zebra", "giraffe", "mail", "cart", "total", "def ") if word.encode() in data]
    id_ = git(root, "rev-parse", "HEAD:mail.py").strip()
    assert bytes.fromhex(id_) not in data and id_ not in str(pushed)


@pytest.mark.parametrize("known", ["git", "sha256", "key", "length", "almost"])
def test_a_hash_of_a_content_opens_nothing(root: Path, pushed: Path, known: str) -> None:
    """Not even with the key that the store itself knows it by."""
    data = FILES["mail.py"].encode()
    key = key_of("mail.py", data)
    guess = {
        "git": bytes.fromhex(git(root, "rev-parse", "HEAD:mail.py").strip()), "sha256": hashlib.sha256(data).digest(),
        "key": key, "length": b" " * len(data), "almost": data + b"\n",
    }  # fmt: skip
    sealed = Sealed(pushed.read_bytes(), f"index/{pushed.name}", "there")
    assert sealed.of(key, data) is not None and sealed.of(key, guess[known]) is None


def test_a_proof_for_one_push_opens_no_other(root: Path, url: str, pushed: Path, tmp_path: Path) -> None:
    """Entries of a push that were kept, in the place of those of the next: with their own names, and with the right."""
    name, old = f"index/{pushed.name}", pushed.read_bytes()
    assert push(root, url, tmp_path / "first.sqlite").name == name
    new = pushed.read_bytes()
    head, size = _HEAD.unpack_from(new), _HEAD.size
    assert head[1] != _HEAD.unpack_from(old)[1], "each push draws its nonce"
    data = FILES["mail.py"].encode()
    key = key_of("mail.py", data)
    assert Sealed(new[:size] + old[size:], name, "there").of(key, data) is None
    rows = [(_ROW.unpack_from(new, size + at * _ROW.size)[0], *_ROW.unpack_from(old, size + at * _ROW.size)[1:])
            for at in range(head[2])]  # fmt: skip
    pushed.write_bytes(new[:size] + b"".join(_ROW.pack(*row) for row in rows) + old[size + head[2] * _ROW.size :])
    refused(root, url, tmp_path)
    pushed.write_bytes(new)
    (root / "mail.py").write_text("def other():\n    return 1\n")
    committed(root)
    later = Path(url) / push(root, url, tmp_path / "first.sqlite").name
    later.write_bytes(new)  # of another tree, under this one's name
    refused(root, url, tmp_path)


def refused(root: Path, url: str, tmp_path: Path) -> None:
    store = open_store(path=Path(tempfile.mkdtemp(dir=tmp_path)) / "index.sqlite")
    with pytest.raises(ConfigError, match=r"^\S+index/\w+: is not the index that was pushed there \([a-z ]+\); delete"):
        fetch(root, url, store)
    build(root, store)
    assert answers(root, store) == answers(root, Store(None)), "nothing of it stays"


@pytest.mark.parametrize(
    "place", ["magic", "nonce", "count", "tag", "offset", "length", "entry", "end", "cut", "empty"]
)
def test_an_index_that_was_changed_is_refused_or_not_used(
    root: Path, url: str, pushed: Path, tmp_path: Path, place: str
) -> None:
    data = bytearray(pushed.read_bytes())
    rows = _HEAD.size
    at = {"magic": 2, "nonce": 20, "count": rows - 4, "tag": rows + 3, "offset": rows + 35, "length": rows + 40,
          "entry": rows + 3 * _ROW.size + 5, "end": len(data) - 1}  # fmt: skip
    if place in at:
        data[at[place]] ^= 1
    pushed.write_bytes(data[: len(data) // 2 if place == "cut" else 0 if place == "empty" else None])
    if place not in ("nonce", "tag"):
        refused(root, url, tmp_path)
        return
    store = open_store(path=tmp_path / "second.sqlite")
    assert fetch(root, url, store).fetched == {"nonce": 0, "tag": 2}[place], "an entry that nobody's proof names"
    assert answers(root, store) == answers(root, Store(None))


def test_who_holds_a_file_cannot_put_a_piece_outside_of_it(root: Path, url: str, pushed: Path, tmp_path: Path) -> None:
    data = FILES["mail.py"].encode()
    piece = Piece(0, 3, Counter(a=1), Counter())
    for wrong in (Piece(0, 4, Counter(a=1), Counter()), Piece(0, 3, Counter(a=-1), Counter())):
        vectors = np.zeros((1, 128), np.int8)
        made = seal(f"index/{pushed.name}", [(key_of("mail.py", data), data, Entry((wrong,), vectors))])
        pushed.write_bytes(made)
        refused(root, url, tmp_path)
    made = seal(f"index/{pushed.name}", [(key_of("mail.py", data), data, Entry((piece,), np.zeros((1, 128), np.int8)))])
    pushed.write_bytes(made)
    assert fetch(root, url, open_store(path=tmp_path / "second.sqlite")).fetched == 1, "so the test would see it"


@pytest.mark.parametrize(
    ("told", "pieces", "width"),
    [
        ("[[0,1,[],[]]]", 1, 128), ("[" * 200_000, 1, 128), ('[[0,1,{"a":2147483647,"b":1},{}]]', 1, 128),
        ('[[0,1,{"\\ud800":1},{}]]', 1, 128), ("[[0,1,{},{}]]", 1, 0), ("[[0,1,{},{}]]", 1, 64),
        ("[" + "[0,1,{},{}]," * 5000 + "[0,1,{},{}]]", 5001, 128), (" " * 9_000_000 + "[]", 0, 128),
    ],
    ids=["lists", "deep", "counts", "surrogate", "no width", "another width", "pieces", "long"],
)  # fmt: skip
def test_what_a_writer_to_the_store_sealed_is_refused(
    root: Path, url: str, pushed: Path, tmp_path: Path, told: str, pieces: int, width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Who may write there and holds one file."""
    packed, data = zlib.compress(told.encode()), FILES["mail.py"].encode()
    body = _SHAPE.pack(len(packed), width) + packed + bytes(pieces * width)
    monkeypatch.setattr("etude.search.sealed._body", lambda entry: body)
    none = Entry((), np.zeros((0, 128), np.int8))
    pushed.write_bytes(seal(f"index/{pushed.name}", [(key_of("mail.py", data), data, none)]))
    refused(root, url, tmp_path)


def test_a_file_with_a_secret_stays_here_and_is_found_all_the_same(root: Path, url: str, tmp_path: Path) -> None:
    (root / "mail.py").write_text(FILES["mail.py"] + f'TOKEN = "{TOKEN}"\n')
    committed(root)
    made = push(root, url, tmp_path / "first.sqlite")
    assert (made.files, made.secret) == (2, 1)
    store = open_store(path=tmp_path / "second.sqlite")
    assert (fetch(root, url, store).fetched, search(root, store, "send zebra", 1)[0].path) == (2, "mail.py")


def test_commands_with_an_object_store_send_one_object(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server()
    try:
        options = [word for key, value in server.options.items() for word in ("--set", f"{key}={value}")]
        server.requests.clear()
        made = told(capsys, "push", "s3://bucket/team", "--dir", str(root), *options)
        assert made["files"] == 3 and server.requests == [("PUT", f"/bucket/team/{made['name']}")]
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
        built = told(capsys, "fetch", "s3://bucket/team", "--dir", str(root), *options)
        assert (built["fetched"], built["embedded"]) == (3, 0)
        assert {method for method, _ in server.requests[1:]} == {"HEAD", "GET"}
        assert main(["index", "fetch", "s3://bucket/team", "--dir", str(root), *options]) == 0
        assert "0 hold something new" in capsys.readouterr().out
    finally:
        server.close()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, int]:
    assert main(["index", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_wrong_is_one_sentence(
    root: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    (empty / "picture").write_bytes(bytes(9))
    committed(empty)
    for words, said in (
        (("fetch", url, "--dir", str(root)), "team: no such directory; `etude index push` makes one"),
        (("fetch", str(bare), "--dir", str(root / "none")), "none: no such directory; name one with code in it"),
        (("fetch", str(bare), "--dir", str(root), "--set", "region=x"), "--set region: "),
        (("push", str(bare), "--dir", str(root), "--set", "region=x"), "is a directory, which takes no options"),
        (("push", url, "--dir", str(bare)), "is in no git repository; an index is shared by its commits"),
        (("push", url, "--dir", str(empty)), "no file of its commit can be pushed"),
        (("push", url, "--dir", str(root), "--set", "x"), "--set x: is not of the form KEY=VALUE"),
    ):
        assert main(["index", *words]) == 42
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
        assert words[0] == "push" or not Path(url).exists(), "a fetch makes no store"
