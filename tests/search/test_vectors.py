"""Vectors of pieces: made once, kept by content, ranked beside words; and embedders of others, with their failures."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.errors import ConfigError
from etude.harness.config import HarnessConfig
from etude.product.searching import embedder_of
from etude.search import Index, Store, index_version
from etude.search.embedder import FULL, EmbedderFailed, Table, cosines, rounded, shipped
from etude.search.others import SearchConfig
from etude.search.words import words_of
from etude.search.workspace import build, open_store, search

FILES = {
    "stack.py": "def pop_last(items):\n    last = items[-1]\n    del items[-1]\n    return last\n",
    "mail.py": "def send(letter, to):\n    post(letter, to)\n    return True\n",
    "notes.txt": "nothing of note\n",
}


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "shop").mkdir(exist_ok=True)
        (tmp_path / "shop" / name).write_text(text)
    return tmp_path / "shop"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(path=tmp_path / "index.sqlite")


def table(**vectors: tuple[int, int]) -> Table:
    """Of words with two numbers each."""
    buffer = io.BytesIO()
    words = np.frombuffer("\n".join(next(words_of(word)) for word in vectors).encode(), np.uint8)
    rows = np.array(list(vectors.values()), np.int8)
    np.savez(buffer, words=words, vectors=rows, scales=np.ones(len(rows)), turn=np.eye(2), defined=1.0)
    return Table(buffer.getvalue())


MEANING = table(envelope=(0, 90), letter=(0, 100), pop=(100, 0), remove=(90, 5))


def test_a_question_finds_what_means_the_same(root: Path, store: Store) -> None:
    assert [hit.path for hit in search(root, store, "envelopes", 3, embedder=MEANING)] == ["mail.py"]
    assert [hit.path for hit in search(root, store, "remove", 3, embedder=MEANING)] == ["stack.py"]
    assert search(root, store, "envelopes", 3, embedder=table(other=(1, 1))) == []


def test_a_second_worktree_embeds_nothing(root: Path, store: Store, tmp_path: Path) -> None:
    assert build(root, store).embedded == 3
    other = tmp_path / "other"
    other.mkdir()
    for name, text in FILES.items():
        (other / name).write_text(text)
    assert build(other, store).embedded == 0
    (other / "mail.py").write_text("def receive():\n    return 1\n\n\ndef lose():\n    return 2\n")
    assert build(other, store).embedded == 2
    assert answers(other, store) == answers(other, Store(None)) != []


def answers(root: Path, store: Store) -> list[tuple[str, int, float]]:
    found = [search(root, store, question, 9) for question in ("remove the last item", "send a letter", "receive")]
    return [(hit.path, hit.first, hit.score) for hits in found for hit in hits]


def test_another_embedder_makes_its_own_vectors_and_takes_in_no_file(root: Path, store: Store) -> None:
    build(root, store)
    other = build(root, store, embedder=MEANING)
    assert (other.taken, other.embedded) == (0, 3)
    assert build(root, store).embedded == 0, "the first one's are still there"
    assert index_version() != index_version(MEANING) and shipped().identity in index_version()


def test_a_session_names_the_embedder_that_it_has() -> None:
    config = HarnessConfig(toolset="agent")
    assert config.versions(MEANING)["search"] == index_version(MEANING) != config.versions()["search"]


def test_what_is_forgotten_leaves_no_vectors(root: Path, store: Store) -> None:
    build(root, store)
    assert store._db.execute("SELECT count(*) FROM vectors").fetchone() == (3,)
    store.collect(0)
    assert store._db.execute("SELECT count(*) FROM vectors").fetchone() == (0,)


def test_sums_are_the_same_in_any_order() -> None:
    chance = np.random.default_rng(0)
    vectors, asked = (rounded(chance.normal(size=(many, 256))) for many in (40_000, 1))
    exact = (vectors.astype(np.int64) @ asked[0].astype(np.int64)) / FULL**2
    places, found = cosines([vectors[:7], vectors[:0], vectors[7:]], asked, 0.1)
    assert (places == np.flatnonzero(exact > 0.1)).all() and (found == exact[places]).all() and len(places) > 1000
    assert cosines([], asked, -1)[0].shape == (0,)
    assert cosines([asked], asked, 0.5)[1][0] == pytest.approx(1, abs=0.02)


def test_a_file_that_is_no_table_is_told() -> None:
    with pytest.raises(ConfigError, match="no table of an embedder"):
        Table(b"nothing")


class Server(BaseHTTPRequestHandler):
    """Embeds by two letters; fails when it is told to."""

    asked: list[dict[str, Any]] = []
    broken = False
    says: bytes | None = None
    """In place of an answer."""
    trickles = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, "key": self.headers["Authorization"], **body})
        rows = [
            {"index": at, "embedding": [text.count("m"), text.count("d"), 1]} for at, text in enumerate(body["input"])
        ]
        said = json.dumps({"data": rows[::-1]}).encode() if self.says is None else self.says
        if body["model"] != "m":
            said = json.dumps({"error": {"message": f"there is no model {body['model']};\n load it"}}).encode()
        self.send_response(500 if self.broken else 200 if body["model"] == "m" else 404)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who asked has gone
            if self.trickles:
                for _ in range(200):
                    self.wfile.write(b" ")
                    time.sleep(0.05)
            self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """In silence."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Server.asked, Server.broken, Server.says, Server.trickles = [], False, None, False
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}/v1"
        made.shutdown()


