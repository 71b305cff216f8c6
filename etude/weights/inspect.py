"""What a store holds, for people: the log of versions, one version's tensors, and a check of the whole chain.

Owns no state and changes nothing. Each function returns plain data, and its `format_*` the text that a terminal shows.
Talks to: chain, delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from etude.errors import WeightError
from etude.records import Version
from etude.weights.chain import ANCHOR, MANIFEST, Chain, merged_parent
from etude.weights.delta import Held, apply_delta, copy_bits, zeros_for
from etude.weights.manifest import Delta, root_of
from etude.weights.signing import Keys, name_of
from etude.weights.store import Store


@dataclass(frozen=True)
class VersionLine:
    """One version. `stored_bytes` are pack and manifest together, `ratio` is raw over stored bytes; `extra_bytes` are
    those of an anchor and of merged deltas beside it.
    """

    version: Version
    parent: Version | None
    root: str
    raw_bytes: int
    payload_bytes: int
    stored_bytes: int
    extra_bytes: int
    changed_share: float
    bits_per_change: float
    ratio: float


@dataclass(frozen=True)
class TensorLine:
    name: str
    shape: tuple[int, ...]
    changed_share: float
    payload_bytes: int
    codecs: tuple[str, ...]
    hash: str


@dataclass(frozen=True)
class VersionDetail:
    line: VersionLine
    chain: str
    signer: str | None
    """The key that the manifest says signed it; checked if keys were given to trust."""
    tensors: tuple[TensorLine, ...]


@dataclass(frozen=True)
class VerifyReport:
    """`problems` is empty exactly if every version's bits were made again from the store and had their root."""

    versions: int
    anchors: int
    merged: int
    payload_bytes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def log(store: Store, keys: Keys | None = None) -> list[VersionLine]:
    """Every visible version, oldest first. Raises WeightError on a damaged manifest, or if there is no version."""
    chain = Chain(store, keys)
    return [_line(chain.manifest(version), names) for version, names in _visible(chain).items()]


def inspect(store: Store, version: Version, keys: Keys | None = None) -> VersionDetail:
    """One version and what changed in each of its tensors. Raises WeightError if it is missing or damaged."""
    chain = Chain(store, keys)
    delta = chain.manifest(version)
    tensors = []
    for tensor in delta.tensors:
        changed = sum(chunk.changed for chunk in tensor.chunks)
        size = sum(chunk.size for chunk in tensor.chunks)
        used = tuple(sorted({chunk.codec for chunk in tensor.chunks}))
        share = changed / max(1, tensor.elements)
        tensors.append(TensorLine(tensor.name, tensor.shape, share, size, used, tensor.hash))
    signer = chain.signer(version)
    line = _line(delta, chain.listing()[version])
    return VersionDetail(line, delta.chain, name_of(signer) if signer else None, tuple(tensors))


def verify(store: Store, keys: Keys | None = None, max_raw_bytes: int = 64 << 30) -> VerifyReport:
    """Make every version again from the store, over every delta and every anchor, and check all hashes and roots.

    Damage is reported; WeightError is raised only if there is no version at all. Holds the versions that merged deltas
    still to come start from, besides the last.
    """
    chain, held = Chain(store, keys), None
    problems: list[str] = []
    anchors = merged = payload_bytes = 0
    visible = _visible(chain)
    last_use = {parent: version for version, names in visible.items() for _, parent in _merged(names)}
    bases: dict[Version, Held] = {}
    for version, names in visible.items():
        try:
            delta = chain.manifest(version)
            anchor = chain.manifest(version, ANCHOR) if ANCHOR in names else None
            strides = [chain.manifest(version, name) for name, parent in _merged(names) if parent in bases]
            made = [_apply(chain, anchor, None, max_raw_bytes)] if anchor else []
            follows = held is not None and held.version == delta.parent  # not the oldest that retention has kept
            if delta.parent is None or follows or anchor is None:
                made.append(_apply(chain, delta, held if follows else None, max_raw_bytes))
            made += [_apply(chain, stride, bases[Version(stride.parent or 0)], max_raw_bytes) for stride in strides]
            held = made[0]
            if any(one.root != delta.root for one in made):
                raise WeightError(f"version {version}: a delta or anchor stored beside its own has another root")
        except WeightError as error:
            problems.append(str(error))
            held = None
            continue
        bases = {parent: base for parent, base in bases.items() if last_use[parent] > version}
        if version in last_use:
            bases[version] = held
        anchors += sum(one.parent is None for one in (anchor, delta) if one)
        merged += len(strides)
        payload_bytes += sum(one.payload_bytes for one in [delta, anchor, *strides] if one)
    return VerifyReport(len(visible), anchors, merged, payload_bytes, tuple(problems))


