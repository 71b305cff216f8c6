"""Trajectories of an archive in formats that others read.

    atif       a directory, with a file a trajectory, as Harbor has it (`harness.atif`)
    jsonl      a line a trajectory: its row, task, segments, events, files, verifier, and a column a token
    parquet    a row a trajectory, the columns of tokens as lists; events and files as JSON

Owns `FORMATS` and `export`. A column of tokens has one entry a token, in the order of the segments: null where there is
nothing (no log-probability of what was not sampled, no advantage of what was not trained on). Holds one page of
trajectories at a time. What is there already stays until the whole of it is written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from etude import __version__
from etude.archive.archived import Archived
from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader
from etude.archive.records import MASKS, FileChange, Tokens
from etude.durable import write_whole
from etude.errors import ConfigError, MissingDependency
from etude.extras import install_command
from etude.harness.atif import encoded, trajectory

BATCH = 64
"""Trajectories that are held at once for a row group of Parquet."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    trajectories: int
    bytes: int


def export(reader: ArchiveReader, chosen: Filter, form: str, out: Path) -> Exported:
    """Write those that were chosen, in the order in which they were kept. Raises ConfigError for an unknown format and
    where there is nothing to write, MissingDependency where a format's library is not installed.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format {form}: there are {', '.join(FORMATS)}")
    reader.refresh(wait=True)
    if not (count := reader.count(chosen)):
        raise ConfigError(f"{reader.run}: its archive has no trajectory that the filter lets through")
    size = FORMATS[form](_chosen(reader, chosen), out)
    return Exported(count, size)


def _chosen(reader: ArchiveReader, chosen: Filter) -> Iterator[Archived]:
    for row in reader.every(chosen):
        if (found := reader.trajectory(row.id)) is not None:
            yield found


# --- the formats ------------------------------------------------------------------------------------------------------


def _to_atif(found: Iterator[Archived], out: Path) -> int:
    """A directory; one that is not there yet, or that an earlier export has made."""
    if out.exists() and (not out.is_dir() or any(path.suffix != ".json" for path in out.iterdir())):
        raise ConfigError(f"--out {out}: a directory is written, a file a trajectory; name one that is not there yet")
    partial, size = out.with_name(f"{out.name}.partial"), 0
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for each in found:
        whole = trajectory(each.log(), __version__)
        row = each.row
        told = {"outcome": row.outcome, "reward": row.reward, "solved": row.solved, "step": row.step}
        whole["extra"] = {**whole["extra"], "task": row.task_id, "group": row.group_id, **_without_none(told)}
        data = encoded(whole)
        (partial / f"{row.id.replace('/', '~')}.json").write_bytes(data)
        size += len(data)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return size


def _to_jsonl(found: Iterator[Archived], out: Path) -> int:
    def write(file: BinaryIO) -> None:
        for each in found:
            told = _told(each)
            columns = {name: _listed(column) for name, column in _columns(each).items()}
            file.write(json.dumps({**told, **columns}, default=str).encode() + b"\n")

    return _written(out, write)


def _to_parquet(found: Iterator[Archived], out: Path) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"--format parquet: {error.name} is not installed: {install_command('parquet')}"
        ) from None
    types = {
        "token_ids": pa.list_(pa.int32()), "sampled": pa.list_(pa.bool_()), "versions": pa.list_(pa.int32()),
        "mask": pa.list_(pa.string()), "tools": pa.list_(pa.string()),
        **dict.fromkeys(("logprobs", "advantages", "trainer_logprobs", "entropies"), pa.list_(pa.float32())),
        **dict.fromkeys(_WHOLE, pa.int64()), **dict.fromkeys(_NUMBERS, pa.float64()), "solved": pa.bool_(),
    }  # fmt: skip

    def flat(each: Archived) -> dict[str, Any]:
        told = {name: value if name in types else _text(value) for name, value in _told(each).items()}
        return told | {name: _listed(column) for name, column in _columns(each).items()}

    def write(file: BinaryIO) -> None:
        schema = pa.schema([(name, types.get(name, pa.string())) for name in _NAMES])
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in _batches(found):
                writer.write_table(pa.Table.from_pylist(list(map(flat, batch)), schema))

    return _written(out, write)


FORMATS: dict[str, Callable[[Iterator[Archived], Path], int]] = {
    "atif": _to_atif, "jsonl": _to_jsonl, "parquet": _to_parquet,
}  # fmt: skip
_WHOLE = (
    "step", "turns", "calls", "sampled_tokens", "total_tokens", "oldest_version", "newest_version", "trained_tokens",
)  # fmt: skip
_NUMBERS = ("reward", "begun_at", "ended_at", "seconds")
_ROW = (
    "id", "phase", "group_id", "task_id", "step", "outcome", "reward", "solved", "parts", "turns", "calls",
    "sampled_tokens", "total_tokens", "oldest_version", "newest_version", "worker", "begun_at", "ended_at", "seconds",
    "tools", "limit", "trained_tokens", "dropped",
)  # fmt: skip
_BESIDE = ("task", "evidence", "findings", "usage", "conduct", "environment", "segments", "events", "files", "verifier")
_OF_TOKENS = ("token_ids", "sampled", "logprobs", "versions", "advantages", "trainer_logprobs", "entropies", "mask")
_NAMES = (*_ROW, *_BESIDE, *_OF_TOKENS)
_ABOUT = ("evidence", "findings", "usage", "conduct", "environment")


# --- one trajectory ---------------------------------------------------------------------------------------------------


def _told(each: Archived) -> dict[str, Any]:
    """All of it but its tokens."""
    row, about = asdict(each.row), each.about
    return {
        **{name: row[name] for name in _ROW},
        "task": None if each.task is None else asdict(each.task),
        **{name: about[name] for name in _ABOUT},
        "segments": [asdict(segment) for segment in each.tokens.segments],
        "events": [
            {"kind": said.event.kind, "at": said.event.at, **said.event.data, "tokens_at": said.tokens}
            for said in each.said
        ],
        "files": [_file(change) for change in each.files],
        "verifier": each.verifier,
    }


def _columns(each: Archived) -> dict[str, np.ma.MaskedArray]:
    """The columns of its tokens, masked where there is nothing."""
    tokens, marks = each.tokens, each.marks
    where = ~tokens.sampled
    found = {
        "token_ids": np.ma.array(tokens.token_ids),
        "sampled": np.ma.array(tokens.sampled),
        "logprobs": np.ma.array(tokens.logprobs, mask=where),
        "versions": np.ma.array(tokens.versions, mask=where),
    }
    if marks is None:
        return found
    of_marks = {
        "advantages": marks.advantages, "trainer_logprobs": marks.trainer_logprobs, "entropies": marks.entropies,
    }  # fmt: skip
    found |= {name: _spread(column, tokens) for name, column in of_marks.items()}
    names = np.array(MASKS, dtype=object)[marks.mask]
    return {**found, "mask": _spread(names, tokens)}


def _spread(column: np.ndarray, tokens: Tokens) -> np.ma.MaskedArray:
    """What is aligned with sampled tokens as a column of all; NaN is nothing too."""
    whole = np.ma.masked_all(len(tokens.token_ids), dtype=column.dtype)
    whole[tokens.sampled] = column
    return np.ma.masked_invalid(whole) if column.dtype.kind == "f" else whole


def _listed(column: np.ma.MaskedArray) -> list[Any]:
    return column.tolist()


def _file(change: FileChange) -> dict[str, Any]:
    """Contents as text; of what is no text, only that it is there."""
    sides = {"before": change.before, "after": change.after}
    binary = any(b"\0" in side for side in sides.values() if side is not None)
    told = {name: None if side is None or binary else side.decode("utf-8", "replace") for name, side in sides.items()}
    there = {f"{name}_bytes": None if side is None else len(side) for name, side in sides.items()}
    return {"path": change.path, **told, **there, "binary": binary, "cut": change.cut}


def _text(value: Any) -> str | None:
    """As Parquet has it: what is no text as JSON, and no lone surrogate."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode("utf-8", "replace").decode()


def _batches(found: Iterator[Archived]) -> Iterator[list[Archived]]:
    batch: list[Archived] = []
    for each in found:
        batch.append(each)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _written(out: Path, write: Callable[[BinaryIO], object]) -> int:
    if out.is_dir():
        raise ConfigError(f"--out {out}: is a directory; name a file")
    try:
        write_whole(out.resolve(), write)
    except FileNotFoundError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from None
    return out.stat().st_size


def _without_none(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}