def test_a_server_embeds_once(root: Path, store: Store, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "open")
    embedder = SearchConfig(url=server, model="m", key_env="KEY").embedder(str)
    first, *_ = search(root, store, "mmmm", 3, embedder=embedder)
    assert first.path == "stack.py"
    assert {(each["path"], each["key"], each["model"]) for each in Server.asked} == {
        ("/v1/embeddings", "Bearer open", "m")
    }
    assert sorted(text for each in Server.asked for text in each["input"]) == sorted(
        ["mmmm", *(text.rstrip("\n") for text in FILES.values())]
    )
    many = len(Server.asked)
    search(root, store, "dddd", 3, embedder=embedder)
    assert len(Server.asked) == many + 1, "the question alone"


KEY = ["-----BEGIN RSA PRIVATE KEY-----", *["MIIEow" + "aB3d" * 14 + f"{line:02}" for line in range(90)]]
TOKEN = "ghp_" + "a1B2c3D4e5" * 4


def test_a_server_is_sent_no_secret(root: Path, store: Store, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a part of a key that is longer than a piece; nor one that the environment has, or a question."""
    monkeypatch.setenv("SHOP_PASSWORD", "Tr0ub4dor&3-horse")
    (root / "keys.txt").write_text("\n".join([*KEY, "-----END RSA PRIVATE KEY-----", "after the key", ""]))
    (root / "mail.py").write_text(f'TOKEN = "{TOKEN}"\n\n\ndef login():\n    return "Tr0ub4dor&3-horse"\n')
    embedder = embedder_of(SearchConfig(url=server, model="m"))
    search(root, store, f"who uses {TOKEN}", 3, embedder=embedder)
    sent = "\n".join(text for each in Server.asked for text in each["input"])
    assert not [secret for secret in (*KEY[1:], TOKEN, "Tr0ub4dor&3-horse") if secret in sent]
    assert sent.count("[secret github-token]") == 2 and "def login" in sent and "after the key" in sent


def test_a_server_that_fails_leaves_the_words_and_says_so_once(root: Path, store: Store, server: str) -> None:
    Server.broken = True
    said: list[str] = []
    index = Index(Store(None), "here", said.append, SearchConfig(url=server, model="m").embedder(str))
    files = [(name, text.encode()) for name, text in FILES.items()]
    index.update(dict.fromkeys(FILES, "1"), files)
    assert [hit.path for hit in index.search("send a letter", 3)] == ["mail.py"] and index.search("envelopes", 3) == []
    assert len(said) == 1 and said[0].startswith("search goes by words alone: ") and "500" in said[0]
    assert index.embedded == 0 and len(Server.asked) == 1
    Server.broken = False
    assert build(root, store, embedder=SearchConfig(url=server, model="m").embedder(str)).embedded == 3


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (b'{"data": [{"index": 0, "embedding": [1' + b"0" * 400 + b"]}]}", "OverflowError"),
        (b"[" * 200_000, "RecursionError"),
        (b" " * 2_000_000, "longer than"),
        (b" " * 300, "has not answered in"),
    ],
    ids=["large numbers", "deep", "long", "slow"],
)
def test_a_server_holds_nobody(server: str, says: bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Server.says, Server.trickles = says, said == "has not answered in"
    if Server.trickles:
        monkeypatch.setattr("etude.search.others._ANSWER_S", 0.3)
    with pytest.raises(EmbedderFailed, match=said):
        SearchConfig(url=server, model="m").embedder(str).question("a letter")


def test_a_server_that_refuses_is_told_in_its_own_words_on_one_line(root: Path, server: str) -> None:
    said: list[str] = []
    wrong = SearchConfig(url=server, model="unheard").embedder(str)
    search(root, Store(None), "letter", 3, said.append, wrong)
    assert said == [
        f"search goes by words alone: {server}/embeddings refuses with 404: there is no model unheard; load it"
    ]


def test_a_server_that_is_gone_is_told_by_its_address(root: Path, store: Store) -> None:
    said: list[str] = []
    gone = SearchConfig(url="http://127.0.0.1:9", model="m").embedder(str)
    assert [hit.path for hit in search(root, store, "letter", 3, said.append, gone)] == ["mail.py"]
    assert len(said) == 1 and "http://127.0.0.1:9/embeddings" in said[0]


def static(directory: Path) -> Path:
    """As model2vec writes it: three words, the last one unknown to the question."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    directory.mkdir()
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "letter": 1, "items": 2, "envelope": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(directory / "tokenizer.json"))
    rows = np.array([[9, 9], [0, 1], [1, 0], [0.1, 0.9]], np.float32)
    save_file({"embeddings": rows, "weights": np.array([1, 1, 2, 1], np.float64)}, str(directory / "model.safetensors"))
    return directory


