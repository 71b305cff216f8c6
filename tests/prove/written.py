"""Every place where Etude writes what it must still have afterwards: how it writes there, and how it reads again.

A row writes pieces by number, each of which is there for good once `write` has returned, and `read` says which are.
What commands make for somebody to use is in outputs.py, what a server writes beside its sandboxes in
tests/environments/server/test_ends.py, and whole commands on a small disk are in test_small_run.py.
"""

import asyncio
import json
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from etude.bench.attempts import Attempt, Played
from etude.bench.results import SCHEMA, Results, read_run
from etude.config import load_recipe
from etude.durable import write_whole
from etude.engine.foreign.handover import Handover
from etude.environments.accounts import Telemetry
from etude.environments.build import guest_program
from etude.environments.images.store import Described, ImageStore
from etude.environments.journal import Journal as ServerJournal
from etude.environments.roots import ImagesConfig
from etude.harness.journal import Journal
from etude.harness.permissions.store import load_permissions, remember
from etude.harness.shadow import Shadow
from etude.harness.store import SessionStore
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.product.setup.written import write_config
from etude.records import Event, Scored, Task, Trajectory, Verifier, Version
from etude.rewards.mining.journal import Decision
from etude.rewards.mining.journal import Journal as MiningJournal
from etude.rollouts.config import RunConfig
from etude.rollouts.ledger import GroupLedger, GroupRecord
from etude.rollouts.lines import append, rows
from etude.rollouts.live import Changes
from etude.rollouts.sample import sample_of
from etude.rollouts.trajectory_store import StoredTrajectory, TrajectoryStore
from etude.serving.token import own_token
from etude.tasks.harbor import read_task, write_task
from etude.trainer import checkpoint
from etude.weights.opening import open_store
from etude.weights.pins import Pins
from etude.weights.publisher import Publisher
from etude.weights.signing import make_keys

ROOT = Path(__file__).parents[2]
PAD = "x" * 3000


@dataclass(frozen=True)
class Written:
    """One row. `step` is by how much more room each try has than the one before it."""

    write: Callable[[Path, int], object]
    read: Callable[[Path], list[int]]
    step: int = 4096
    disk: str = "1m"


def _journal(at: Path, n: int) -> None:
    with Journal(at / "log" / "events.jsonl") as journal:
        journal.append(json.dumps({"n": n, "pad": PAD}).encode())
        asyncio.run(journal.sync())


def _numbers(path: Path) -> list[int]:
    return [row["n"] for row in rows(path)]


def _key(at: Path, n: int) -> None:
    assert len(SessionStore(at).key(f"20260101-00000{n}-abcdef")) == 32


def _configure(at: Path, n: int) -> None:
    write_config(at / "agent.toml", f"n = {n}\npad = '{PAD}'\n")


def _configured(at: Path) -> list[int]:
    """The one in use, and those that were before it."""
    return sorted({tomllib.loads(path.read_text())["n"] for path in at.glob("agent.toml*")})


def _keys(at: Path) -> list[int]:
    return sorted(int(path.parent.name[14]) for path in at.glob("sessions/*/key") if len(path.read_bytes()) == 32)


def _session(at: Path, n: int) -> None:
    """Its directory first, as the product does: the secret lies beside the log."""
    name = f"20260101-00000{n}-abcdef"
    (at / "sessions" / name).mkdir(parents=True, exist_ok=True)
    _key(at, n)


def _remember(at: Path, n: int) -> None:
    remember(ROOT, [f"run(echo {n} {each} {'x' * 80})" for each in range(60)], at / "permissions.toml")


def _remembered(at: Path) -> list[int]:
    return sorted({int(rule.split()[1]) for rule in load_permissions(ROOT, at / "permissions.toml").allow})


def _whole(at: Path, n: int) -> None:
    """Reports, summaries and recipes of runs are written in this way."""
    write_whole(at / f"{n}.json", json.dumps({"n": n, "pad": PAD}).encode(), listed=True)


def _again(at: Path, n: int) -> None:
    """The same file each time: what was there must stand where the new text does not fit."""
    write_whole(at / "state.json", json.dumps({"n": n, "pad": PAD * (1 + n % 2)}).encode())


def _newest(at: Path) -> list[int]:
    path = at / "state.json"
    return list(range(json.loads(path.read_text())["n"] + 1)) if path.exists() else []


def _ledger(at: Path, n: int) -> None:
    ledger = GroupLedger(at)
    try:
        ledger.opened(GroupRecord(n, "r" * 3000, 1, Version(0)))
        asyncio.run(ledger.sync())
    finally:
        ledger.close()


def _ledger_has(at: Path) -> list[int]:
    ledger = GroupLedger(at)
    try:
        return sorted(ledger.groups)
    finally:
        ledger.close()


def _score(at: Path, n: int) -> None:
    store, slot = TrajectoryStore(at), f"g{n}/0"
    with StoredTrajectory(at / slot) as kept:
        kept.journal.append(json.dumps({"kind": "end", "at": 0.0, "pad": PAD}).encode())
    told = Trajectory(slot, "t", f"g{n}", (), (), Scored(1.0, {"tests": 1.0}))
    asyncio.run(store.keep(replace(sample_of(told), checksum=store.settle(slot))))


