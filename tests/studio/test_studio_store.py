"""Runs in an object store: put there by a run's machine, found and followed by a studio elsewhere. The store is a real
S3 server."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_run import ROOT, Json, Studio, add_steps, archive, kept, make_run, step_line, studio

from etude.archive.reader import ArchiveReader
from etude.archive.writer import ArchiveWriter
from etude.errors import ConfigError, DeadlineExceeded
from etude.rollouts.stats import RunStats
from etude.studio.files import Directory
from etude.studio.mirror import Mirror
from etude.studio.push import Pusher, pushed
from etude.studio.run import Run
from etude.studio.shapes import RunRow
from etude.studio.stored import PIECE, STORED, decoded
from etude.weights.opening import open_store
from etude.weights.store import Patience, Store, StoreConfig

sys.path.append(str(ROOT / "tests/weights"))
from s3_server import S3Server

URL = "s3://bucket/runs"
PLENTY = 1 << 30
WORK = ("--work", "--agent-set", 'endpoint.url="http://127.0.0.1:9/v1"', "--agent-set", 'endpoint.model="m"')


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("push", "mirror"):
        monkeypatch.setattr(f"etude.studio.{module}.LOOK_S", 0.1)


@pytest.fixture
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


def opened(server: S3Server, deadline_s: float = 60.0, silence_s: float = 20.0) -> Store:
    return open_store(URL, StoreConfig(options=server.options), Patience(deadline_s, silence_s))


def pushes(run: Path, server: S3Server, *more: str) -> Json:
    """What `etude runs push` says."""
    sets = [part for name, value in server.options.items() for part in ("--set", f"{name}={value}")]
    line = [sys.executable, "-m", "etude.cli.main", "runs", "push", run, URL, "--json", *sets, *more]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def seen(what: str, until: Callable[[], object], within_s: float = 100.0) -> None:
    deadline = time.monotonic() + within_s
    while not until():
        assert time.monotonic() < deadline, f"{what} within {within_s:.0f} s"
        time.sleep(0.05)


def all_here(mirror: Mirror, name: str) -> Path:
    """The directory of a run, once all of it is there."""

    def is_here() -> bool:
        row = next((row for row in mirror.rows() if row.name == name), None)
        assert row is None or mirror.wanted(row.id)
        return row is not None and row.remark is None

    seen(f"all of {name}", is_here)
    [row] = [row for row in mirror.rows() if row.name == name]
    path = mirror.wanted(row.id)
    assert path is not None
    return path


def contents(run: Path) -> dict[str, bytes]:
    """Of all files but those that whoever reads an archive makes."""
    paths = (path for path in run.rglob("*") if path.is_file() and not path.name.startswith(("index.", "run.lock")))
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def mirror(server: S3Server, tmp_path: Path) -> Iterator[Mirror]:
    mirror = Mirror(opened(server), PLENTY, tmp_path / "cache")
    yield mirror
    mirror.close()


# --- both ways --------------------------------------------------------------------------------------------------------


def test_a_run_is_shown_elsewhere_as_it_is_at_home_and_followed(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = make_run(tmp_path / "runs/one", 3)
    archive(run)
    said = pushes(run, server)
    assert said["url"] == f"{URL}/one" and said["pieces"] == 3
    options = ", ".join(f'{name}="{value}"' for name, value in server.options.items())
    more = ["--set", f"store_options={{{options}}}", *WORK]
    with studio(tmp_path / "home", URL, more=more) as there, studio(tmp_path / "other", tmp_path / "runs") as here:
        row = _whole(there, "one")
        assert (row["directory"], row["state"], row["steps"]) == (f"{URL}/one", "stopped", 3)
        ours, theirs = f"/runs/{here.id('one')}", f"/runs/{row['id']}"
        for part in (
            "/curves?names=reward,loss,delivery.pause_ms", "/versions", "/trajectories", "/trajectories/values",
            "/trajectories/g1~0", "/trajectories/g1~0/tokens", "/trajectories/g1~0/diff?path=dates.py", "/groups/g1",
            "/steps/1", "/results",
        ):  # fmt: skip
            assert there.get(theirs + part) == here.get(ours + part), part
        note = there.http.post(f"/api{theirs}/trajectories/g1~0/annotations", json={"text": "Look."})
        assert note.status_code == 409 and "where the run's own directory is" in note.text
        topic = f"run/{row['id']}/steps"
        with there.stream({topic: there.get(f"{theirs}/curves")["cursor"]}) as events:
            add_steps(run, [4, 5])
            with ArchiveWriter(run) as writer:
                writer.keep(kept("g9/0"))
            assert pushes(run, server)["pieces"] == 2, "what the metrics got more, and a chunk"
            told = [data["step"]["step"] for _, _, data in itertools.islice(events, 3) if "step" in data]
        assert told == [4, 5]
        seen("the new trajectory", lambda: there.get(f"{theirs}/trajectories/count")["count"] == 8)


def _whole(served: Studio, name: str) -> Json:
    """A run's row, once all of it is there: as the stream tells it, while somebody looks."""
    with served.stream({"runs": None}) as events:
        for _, _, data in events:
            for row in (*(data.get("runs") or ()), *(data.get("changed") or ())):
                if row["name"] == name:
                    served.get(f"/runs/{row['id']}")
                    if row["remark"] is None:
                        return row
    raise AssertionError("the stream has ended")