def format_log(lines: Sequence[VersionLine]) -> str:
    header = ("version", "parent", "stored", "ratio", "changed", "bits/change", "extra", "root")
    rows = [
        (
            str(line.version),
            "full" if line.parent is None else str(line.parent),
            _size(line.stored_bytes),
            f"{line.ratio:.1f}x",
            f"{100 * line.changed_share:.2f}%",
            f"{line.bits_per_change:.1f}",
            _size(line.extra_bytes) if line.extra_bytes else "-",
            line.root[:12],
        )
        for line in lines
    ]
    stored = sum(line.stored_bytes + line.extra_bytes for line in lines)
    raw = sum(line.raw_bytes for line in lines)
    smaller = f"{raw / max(1, stored):.1f}x smaller than copies"
    foot = f"{len(lines)} versions in {_size(stored)}, anchors and merged deltas included; {smaller}"
    return f"{_table(header, rows)}\n{foot}"


def format_inspect(detail: VersionDetail) -> str:
    header = ("tensor", "shape", "changed", "payload", "codec", "hash")
    rows = [
        (
            tensor.name,
            "x".join(map(str, tensor.shape)),
            f"{100 * tensor.changed_share:.2f}%",
            _size(tensor.payload_bytes),
            "+".join(tensor.codecs),
            tensor.hash[:12],
        )
        for tensor in detail.tensors
    ]
    signed = f"signed by {detail.signer}" if detail.signer else "not signed"
    return f"{format_log([detail.line])}\nchain {detail.chain}, {signed}\n\n{_table(header, rows)}"


def format_verify(report: VerifyReport) -> str:
    counts = f"{report.versions} versions, {report.anchors} full copies, {report.merged} merged deltas"
    made = f"{counts}, {_size(report.payload_bytes)} of payloads"
    if report.ok:
        return f"ok: {made}; every tensor and root as published"
    return "\n".join(
        [f"{len(report.problems)} problems in {made}:", *(f"  - {problem}" for problem in report.problems)]
    )


def _visible(chain: Chain) -> dict[Version, dict[str, int]]:
    found = {version: names for version, names in chain.listing().items() if MANIFEST in names}
    if not found:
        raise WeightError(f"{chain.store.url} holds no version yet; publish one, or check the URL")
    return found


def _merged(names: Iterable[str]) -> list[tuple[str, Version]]:
    """The names of merged deltas among these, each with the version it starts from."""
    return [(name, parent) for name in names if (parent := merged_parent(name)) is not None]


def _line(delta: Delta, names: dict[str, int]) -> VersionLine:
    own = {MANIFEST, *(f"{pack.hash}.pack" for pack in delta.packs)}
    stored = names[MANIFEST] + delta.payload_bytes
    return VersionLine(
        version=Version(delta.version),
        parent=None if delta.parent is None else Version(delta.parent),
        root=delta.root,
        raw_bytes=delta.raw_bytes,
        payload_bytes=delta.payload_bytes,
        stored_bytes=stored,
        extra_bytes=sum(size for name, size in names.items() if name not in own),
        changed_share=delta.changed_share,
        bits_per_change=8 * delta.payload_bytes / delta.changed if delta.changed else 0.0,
        ratio=delta.raw_bytes / stored,
    )


def _apply(chain: Chain, delta: Delta, held: Held | None, max_raw_bytes: int) -> Held:
    """The state after `delta`, in arrays of its own. Raises WeightError."""
    if delta.parent is None:
        bits = zeros_for(delta, max_raw_bytes)
    elif held is None or held.root != delta.parent_root:
        why = "which could not be made" if held is None else "whose stored root is another"
        raise WeightError(f"version {delta.version} starts from version {delta.parent}, {why}")
    else:
        bits = copy_bits(held.bits)
    apply_delta(delta, chain.payloads(delta), bits)
    if root_of(bits) != delta.root:
        raise WeightError(f"version {delta.version}: the result does not have the root {delta.root}")
    return Held(Version(delta.version), delta.root, bits)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