def test_a_static_model_needs_no_server(root: Path, store: Store, tmp_path: Path) -> None:
    embedder = SearchConfig(directory=static(tmp_path / "model")).embedder(str)
    assert [hit.path for hit in search(root, store, "envelope", 1, embedder=embedder)] == ["mail.py"]
    asked = embedder.question("letter items unheard")[0]
    assert asked.tolist() == [round(127 * 2 / 5**0.5), round(127 / 5**0.5)], "weighted, and unknown words left out"
    with pytest.raises(ConfigError, match="is no static model"):
        SearchConfig(directory=tmp_path).embedder(str)


def test_a_static_model_that_is_none_is_told(root: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    place = static(tmp_path / "model")
    model, rows = place / "model.safetensors", np.ones((2, 2), np.float32)
    save_file({"embeddings": rows}, str(model))
    with pytest.raises(EmbedderFailed, match="more tokens than"):
        SearchConfig(directory=place).embedder(str).question("envelope")
    (place / "tokenizer.json").write_text("{}")
    said: list[str] = []
    search(root, Store(None), "letter", 3, said.append, SearchConfig(directory=place).embedder(str))
    assert len(said) == 1 and "tokenizer.json is none" in said[0]
    for tensors in ({"embeddings": rows[0]}, {"embeddings": rows * np.nan}, {"embeddings": rows, "mapping": rows[0]}):
        save_file(tensors, str(model))
        with pytest.raises(ConfigError, match="is no static model"):
            SearchConfig(directory=place).embedder(str)
    for head in (b"[1]", b"[" * 200_000):
        model.write_bytes(len(head).to_bytes(8, "little") + head)
        with pytest.raises(ConfigError, match="is no static model"):
            SearchConfig(directory=place).embedder(str)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"url": "http://a/v1"}, "url and model together"),
        ({"url": "http://a/v1", "model": "m", "directory": "d"}, "not both"),
        ({"key_env": "KEY"}, "no effect without url"),
    ],
)
def test_half_a_setting_is_refused(keys: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SearchConfig.model_validate(keys)