def test_a_file_that_was_written_anew_takes_the_place_of_the_old(
    server: S3Server, mirror: Mirror, tmp_path: Path
) -> None:
    """As a run that is resumed does with its metrics; and an archive that forgets its oldest chunk."""
    path = make_run(tmp_path / "one", 6)
    archive(path)
    pusher = Pusher(path, opened(server))
    assert not pusher.push()
    there = all_here(mirror, "one")
    assert contents(there) == contents(path)
    run = Run("r", Directory(there))
    run.refresh()
    RunStats(path / "metrics.jsonl", {"steps": 3, "counters": {}}, step_line(4, life=1))
    (path / "archive/chunks/000001.chunk").rename(path / "archive/chunks/000007.chunk")
    (path / "summary.json").write_text("{}")
    assert pusher.push(), "it has ended"
    pusher.close()
    seen("the same files", lambda: (mirror.rows(), contents(there))[1] == contents(path))
    run.refresh()
    assert run.cuts == [3] and run.last_step == 4
    named = decoded(opened(server).get(f"one/{STORED}", PIECE)).hashes()
    assert named == {key.rpartition("/")[2] for key in opened(server).list("one/pieces/")}, "what no file has is gone"


def test_pieces_of_a_file_that_grows_are_made_one(server: S3Server, mirror: Mirror, tmp_path: Path) -> None:
    path = make_run(tmp_path / "one", 1)
    metrics = path / "metrics.jsonl"
    line = b"x" * (PIECE // 4) + b"\n"
    with contextlib.closing(Pusher(path, opened(server))) as pusher:
        pusher.push()
        there = all_here(mirror, "one")
        for _ in range(6):
            with metrics.open("ab") as file:
                file.write(line)
            pusher.push()
            seen("the same files", lambda: (mirror.rows(), contents(there))[1] == contents(path))
        sizes = [
            piece.bytes for piece in decoded(opened(server).get(f"one/{STORED}", PIECE)).files["metrics.jsonl"].pieces
        ]
        assert sizes[0] == PIECE and len(sizes) == 4 and sum(sizes) == metrics.stat().st_size
        assert pusher.sent_bytes < 3 * metrics.stat().st_size


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_push_that_is_killed_is_gone_on_with(server: S3Server, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 3)
    archive(run)
    sets = [part for name, value in server.options.items() for part in ("--set", f"{name}={value}")]
    line = [sys.executable, "-m", "etude.cli.main", "runs", "push", str(run), URL, *sets]

    def put() -> int:
        return sum(method == "PUT" and "/pieces/" in path for method, path in server.requests)

    server.silent_s = 0.5
    process = subprocess.Popen(line, cwd=ROOT)
    seen("a piece in the store", lambda: put() >= 1)
    process.kill()
    process.wait()
    server.silent_s = 0.0
    assert not opened(server).exists(f"one/{STORED}"), "half a run is no run"
    before = put()
    assert pushed(run, opened(server), None, False, print)["pieces"] + before <= put() and before >= 1
    stored = decoded(opened(server).get(f"one/{STORED}", PIECE))
    assert len(stored.hashes()) == len(opened(server).list("one/pieces/"))
    assert pushed(run, opened(server), None, False, print)["pieces"] == 0


def test_what_is_damaged_is_asked_for_again_and_then_told(server: S3Server, mirror: Mirror, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 3)
    archive(run)
    pushed(run, opened(server), None, False, print)
    stored = decoded(opened(server).get(f"one/{STORED}", PIECE))
    [chunk] = stored.files["archive/chunks/000001.chunk"].pieces
    server.corrupt = chunk.hash
    there = all_here(mirror, "one")
    assert contents(there) == contents(run) and server.reads(chunk.hash) == 2 and server.corrupt == ""
    add_steps(run, [4])
    pushed(run, opened(server), None, False, print)
    piece = decoded(opened(server).get(f"one/{STORED}", PIECE)).files["metrics.jsonl"].pieces[-1]
    opened(server).put(f"one/pieces/{piece.hash}", b"somebody else's")
    [row] = seen_remark(mirror, "is damaged: delete it there, and push the run again")
    assert row.steps == 4
    opened(server).delete(f"one/pieces/{piece.hash}")
    pushed(run, opened(server), None, False, print)
    all_here(mirror, "one")
    assert contents(there) == contents(run)


def seen_remark(mirror: Mirror, words: str) -> list[RunRow]:
    seen(words, lambda: any(words in (row.remark or "") for row in mirror.rows()))
    return mirror.rows()


def test_a_store_that_does_not_answer_is_one_sentence_and_holds_nobody_up(server: S3Server, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 3)
    pushed(run, opened(server), None, False, print)
    server.failures = 1_000_000
    store, asked = opened(server, 0.5, 0.3), threading.Event()
    folders = store.folders
    store.folders = lambda: (asked.wait(60), folders())[1]  # it answers when the test says so
    mirror = Mirror(store, PLENTY, tmp_path / "cache")
    try:
        assert mirror.rows() == [], "nobody waits for it"
        asked.set()
        seen("a sentence", lambda: "does not answer, so what is shown may be old" in " ".join(mirror.remarks()))
        with pytest.raises(DeadlineExceeded, match=r"bucket/runs to read one/run\.json"):
            Pusher(run, opened(server, 0.5, 0.3))
        server.failures = 0
        seen("the run", lambda: [row.name for row in mirror.rows()] == ["one"] and mirror.remarks() == [])
    finally:
        mirror.close()


def test_a_push_that_follows_outlasts_a_store_that_does_not_answer(server: S3Server, tmp_path: Path) -> None:
    run, said = make_run(tmp_path / "one", 1), list[str]()

    def tell(words: str) -> None:
        said.append(words)
        server.failures = 0
        make_run(tmp_path / "two", 1, summary=True)
        (tmp_path / "two/summary.json").rename(run / "summary.json")

    store = opened(server, 0.5, 0.3)
    pushed(run, store, None, False, tell)
    add_steps(run, [2])
    with contextlib.closing(Pusher(run, store)), pytest.raises(ConfigError, match="another process pushes"):
        Pusher(run, store)
    add_steps(run, [3])
    server.failures = 1_000_000
    with pytest.raises(DeadlineExceeded):
        pushed(run, store, None, False, tell)
    assert said == []
    server.failures = 0
    done = threading.Thread(target=lambda: pushed(run, store, None, True, tell))
    done.start()
    seen("the third step", lambda: decoded(opened(server).get(f"one/{STORED}", PIECE)).row.steps == 3)
    server.failures = 1_000_000
    add_steps(run, [4])
    done.join(100)
    assert not done.is_alive() and len(said) == 1 and "is pushed when it answers" in said[0]
    row = decoded(opened(server).get(f"one/{STORED}", PIECE)).row
    assert (row.steps, row.state) == (4, "ended")


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_no_more_is_kept_here_than_was_allowed(server: S3Server, tmp_path: Path) -> None:
    """Of an archive that is larger its newest chunks; of several runs those that were looked at last."""
    for name in ("one", "two"):
        with ArchiveWriter(make_run(tmp_path / name, 2, name), chunk_bytes=1) as writer:
            for number in range(9):
                writer.keep(kept(f"g{number}/0"))
        pushed(tmp_path / name, opened(server), None, False, print)
    chunks = sorted((tmp_path / "one/archive/chunks").iterdir())
    rest = sum(path.stat().st_size for path in (tmp_path / "one").iterdir() if path.is_file())
    bound = rest + sum(path.stat().st_size for path in chunks[-4:])
    mirror = Mirror(opened(server), bound, tmp_path / "cache")
    try:
        seen("both", lambda: len(mirror.rows()) == 2)
        one, two = sorted(mirror.rows(), key=lambda row: row.name)
        at = mirror.wanted(one.id)
        assert at is not None
        seen_remark(mirror, "of the 9 chunks of its archive the newest 4 are here")
        assert sorted(path.name for path in at.glob("archive/chunks/*")) == [path.name for path in chunks[-4:]]
        with ArchiveReader(at) as reader:
            assert [row.id for row in reader.every()] == ["g5/0", "g6/0", "g7/0", "g8/0"]
        there = mirror.wanted(two.id)
        seen("the other in its place", lambda: mirror.rows() and len([*there.glob("archive/chunks/*")]) == 4)
        assert not at.exists()
        assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) <= bound
    finally:
        mirror.close()


