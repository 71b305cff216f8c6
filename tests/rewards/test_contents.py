"""What is judged is what is laid down, whatever a state is called, and reading it ends; in real sandboxes."""

import io
import json
import os
import random
import sys
import tarfile
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proofs import often

from etude.environments.archive import Archive, StorageFailed, opened, take_out, unpack
from etude.environments.base import WORKSPACE, SandboxSpec
from etude.errors import SandboxSpoiled
from etude.records import InfraFailed, Task
from etude.rewards.audit.state import workspace_of
from etude.rewards.contents import archive_of, contents_of
from etude.rewards.legible import legible
from etude.rewards.verdicts import Verdicts
from etude.rewards.verifier import verify
from etude.tasks.verifiers import calls_verifier

WRONG, RIGHT = b"def add(a, b):\n    return a - b\n", b"def add(a, b):\n    return a + b\n"
TASK = Task("add", "", {"m.py": WRONG}, calls_verifier([("m", "add", [2, 3], 5)], 20.0))
GZIP = b"\x1f\x8b\x08\x04mmmm\x02\x03\xf4\x01n"
"""A name that, at the beginning of a tar, says: gzip, with 500 bytes to pass over. The first file's content follows."""
COMPILED = (
    "python3 -c \"import py_compile; py_compile.compile('/tmp/real.py', '/workspace/real.pyc',"
    ' invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"; echo from real import add > m.py'
)
LIST = """
import hashlib, json, os, stat
found, inodes = {}, {}
for top, directories, files in os.walk(b"/workspace"):
    for name in directories + files:
        path = os.path.join(top, name)
        info = os.lstat(path)
        kind = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}[stat.S_IFMT(info.st_mode)]
        said = open(path, "rb").read().hex() if kind == "file" else ""
        said = os.readlink(path).hex() if kind == "link" else said
        mode = oct(info.st_mode & 0o777) if kind != "link" else ""
        same = inodes.setdefault(info.st_ino, []) if kind == "file" else []
        same.append(path.hex())
        found[path.hex()] = [kind, mode, said, same]
for each in found.values(): each[3].sort()
print(json.dumps(found))
"""


def size_of(archive):
    return sum(len(tar) for _, tar in archive.parts)


