"""What a store holds, for people: the log of versions, one version's tensors, and a check of the whole chain.

Owns no state and changes nothing. Each function returns plain data, and its `format_*` the text that a terminal shows.
Talks to: chain, pins, delta.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from etude.errors import WeightError
from etude.records import Version
from etude.weights.chain import ANCHOR, MANIFEST, Chain, merged_parent, steps_of
from etude.weights.delta import Held, apply_delta, copy_bits, memory_bytes, zeros_for
from etude.weights.manifest import Delta, root_of
from etude.weights.paths import Listing
from etude.weights.pins import Pin, Pins
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
    pins: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorLine:
    """One tensor of a version: what changed in it, and what its chunks are coded with."""

    name: str
    dtype: str
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
    listing = chain.listing()
    pins: dict[Version, list[str]] = {}
    for pin in Pins(chain).live():
        pins.setdefault(pin.version, []).append(pin.name)
    return [
        _line(chain.manifest(version), listing[version], pins.get(version, ())) for version in _visible(chain, listing)
    ]


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
        tensors.append(TensorLine(tensor.name, tensor.dtype, tensor.shape, share, size, used, tensor.hash))
    signer = chain.signer(version)
    line = _line(delta, chain.listing()[version])
    return VersionDetail(line, delta.chain, name_of(signer) if signer else None, tuple(tensors))


def verify(store: Store, keys: Keys | None = None) -> VerifyReport:
    """Make every version again from the store, over every delta and every anchor, and check all hashes and roots.

    Damage is reported; WeightError is raised only if there is no version at all. Holds the versions that merged deltas
    still to come start from, besides the last.
    """
    chain = Chain(store, keys)
    listing = chain.listing()
    visible = _visible(chain, listing)
    steps = {version: found for version, names in listing.items() if (found := steps_of(names))}
    bases = ((merged_parent(name), version) for version, names in steps.items() for name in names)
    last_use = {base: version for base, version in bases if base is not None}
    states: dict[Version, Held] = {}
    report = _Verified()
    for version, names in steps.items():
        made = _Making(chain, states).make(version, names, report)
        states = {base: held for base, held in states.items() if last_use.get(base, base) > version}
        if made is not None:
            states[version] = made
    for pin in Pins(chain).live():
        if pin.version not in visible and not pin.is_lease:
            report.problems.append(f"{store.url}: version {pin.version} is pinned ({pin.name}) and not there")
    return VerifyReport(len(visible), report.anchors, report.merged, report.payload_bytes, tuple(report.problems))


def format_log(lines: Sequence[VersionLine]) -> str:
    header = ("version", "parent", "stored", "ratio", "changed", "bits/change", "extra", "root", "pins")
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
            " ".join(line.pins),
        )
        for line in lines
    ]
    stored = sum(line.stored_bytes + line.extra_bytes for line in lines)
    raw = sum(line.raw_bytes for line in lines)
    smaller = f"{raw / max(1, stored):.1f}x smaller than copies"
    foot = f"{len(lines)} versions in {_size(stored)}, anchors and merged deltas included; {smaller}"
    return f"{_table(header, rows)}\n{foot}"


def format_inspect(detail: VersionDetail) -> str:
    header = ("tensor", "form", "shape", "changed", "payload", "codec", "hash")
    rows = [
        (
            tensor.name,
            tensor.dtype,
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


def format_pins(pins: Sequence[Pin]) -> str:
    header = ("version", "pin", "until", "why")
    rows = [(str(pin.version), pin.name, _date(pin.until), pin.why) for pin in pins]
    return _table(header, rows) if pins else "nothing is pinned"


def format_verify(report: VerifyReport) -> str:
    counts = f"{report.versions} versions, {report.anchors} full copies, {report.merged} merged deltas"
    made = f"{counts}, {_size(report.payload_bytes)} of payloads"
    if report.ok:
        return f"ok: {made}; every tensor and root as published"
    return "\n".join(
        [f"{len(report.problems)} problems in {made}:", *(f"  - {problem}" for problem in report.problems)]
    )


def _visible(chain: Chain, listing: Listing) -> list[Version]:
    found = [version for version, names in listing.items() if MANIFEST in names]
    if not found:
        raise WeightError(f"{chain.store.url} holds no version yet; publish one, or check the URL")
    return found


def _line(delta: Delta, names: Mapping[str, int], pins: Iterable[str] = ()) -> VersionLine:
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
        pins=tuple(pins),
    )


@dataclass
class _Verified:
    """What `verify` has counted and found so far."""

    anchors: int = 0
    merged: int = 0
    payload_bytes: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Making:
    """Makes one version in every way the store has for it, from the `states` of earlier ones."""

    chain: Chain
    states: Mapping[Version, Held]

    def make(self, version: Version, names: Sequence[str], report: _Verified) -> Held | None:
        """The version, if any way led to it. Ways from a version that retention thinned out are not there to take."""
        made, waiting = None, ""
        for name in names:
            try:
                delta = self.chain.manifest(version, name)
                base = self.states.get(Version(-1 if delta.parent is None else delta.parent))
                if delta.parent is not None and base is None:
                    self.chain.payloads(delta)
                    waiting = f"version {version} starts from version {delta.parent}, which could not be made"
                    continue
                held = self._apply(delta, base)
                if made is not None and held.root != made.root:
                    raise WeightError(f"version {version}: a delta or anchor stored beside its own has another root")
            except WeightError as error:
                report.problems.append(str(error))
                waiting = ""
                continue
            made = held
            report.anchors += delta.parent is None
            report.merged += name not in (MANIFEST, ANCHOR)
            report.payload_bytes += delta.payload_bytes
        if made is None and waiting:
            report.problems.append(waiting)
        return made

    def _apply(self, delta: Delta, base: Held | None) -> Held:
        """The state after `delta`, in arrays of its own. Raises WeightError."""
        if base is None:
            bits = zeros_for(delta, memory_bytes())
        elif base.root != delta.parent_root:
            raise WeightError(
                f"version {delta.version} starts from version {delta.parent}, whose stored root is another"
            )
        else:
            bits = copy_bits(base.bits)
        apply_delta(delta, self.chain.payloads(delta), bits)
        if root_of(bits) != delta.root:
            raise WeightError(f"version {delta.version}: the result does not have the root {delta.root}")
        return Held(Version(delta.version), delta.root, bits)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _date(seconds: float | None) -> str:
    return "let go" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