def _scores(at: Path) -> list[int]:
    store = TrajectoryStore(at)
    return sorted(int(slot[1:-2]) for slot in store.slots() if store.sample(slot) is not None)


def _routes(at: Path, n: int) -> None:
    with StoredTrajectory(at / "g0" / "0") as kept:
        row = np.random.default_rng(n).integers(0, 255, (40, 8, 8), dtype=np.uint8)
        where = kept.routes.keep(row)
        kept.journal.append(json.dumps({"n": n, "at": where}).encode())


def _changes(at: Path, n: int) -> None:
    recipe = load_recipe(ROOT / "recipes/quickstart.toml", RunConfig)
    Changes(recipe, at).set([f"groups.max_staleness={n + 2}", *(f"rollouts.concurrency={k + 1}" for k in range(90))])


def _changed(at: Path) -> list[int]:
    return [int(row["set"][0].partition("=")[2]) - 2 for row in rows(at / "changes.jsonl")]


def _save(at: Path, n: int) -> None:
    checkpoint.save(at, n, {"n": n, "weights": torch.zeros(9000)}, keep=9)


def _saved(at: Path) -> list[int]:
    return [checkpoint.load(path)["n"] for path in checkpoint.checkpoints(at)]


def _model(at: Path, n: int) -> None:
    decoder, tokenizer = _shipped()
    save_checkpoint(decoder, at / f"model-{n}", tokenizer)


def _models(at: Path) -> list[int]:
    """What is there can be loaded: of a model that was not written whole nothing is."""
    found = sorted(at.glob("model-*"))
    for path in found:
        load_checkpoint(path)
    return [int(path.name[6:]) for path in found]


def _hand_over(at: Path, n: int) -> None:
    Handover(at / "weights", _shipped()[0]).write(_weights(n), Version(n))


def _handed_over(at: Path) -> list[int]:
    """A version is whole once it has its name."""
    found = sorted((at / "weights").glob("version-*"))
    for path in found:
        assert json.loads((path / "config.json").read_text()) and load_file(path / "model.safetensors")
    return [int(path.name.split("-")[1]) for path in found]


_LOADED: list[tuple] = []


def _shipped():
    if not _LOADED:
        _LOADED.append(load_checkpoint(ROOT / "models/etude-tiny"))
    return _LOADED[0]


def _weights(n: int) -> dict[str, np.ndarray]:
    bits = np.random.default_rng(0).integers(0, 65_536, 6000, dtype=np.uint16)
    bits[: 100 * n] = 7
    return {"w": bits}


def _publish(at: Path, n: int) -> None:
    store = open_store(at)
    Publisher(store).publish(Version(n), _weights(n))
    Pins(Publisher(store).chain).set(Version(n), f"pin-{n}", "x" * 900)


def _published(at: Path) -> list[int]:
    from etude.weights.inspect import verify

    store = open_store(at)
    assert verify(store).ok
    return [int(pin.version) for pin in Pins(Publisher(store).chain).live()]


def _sign(at: Path, n: int) -> None:
    make_keys(at / f"key-{n}")


def _signing(at: Path) -> list[int]:
    return sorted(int(path.stem[4:]) for path in at.glob("key-*.pub") if path.read_bytes().endswith(b"-----\n"))


def _token(at: Path, n: int) -> None:
    assert own_token(at / f"token-{n}")


def _tokens(at: Path) -> list[int]:
    return sorted(int(path.name[6:]) for path in at.glob("token-*") if len(path.read_text()) > 16)


