"""What commands make for somebody to read or use: pages, exports, logs, bundles, and places made to work in.

More rows of the table in written.py. What such a thing is made of is not on the disk under test.
"""

import asyncio
import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from made_run import archive, evaluate, make_run
from written import PAD, Written, _shipped, _task, _tasks, _workspace

from etude.bench.behaviour import MEASURES, Trend, behaviour_page
from etude.bench.config import BenchConfig
from etude.bench.page import write_page
from etude.bench.results import read_run
from etude.bench.run import run_bench
from etude.bench.summary import summarise
from etude.cli import sessions
from etude.engine.foreign.handover import Handover
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.vm import kernel
from etude.harness.fleet import FleetConfig, Worktrees
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.models.config import ModelConfig
from etude.models.tokenizer import load_tokenizer, save_tokenizer
from etude.records import Version
from etude.studio.report import write_report
from etude.tasks.mined.environment import Environments
from etude.tasks.packed import pack_tasks, packed_names, unpack_tasks
from etude.trainer.corpus.config import CorpusConfig
from etude.trainer.corpus.store import Tokens, build_corpus, open_corpus
from etude.trainer.documents import Document, ShuffledSource, read_documents, write_documents
from etude.trainer.midtraining import Midtraining, MidtrainingConfig, Stage, pretrain
from etude.weights.cache import Cache

MODEL = ModelConfig(
    vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16, max_context=32
)
A_STAGE = 256


def _numbered(at: Path, pattern: str) -> list[int]:
    """The numbers in the names of what is there."""
    found = [path for path in at.glob(pattern) if path.name[0] != "."]
    return sorted(int("".join(filter(str.isdigit, str(path.relative_to(at)).partition(".")[0]))) for path in found)


def _export(at: Path, n: int) -> None:
    sessions._write(at / f"{n}.json", json.dumps({"pad": PAD}).encode())


def _exports(at: Path) -> list[int]:
    return [n for n in _numbered(at, "*.json") if json.loads((at / f"{n}.json").read_bytes())]


def _behaviour(at: Path, n: int) -> None:
    (at / str(n)).mkdir(exist_ok=True)
    line = np.linspace(1.0, 2.0, 9)
    behaviour_page(at / str(n), [Trend(next(iter(MEASURES)), line, line, 1.0, 0.5, 1.5, line, line, (line, line))])


def _report(at: Path, n: int) -> None:
    beside = _workspace(at) / "run"
    if not (beside / "summary.json").exists():
        make_run(beside, 3, summary=True)
        archive(beside)
        evaluate(beside)
    (at / str(n)).mkdir(exist_ok=True)
    asyncio.run(write_report(beside, at / str(n) / "report.html"))


def _bench_page(at: Path, n: int) -> None:
    beside = _workspace(at)
    if not (beside / "results.jsonl").exists():
        config = BenchConfig.model_validate({"tasks": {"ladder": 1}, "policy": {"kind": "solution", "skill": 0.5}})
        asyncio.run(run_bench(config, beside))
    run = read_run(beside)
    (at / str(n)).mkdir(exist_ok=True)
    write_page(replace(run, directory=at / str(n)), summarise(run))


def _recording(at: Path, n: int) -> None:
    noise = np.random.default_rng(n).integers(0, 60_000, 4000).astype(np.int32)
    write_documents(at / f"{n}.npz", [Document(noise, np.ones(4000, bool))])


def _recordings(at: Path) -> list[int]:
    return [n for n in _numbered(at, "*.npz") if len(read_documents(at / f"{n}.npz")[0].token_ids) == 4000]


def _tokenizer(at: Path, n: int) -> None:
    save_tokenizer(_shipped()[1], at / str(n))


def _tokenizers(at: Path) -> list[int]:
    return [n for n in _numbered(at, "*/tokenizer.json") if load_tokenizer(at / str(n))]


def _corpus(at: Path, n: int) -> None:
    texts = _workspace(at) / "texts"
    texts.mkdir(exist_ok=True)
    words = " ".join(f"word{each * n}" for each in range(3000))
    (texts / "one.md").write_text("\n".join(words[start : start + 90] for start in range(0, len(words), 90)))
    asked = CorpusConfig(directories=(texts,), licences="any")
    build_corpus(asked, Tokens(ChatRenderer(_shipped()[1]), 64), at / str(n))


def _corpora(at: Path) -> list[int]:
    return [n for n in _numbered(at, "*/manifest.json") if len(open_corpus(at / str(n)).documents("train")) > 20]


def _midtraining(stages: int) -> tuple[MidtrainingConfig, dict[str, ShuffledSource]]:
    documents = [Document(np.arange(start, start + 16, dtype=np.int32), np.ones(16, bool)) for start in range(30)]
    stage = Stage(tokens=A_STAGE * stages, mixture={"a": 1.0})
    return MidtrainingConfig(model=MODEL, stages=(stage,), tokens_per_step=64), {"a": ShuffledSource(documents, 0)}


def _pretrain(at: Path, n: int) -> None:
    run = pretrain(*_midtraining(n + 1), at, resume=(at / "midtraining.pt").exists())
    logged = [json.loads(line)["step"] for line in (at / "log.jsonl").read_text().splitlines()]
    assert logged == list(range(1, run.step_count + 1))