def tar_of(*entries, format=tarfile.GNU_FORMAT):
    """Of (name, type, content or target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, encoding="utf-8", errors="surrogateescape") as tar:
        for name, kind, said in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755
            info.size, info.linkname = (len(said), "") if isinstance(said, bytes) else (0, said)
            tar.addfile(info, io.BytesIO(said if isinstance(said, bytes) else b""))
    return out.getvalue()


def two_faced(shown):
    """The content of a file of the name GZIP, as tarfile would read it in place of what is there."""
    tar = tar_of(*((name, tarfile.REGTYPE, data) for name, data in shown.items())) + bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(tar) + packer.flush()
    return packed + zlib.crc32(tar).to_bytes(4, "little") + len(tar).to_bytes(4, "little")


async def left(backend, command, shown=None):
    """What a session left that ran this and shows something else."""
    box = await backend.create(SandboxSpec(files={"m.py": WRONG}))
    await box.write_file("/tmp/real.py", RIGHT)
    assert (await box.exec(command)).exit_code == 0
    if shown is not None:
        await box.write_file(WORKSPACE + "/" + GZIP.decode("utf-8", "surrogateescape"), two_faced(shown))
    state = await take_out(box)
    await box.destroy()
    return state


# --- one reading ------------------------------------------------------------------------------------------------------


def test_a_state_that_looks_compressed_is_read_as_it_is(run):
    async def scenario(backend):
        state = await left(backend, COMPILED, {"m.py": RIGHT})
        assert workspace_of(state).files["m.py"] == b"from real import add\n"
        verdict = await verify(TASK, state, backend)
        assert (verdict.reward, verdict.stripped) == (0.0, ("real.pyc",))

    run(scenario)


def test_nobody_teaches_the_verdicts_another_state_than_his_own(run):
    async def scenario(backend):
        kept = Verdicts(10)
        for _ in range(2):
            state = await left(backend, "cp /tmp/real.py m.py", {"m.py": WRONG})
            assert (await verify(TASK, state, backend, verdicts=kept)).reward == 1.0
        nothing_done = await verify(TASK, await left(backend, "true"), backend, verdicts=kept)
        assert (nothing_done.reward, nothing_done.known) == (0.0, False)

    run(scenario)


NAMES = [
    GZIP, b"\x1f\x8b\x08\x08zzz", b"BZh91AY&SY", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"././@LongLink",
    b"a", b"b", b"a\nb", b" a ", b"a\\b", b"\xff\xfe", b"\xed\xa0\x80", "\u0085é\u202e".encode(), b"x" * 100,
    b"y" * 101, b"z" * 250, b"...", b".a", b"-", b"ustar", b"PaxHeader", b"11 path=b", b"\x80\x01", b"d/b",
]  # fmt: skip
MAKE = """
import os, sys
for kind, name, said in {entries!r}:
    path = os.path.join(b"/workspace", name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if kind == "file":
            with open(path, "wb") as file: file.write(said)
        elif kind == "directory": os.mkdir(path)
        elif kind == "hard": os.link(os.path.join(b"/workspace", said), path, follow_symlinks=False)
        else: os.symlink(said, path)
        if kind in ("file", "directory"): os.chmod(path, {modes}[len(name) % 3])
    except OSError: pass
"""


def on_disk(contents):
    """What LIST would say of them. Links have no further names: packing makes each a link of its own."""
    found, names = {}, {}
    for path, entry in contents.items():
        kind = "link" if entry.target is not None else "directory" if entry.data is None else "file"
        said = os.fsencode(entry.target or "") if kind == "link" else entry.data or b""
        same = names.setdefault(entry, []) if kind == "file" else []
        same.append(os.fsencode(path).hex())
        mode = "" if kind == "link" else oct(entry.member.mode & 0o777)
        found[os.fsencode(path).hex()] = [kind, mode, said.hex(), same]
    for each in found.values():
        each[3].sort()
    return found


async def listed(box):
    await box.write_file("/tmp/list.py", LIST.encode())
    return json.loads((await box.exec("python3 /tmp/list.py", timeout_s=30, max_output_bytes=1 << 24)).output)


def test_what_is_read_is_what_the_verifier_gets_whatever_its_names(run):
    seed = os.getpid()
    chance = random.Random(seed)

    async def scenario(backend):
        made, judged = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
        for _ in range(often(12, 60)):
            entries = [("file", GZIP, two_faced({"m.py": RIGHT}))] * chance.randrange(2)
            for _ in range(chance.randrange(1, 14)):
                name = b"/".join(chance.choice(NAMES) for _ in range(chance.randrange(1, 4)))
                kind = chance.choice(("file", "file", "directory", "hard", "symbolic"))
                said = chance.choice(entries)[1] if entries and kind == "hard" else chance.choice(NAMES)
                if kind == "file":
                    said = chance.choice((b"", said, two_faced({"m.py": RIGHT}), tar_of(("q", tarfile.REGTYPE, b"q"))))
                entries.append((kind, name, said))
            await unpack(Archive(), made)
            program = MAKE.format(entries=entries, modes=(0o744, 0o755, 0o700))
            await made.write_file("/tmp/make.py", program.encode())
            assert (await made.exec("python3 /tmp/make.py")).exit_code == 0
            there, state = await listed(made), await take_out(made)
            read = legible({}, state)
            assert on_disk(contents_of(state)) == there, (seed, entries)
            await unpack(read.state, judged)
            assert await listed(judged) == on_disk(contents_of(read.state)), (seed, entries)
            stripped = {f"{WORKSPACE}/{path}" for path in read.stripped}
            kept = [path for path in contents_of(state) if path not in stripped]
            assert [path for path in kept if path not in contents_of(read.state)] == [], (seed, entries)

    run(scenario, deadline_s=200)


KINDS = [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
ODD = st.sampled_from(["a", "./a", "a/", "a//b", "a/./b", "a/b", "b", "c", "../a", "/a", ".", "", "x" * 100, "a\x00b"])
ENTRIES = st.tuples(ODD, st.sampled_from(KINDS), st.one_of(ODD, st.binary(max_size=9)))


@given(
    st.lists(st.lists(ENTRIES, max_size=5), min_size=1, max_size=2),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
    st.binary(max_size=9),
)
def test_what_could_be_read_in_two_ways_is_refused(parts, form, behind):
    """Of archives that nobody's guest makes, too: duplicates, odd kinds, names with two spellings."""
    raw = Archive(parts=tuple((WORKSPACE, tar_of(*entries, format=form) + behind) for entries in parts))
    try:
        contents = contents_of(raw)
    except (SandboxSpoiled, StorageFailed):
        return
    again = archive_of(raw.places, contents)
    assert on_disk(contents_of(again)) == on_disk(contents) and len(contents_of(again)) == len(contents)
    assert archive_of(raw.places, contents_of(again)) == again


@given(st.lists(ENTRIES, max_size=4), st.integers(0, 9000), st.binary(min_size=1, max_size=600))
def test_no_bytes_are_read_as_another_archive_or_break_the_reader(entries, at, damage):
    tar = tar_of(*entries)
    with suppress(SandboxSpoiled, StorageFailed):
        contents_of(Archive(parts=((WORKSPACE, tar[:at] + damage + tar[at + len(damage) :]),)))


REFUSED = {
    "out": [("../a", tarfile.REGTYPE, b"")],
    "from the root": [("/etc/a", tarfile.REGTYPE, b"")],
    "a pipe": [("a", tarfile.FIFOTYPE, b"")],
    "below a file": [("a", tarfile.REGTYPE, b""), ("a/b/c", tarfile.REGTYPE, b"")],
    "through a link": [("a", tarfile.SYMTYPE, "b"), ("b", tarfile.DIRTYPE, ""), ("a/c", tarfile.REGTYPE, b"")],
    "file and directory": [("a", tarfile.REGTYPE, b""), ("a", tarfile.DIRTYPE, "")],
    "a link to nothing": [("a", tarfile.LNKTYPE, "b")],
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_laid_down_is_held_against_the_state(run, why):
    state = Archive(parts=((WORKSPACE, tar_of(*REFUSED[why])),))

    async def scenario(backend):
        verdict = await verify(TASK, state, backend)
        assert (verdict.reward, verdict.reason) == (0.0, "blocked")

    run(scenario)


def test_a_torn_archive_is_ours_wherever_it_is_torn(run):
    whole = tar_of(("a", tarfile.REGTYPE, b"a" * 700), ("b", tarfile.REGTYPE, b"b"))
    torn = [whole[:at] for at in (0, 100, 512, 1300, 1536, 2048)] + [whole[:1536] + b"?" + whole[1537:]]

    async def scenario(backend):
        for data in torn:
            assert isinstance(await verify(TASK, Archive(parts=((WORKSPACE, data),)), backend), InfraFailed)

    run(scenario)
    assert opened(whole).getnames() == ["a", "b"]


# --- reading ends -----------------------------------------------------------------------------------------------------


def linked(names, data):
    """A file of many names."""
    entries = [("0", tarfile.REGTYPE, data), *((f"n{each}.py", tarfile.LNKTYPE, "0") for each in range(names))]
    return Archive(parts=((WORKSPACE, tar_of(*entries)),))


def test_a_file_of_many_names_is_read_in_a_few_steps_for_each():
    """Each was looked for among all the others."""

    def steps(names):
        state, count = linked(names, b"x = 1\n"), 0

        def called(*_):
            nonlocal count
            count += 1

        sys.setprofile(called)
        read = legible({}, state)
        left = workspace_of(read.state)
        sys.setprofile(None)
        assert read.stripped == () and len(left.files) == names + 1
        assert size_of(read.state) <= size_of(state)
        return count

    assert steps(1600) < 5 * steps(400)


def test_names_that_show_far_more_than_the_archive_holds_are_refused(run):
    async def scenario(backend):
        verdict = await verify(TASK, linked(40, bytes(8 << 20)), backend)
        assert (verdict.reward, verdict.reason) == (0.0, "blocked") and "hard links" in verdict.detail
        assert not isinstance(await verify(TASK, linked(3, bytes(8 << 20)), backend), InfraFailed)

    run(scenario)


def test_a_name_survives_the_first_of_its_file():
    state = Archive(
        parts=((WORKSPACE, tar_of(("__pycache__/a", tarfile.REGTYPE, b"a"), ("b", tarfile.LNKTYPE, "__pycache__/a"))),)
    )
    read = legible({}, state)
    assert (read.stripped, workspace_of(read.state).files) == (("__pycache__/a",), {"b": b"a"})