def _image(at: Path, n: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        Path(root, "etc").mkdir()
        Path(root, "etc", "passwd").write_text("root:x:0:0::/:/bin/sh\nagent:x:1000:1000::/:/bin/sh\n")
        Path(root, "n").write_text(f"{n} {PAD}")
        ImageStore(ImagesConfig(dir=at)).add_directory(Path(root), Described(user="agent"), name=f"image-{n}")


def _images(at: Path) -> list[int]:
    store = ImageStore(ImagesConfig(dir=at))
    return sorted(int(name[6:]) for name in store.names())


def _guest(at: Path, n: int) -> None:
    assert guest_program(at / f"cache-{n}").stat().st_size > 10_000


def _guests(at: Path) -> list[int]:
    return sorted(int(path.parent.name[6:]) for path in at.glob("cache-*/guest-*") if path.suffix == "")


def _mined(at: Path, n: int) -> None:
    journal = MiningJournal(at / "journal.jsonl", {"asked": 1})
    try:
        journal.add(Decision(str(n), None, "no", PAD))
    finally:
        journal.close()


def _mining(at: Path) -> list[int]:
    journal = MiningJournal(at / "journal.jsonl", {"asked": 1})
    try:
        return [int(commit) for commit in journal.decisions]
    finally:
        journal.close()


_PLAN = [("t", number) for number in range(6)]


def _bench(at: Path, n: int) -> None:
    there = (at / "results.jsonl").exists() and (at / "results.jsonl").stat().st_size > 0
    head = {"schema": SCHEMA, "name": "x", "tasks": {"t": ""}, "attempts": 6, "policy": {"kind": "x"}, "harness": {}}
    with Results(at, head, _PLAN, resume=there) as results:
        attempt = Attempt("t", n, "test", True, "passed")
        events = [Event("message", 0.0, {"text": PAD})]
        asyncio.run(results.add(Played(attempt, 1.0, 1, events)))
        asyncio.run(results.finish())


def _benched(at: Path) -> list[int]:
    return sorted(attempt.attempt for attempt in read_run(at).attempts)


def _workspace(at: Path) -> Path:
    """The user's own directory, which is not on the disk under test."""
    beside = at.parent.with_name("beside") / "workspace"
    beside.mkdir(parents=True, exist_ok=True)
    return beside


def _shadow(at: Path, n: int) -> None:
    workspace = _workspace(at)
    (workspace / f"{n}.txt").write_bytes(np.random.default_rng(n).bytes(6000))
    taken = asyncio.run(Shadow(workspace, at, "s").take(str(n)))
    with workspace.with_name("taken").open("a") as file:
        file.write(f"{n} {taken}\n")


def _shadowed(at: Path) -> list[int]:
    """Every snapshot that was taken gives its file back."""
    numbers = []
    for line in _workspace(at).with_name("taken").read_text().splitlines():
        n, taken = line.split()
        content = asyncio.run(Shadow(_workspace(at), at, "s").read(taken, f"{n}.txt"))
        assert content == np.random.default_rng(int(n)).bytes(6000)
        numbers.append(int(n))
    return numbers


def _task(at: Path, n: int) -> None:
    files = {f"a/{number}.py": PAD.encode() for number in range(9)}
    write_task(Task(f"task-{n}", "do it", files, Verifier({}, "true")), at / f"task-{n}")


def _tasks(at: Path) -> list[int]:
    return [int(path.name[5:]) for path in sorted(at.glob("task-*")) if read_task(path)]


def _server(at: Path, n: int) -> None:
    journal = ServerJournal(at, 86_400, 256)
    try:
        journal.record_created(str(n), {"pad": PAD})
    finally:
        journal.close()


def _server_has(at: Path) -> list[int]:
    journal = ServerJournal(at, 86_400, 256)
    try:
        return [n for n in range(9) if journal.entry(str(n)) is not None]
    finally:
        journal.close()


def _account(at: Path, n: int) -> None:
    """Its steps are counted where they cannot be written; a line is whole or not there."""
    accounts = Telemetry(at / "events.jsonl", lambda: 0, dict)
    try:
        accounts.step("created", str(n), pad=PAD)
        if b"events_unwritten_total 0.0" not in accounts.exposition():
            raise OSError(28, "no room for the event", str(at))
    finally:
        accounts.close()


def _accounts(at: Path) -> list[int]:
    return [int(json.loads(line)["sandbox"]) for line in (at / "events.jsonl").read_text().splitlines()]


WRITTEN: dict[str, Written] = {
    "a session's log": Written(_journal, lambda at: _numbers(at / "log" / "events.jsonl")),
    "a session's secret": Written(_session, _keys),
    "answers to keep: permissions": Written(_remember, _remembered),
    "undo: snapshots of a workspace": Written(_shadow, _shadowed, step=16_384),
    "a run's reports and summaries": Written(_whole, lambda at: sorted(int(path.stem) for path in at.glob("*.json"))),
    "what is written again and again": Written(_again, _newest),
    "a run's metrics": Written(lambda at, n: append(at / "m", {"n": n, "pad": PAD}), lambda at: _numbers(at / "m")),
    "a run's ledger": Written(_ledger, _ledger_has),
    "a run's trajectories": Written(_routes, lambda at: _numbers(at / "g0" / "0" / "events.jsonl")),
    "a run's samples": Written(_score, _scores),
    "a run's changes": Written(_changes, _changed),
    "a run's checkpoints": Written(_save, _saved, step=16_384),
    "a model": Written(_model, _models, step=400_000, disk="20m"),
    "weights for another program's engine": Written(_hand_over, _handed_over, step=400_000, disk="20m"),
    "the weight store": Written(_publish, _published),
    "signing keys": Written(_sign, _signing),
    "an agent's configuration": Written(_configure, _configured),
    "a server's token": Written(_token, _tokens),
    "a server's journal": Written(_server, _server_has),
    "a server's events": Written(_account, _accounts),
    "images": Written(_image, _images, disk="2m"),
    "the guest program": Written(_guest, _guests, step=1_000_000, disk="6m"),
    "mined tasks' journal": Written(_mined, _mining),
    "tasks": Written(_task, _tasks, step=16_384),
    "a benchmark's results": Written(_bench, _benched),
}


def leftover_files(at: Path) -> set[str]:
    """Names that nobody reads: what a write that failed has left."""
    names = {str(path.relative_to(at)) for path in at.rglob("*") if path.is_file()}
    return {name for name in names if any(word in name for word in (".partial", "writing-", "new/"))}