def _pretrained(at: Path) -> list[int]:
    run = Midtraining(*_midtraining(1))
    run.load(at / "midtraining.pt")
    return list(range(run.tokens // A_STAGE))


def _bundle(at: Path, n: int) -> None:
    beside = _workspace(at)
    if not (beside / f"task-{n}").exists():
        _task(beside, n)
    pack_tasks([beside / f"task-{n}"], at / f"{n}.bundle")


def _bundles(at: Path) -> list[int]:
    return [n for n in _numbered(at, "*.bundle") if packed_names(at / f"{n}.bundle") == [f"task-{n}"]]


def _unpack(at: Path, n: int) -> None:
    bundle = _workspace(at) / f"{n}.bundle"
    if not bundle.exists():
        _bundle(bundle.parent, n)
    unpack_tasks(bundle, at)


def _wheel(beside: Path) -> Path:
    """A package of one module, to install from no index."""
    wheel = beside / "padding-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("padding.py", f"PAD = {PAD!r}\n")
        file.writestr("padding-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: padding\nVersion: 1.0\n")
        file.writestr("padding-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("padding-1.0.dist-info/RECORD", "")
    return wheel


def _environment(at: Path, n: int) -> None:
    asyncio.run(Environments(at)._install(str(n), [str(_wheel(_workspace(at)))], False))


def _environments(at: Path) -> list[int]:
    return [n for n in _numbered(at, "*/etude.json") if (at / str(n) / "padding.py").read_text()]


def _keep(at: Path, n: int) -> None:
    """Whoever asked has the bytes all the same: what is not kept is brought again."""

    async def brought() -> int:
        kept = Cache(at, 1 << 30, 1)
        try:
            assert await kept.get(str(n), lambda: PAD.encode()) == PAD.encode()
            return kept.counters["unkept"]
        finally:
            kept.close()

    if asyncio.run(brought()):
        raise OSError(28, "no room for what was brought", str(at))


def _kept(at: Path) -> list[int]:
    async def found() -> list[int]:
        kept = Cache(at, 1 << 30, 1)
        try:
            return [n for n in range(9) if await kept.find(str(n)) == PAD.encode()]
        finally:
            kept.close()

    return asyncio.run(found())


def _hand_over(at: Path, n: int) -> None:
    bits = {"w": np.full(9, n, np.uint16)}
    Handover(at, _shipped()[0]).write(bits, Version(n))


def _handed_over(at: Path) -> list[int]:
    found = list(at.glob("version-*"))
    for path in found:
        save_tokenizer(_shipped()[1], path)  # engines have their own
        load_checkpoint(path)
    return sorted(int(path.name.split("-")[1]) for path in found)


def _backend(at: Path, n: int) -> None:
    """Its directory goes with it: what is kept is that it could be opened."""

    async def whole() -> None:
        backend = NamespaceBackend(NamespaceConfig(state_dir=at, limits="rlimit"))
        await backend.close()

    asyncio.run(whole())
    (_workspace(at) / str(n)).touch()


def _backends(at: Path) -> list[int]:
    assert list(at.iterdir()) == []
    return sorted(int(path.name) for path in _workspace(at).iterdir())


def _worktree(at: Path, n: int) -> None:
    """It goes with its run: what is kept is that it could be made, in a repository that is not on this disk."""
    project = _workspace(at) / "project"
    if not project.exists():
        project.mkdir()
        (project / "a.txt").write_text(PAD)
        for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "a"]):
            subprocess.run(["git", "-C", project, *words], check=True)

    async def whole() -> None:
        async with Worktrees.opened(project, FleetConfig(directory=at)) as trees:
            tree = await trees.add(f"agent-{n}")
            assert (tree.path / "a.txt").read_text() == PAD
        assert [path for path in at.glob("*/*") if path.is_dir()] == []

    asyncio.run(whole())
    (project / ".git" / f"made-{n}").touch()


def _kernel(at: Path, n: int) -> None:
    kernel._write(at / f"initial-{n}", PAD.encode())


OUTPUTS: dict[str, Written] = {
    "a session's export": Written(_export, _exports),
    "a page of behaviour": Written(_behaviour, lambda at: _numbered(at, "*/behaviour.html"), step=16_384),
    "a run's page": Written(_report, lambda at: _numbered(at, "*/report.html"), step=65_536, disk="2m"),
    "a benchmark's page": Written(_bench_page, lambda at: _numbered(at, "*/report.html")),
    "recorded sessions": Written(_recording, _recordings),
    "a corpus": Written(_corpus, _corpora, step=16_384),
    "a tokenizer": Written(_tokenizer, _tokenizers, step=65_536, disk="4m"),
    "a mid-training and its log": Written(_pretrain, _pretrained, step=65_536, disk="4m"),
    "a bundle of tasks": Written(_bundle, _bundles),
    "tasks out of a bundle": Written(_unpack, _tasks, step=16_384),
    "environments of mined tasks": Written(_environment, _environments, step=16_384),
    "a relay's cache": Written(_keep, _kept),
    "checkpoints for other engines": Written(_hand_over, _handed_over, step=400_000, disk="20m"),
    "a namespace backend's place": Written(_backend, _backends),
    "an agent's worktree": Written(_worktree, lambda at: _numbered(_workspace(at) / "project/.git", "made-*")),
    "a guest's kernel": Written(_kernel, lambda at: _numbered(at, "initial-*")),
}