def test_a_file_that_one_piece_makes_a_terabyte_is_not_brought(server: S3Server, tmp_path: Path) -> None:
    """A stranger's store costs a studio no more of its disk than was allowed; the run beside it comes all the same."""
    for name in ("one", "two"):
        archive(make_run(tmp_path / name, 2, name))
        pushed(tmp_path / name, opened(server), None, False, print)
    before = opened(server).get(f"two/{STORED}", PIECE)
    for path in ("metrics.jsonl", "archive/chunks/000001.chunk"):
        told = json.loads(before)
        told["files"][path]["pieces"] *= 100_000
        opened(server).put(f"two/{STORED}", json.dumps(told).encode())
        mirror = Mirror(opened(server), 10_000_000, tmp_path / path.replace("/", "-"))
        try:
            all_here(mirror, "one")
            two = next(row for row in mirror.rows() if row.name == "two")
            assert mirror.wanted(two.id)
            seen_remark(mirror, "raise store_cache_gb")
            assert sum(mirror._place.sizes().values()) < 10_000_000
        finally:
            mirror.close()


def test_a_second_studio_has_a_directory_of_its_own_and_a_third_finds_what_the_first_left(
    server: S3Server, mirror: Mirror, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "one", 3)
    archive(run)
    pushed(run, opened(server), None, False, print)
    there = all_here(mirror, "one")
    second = Mirror(opened(server), PLENTY, tmp_path / "cache")
    other = all_here(second, "one")
    second.close()
    assert other != there and not other.exists()
    mirror.close()
    server.requests.clear()
    third = Mirror(opened(server), PLENTY, tmp_path / "cache")
    assert all_here(third, "one") == there
    third.close()
    assert not [path for method, path in server.requests if "/pieces/" in path], "all of it was here, and is sound"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told["files"].update({"../x": told["files"]["recipe.json"]}), "which is no file of a run's"),
        (lambda told: told["files"].update({"run.lock": told["files"]["recipe.json"]}), "which is no file of a run's"),
        (lambda told: told["files"]["recipe.json"]["pieces"][0].update(hash="../../x"), "which is no file of a run's"),
        (lambda told: told["files"]["recipe.json"]["pieces"][0].update(bytes=1 << 40), "which is no file of a run's"),
        (lambda told: told.update(format=2), "another version of Etude: format"),
        (lambda told: told["row"].pop("steps"), "another version of Etude: row.steps"),
        (lambda told: told["files"]["recipe.json"].update(mtime=1e300), "which is no file of a run's"),
        (lambda told: told["files"]["recipe.json"].update(mtime=float("nan")), "which is no file of a run's"),
        (lambda told: told["row"].update(updated_at=1e300), "a row that is of no run"),
        (lambda told: told["row"].update(steps=10**400), "a row that is of no run"),
        (lambda told: told["row"].update(recipe="x" * 10**6), "a row that is of no run"),
        (lambda told: told["files"].update({f"x{at}": 1 for at in range(2000)}), "things are wrong in it"),
        (lambda told: told.update(more=" " * 10**6), "were expected"),
    ],
)
def test_a_strangers_store_is_told_of_beside_what_is_sound(
    server: S3Server,
    mirror: Mirror,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Json], object],
    said: str,
) -> None:
    if said == "were expected":  # a file that is longer than any run's
        monkeypatch.setattr("etude.studio.mirror.MOST_STORED", 100_000)
    for name in ("one", "two"):
        pushed(make_run(tmp_path / name, 1, name), opened(server), None, False, print)
    told = json.loads(opened(server).get(f"two/{STORED}", PIECE))
    change(told)
    opened(server).put(f"two/{STORED}", json.dumps(told).encode())
    opened(server).put("weights/versions/00000000/manifest", b"of another kind")
    seen("a remark", lambda: mirror.rows() and any(said in each for each in mirror.remarks()))
    assert [row.name for row in mirror.rows()] == ["one"] and len(mirror.remarks()) == 1
    assert f"two/{STORED}" in mirror.remarks()[0]


def test_the_address_of_one_run_shows_that_run(server: S3Server, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 3)
    pushed(run, opened(server), None, False, print)
    mirror = Mirror(open_store(f"{URL}/one", StoreConfig(options=server.options)), PLENTY, tmp_path / "cache")
    there = all_here(mirror, "one")
    mirror.close()
    assert contents(there) == contents(run)


def test_what_is_no_run_and_what_another_has_is_refused(server: S3Server, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run here; give the directory"):
        Pusher(tmp_path, opened(server))
    pushed(make_run(tmp_path / "one", 1), opened(server), None, False, print)
    other = make_run(tmp_path / "other/one", 1)
    with pytest.raises(ConfigError, match="another run is there; give another --name"):
        Pusher(other, opened(server))
    with pytest.raises(ConfigError, match=r"--name '\.\./x'"):
        Pusher(other, opened(server), "../x")
    assert pushed(other, opened(server), "another", False, print)["url"] == f"{URL}/another"
