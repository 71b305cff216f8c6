"""Whole trees in and out: tar archives as Python's tarfile writes and reads them, and removing."""

import errno
import io
import tarfile

import pytest

from etude.environments.base import ARCHIVE_MAX, SandboxSpec

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "/".join(["directory-" + "x" * 40] * 6)


def tar_of(*members, format=tarfile.PAX_FORMAT):
    """An archive of (name, content), or of ready TarInfo objects."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for member in members:
            info, content = (member, b"") if isinstance(member, tarfile.TarInfo) else (None, member[1])
            if info is None:
                info = tarfile.TarInfo(member[0])
                info.size, info.mtime = len(content), 1_000_000_000
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def entry(name, type, target="", mode=0o755):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = type, target, mode
    return info


@pytest.mark.parametrize("form", FORMATS)
def test_a_tree_goes_in_and_comes_out_the_same(run, form):
    name = LONG if form != "ustar" else LONG[:200]
    members = [
        entry("sub", tarfile.DIRTYPE, mode=0o555),  # closed, and yet its files get in
        ("sub/data", bytes(range(256)) * 300),
        ("sub/empty", b""),
        (f"{name}/deep", b"deep"),
        ("naïve \n name", b"unicode"),
        entry("link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("hard", tarfile.LNKTYPE, "sub/data"),
    ]
    script = entry("run.sh", tarfile.REGTYPE, mode=0o755)
    script.size = 0

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.upload(tar_of(*members, script, format=FORMATS[form]), "/workspace/in/to")
        seen = (await box.exec("cd in/to; stat -c '%a %Y' sub sub/data run.sh; readlink link; cat hard | wc -c")).output
        lines = seen.decode().split("\n")
        assert [line.split()[0] for line in lines[:3]] == ["555", "644", "755"]
        assert lines[1] == "644 1000000000" and lines[3:5] == ["/etc/passwd", "76800"]
        with tarfile.open(fileobj=io.BytesIO(await box.download("/workspace/in/to"))) as out:
            names = out.getnames()
            assert {"link", "hard", "run.sh", "sub/empty", f"{name}/deep"} <= set(names)
            assert [each for each in names if "/" not in each] == sorted(each for each in names if "/" not in each)
            assert out.extractfile("sub/data").read() == members[1][1]
            assert out.extractfile("naïve \n name").read() == b"unicode"
            assert out.getmember("link").linkname == "/etc/passwd" and out.getmember("sub").mode == 0o555
        assert (await box.exec("find in -exec touch -h -d @999999999 {} +")).exit_code == 0
        again = await box.download("/workspace/in/to")
        await box.upload(again, "/tmp/copy")
        assert await box.download("/tmp/copy") == again
        with tarfile.open(fileobj=io.BytesIO(await box.download("/workspace/in/to/sub/data"))) as one:
            assert one.getnames() == ["data"]

    run(scenario)


def test_what_is_in_the_way_is_replaced_and_the_rest_stays(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"old and longer", "kept": b"k", "target": b"t"}))
        await box.exec("ln -s target through")
        await box.upload(tar_of(("a", b"new"), ("through", b"own"), ("./dotted", b".")), "/workspace")
        assert (await box.exec("cat a kept target through dotted")).output == b"newktown."
        with pytest.raises(OSError):  # a file cannot replace a directory
            await box.upload(tar_of(entry("d", tarfile.DIRTYPE), ("d", b"")), "/workspace")

    run(scenario)


SLIPS = {
    "dots": [("../out", b"x")],
    "dots within": [("a/../../out", b"x")],
    "dots at the end": [entry("a/..", tarfile.DIRTYPE)],
    "absolute": [("/tmp/out", b"x")],
    "through a symlink": [entry("s", tarfile.SYMTYPE, "/tmp"), ("s/out", b"x")],
    "through a relative symlink": [entry("s", tarfile.SYMTYPE, "../.."), ("s/tmp/out", b"x")],
    "through a chain": [entry("s", tarfile.SYMTYPE, "t"), entry("t", tarfile.SYMTYPE, ".."), ("s/out", b"x")],
    "through proc": [entry("s", tarfile.SYMTYPE, "/proc/self/root"), ("s/tmp/out", b"x")],
    "hard link": [entry("h", tarfile.LNKTYPE, "../secret")],
    "absolute hard link": [entry("h", tarfile.LNKTYPE, "/tmp/secret")],
    "hard link through": [entry("s", tarfile.SYMTYPE, "/tmp"), entry("h", tarfile.LNKTYPE, "s/secret")],
    "directory through": [entry("s", tarfile.SYMTYPE, "/tmp"), entry("s/out", tarfile.DIRTYPE)],
    "directory over a symlink": [entry("s", tarfile.SYMTYPE, "/tmp"), entry("s", tarfile.DIRTYPE, mode=0o700)],
}


@pytest.mark.parametrize("slip", SLIPS)
def test_no_member_leaves_the_directory(run, slip):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec("echo s > /tmp/secret; mkdir /workspace/in; echo s > secret; stat -c %a /tmp > /tmp/mode")
        with pytest.raises(PermissionError, match="leads outside"):
            await box.upload(tar_of(("first", b"1"), *SLIPS[slip]), "/workspace/in")
        assert (await box.exec("ls -d /tmp/out /workspace/out out /out; cat in/h")).output.count(b"No such file") == 5
        assert (await box.exec("stat -c %a /tmp | cmp - /tmp/mode")).exit_code == 0
        if "symlink" not in slip and "hrough" not in slip:
            assert await box.list_dir("/workspace/in") == []  # seen before anything was written

    run(scenario)


def test_no_symlink_swapped_in_meanwhile_leads_outside(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec(
            "mkdir -p in/d; (while true; do mv in/d x; ln -s /tmp in/d; rm in/d; mv x in/d; done) 2>/dev/null &"
        )
        for _ in range(30):
            try:
                await box.upload(tar_of(*((f"d/{number}", b"x") for number in range(50))), "/workspace/in")
            except OSError:
                continue
        assert (await box.exec("ls /tmp")).output == b""

    run(scenario)


SPOILS = {
    "empty": lambda tar: b"",
    "text": lambda tar: b"no tar at all" * 100,
    "cut in a file": lambda tar: tar[:700],
    "cut between files": lambda tar: tar[: 512 + 1024],
    "damaged header": lambda tar: tar[:1536] + b"?" + tar[1537:],
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_is_no_tar_is_refused_whole(run, spoil):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        with pytest.raises(OSError, match="not a tar") as caught:
            await box.upload(SPOILS[spoil](tar_of(("a", b"1" * 600), ("b", b"2"))), "/workspace/in")
        assert caught.value.errno == errno.EBADMSG
        assert await box.list_dir("/workspace") == []

    run(scenario)


def test_other_members_and_too_much_are_refused(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        for type in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE):
            with pytest.raises(OSError, match="d/x") as caught:
                await box.upload(tar_of(("a", b""), entry("d/x", type)), "/workspace")
            assert caught.value.errno == errno.ENOTSUP and await box.list_dir("/workspace") == []
        with pytest.raises(OSError) as caught:
            await box.upload(bytes(ARCHIVE_MAX + 1), "/workspace")
        assert caught.value.errno == errno.EFBIG
        await box.exec("truncate -s 60M big; mkfifo pipe")
        with pytest.raises(OSError) as caught:
            await box.download("/workspace")
        assert caught.value.errno == errno.EFBIG and caught.value.filename == "/workspace: big"
        await box.remove("/workspace/big")
        with tarfile.open(fileobj=io.BytesIO(await box.download("/workspace"))) as out:
            assert out.getnames() == []  # a FIFO would block, or never end
        with pytest.raises(FileNotFoundError):
            await box.download("/workspace/none")

    run(scenario)


def test_a_full_disk_is_an_error_and_no_more(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        free = int((await box.exec("df -B1 --output=avail /workspace | tail -1")).output)
        await box.exec(f"head -c {free - 1_000_000} /dev/zero > fill")
        with pytest.raises(OSError, match="No space left") as caught:
            await box.upload(tar_of(("small", b"x"), ("large", b"x" * 4_000_000)), "/workspace/in")
        assert caught.value.filename == "/workspace/in: large"
        assert (await box.exec("rm -r fill in; cat in/small")).exit_code == 1

    run(scenario)


def test_remove(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"1", "d/e/f": b"2", "kept/x": b"3"}))
        await box.exec(
            "ln -s kept link; mkdir -p shut/in; touch shut/in/x; ln -s ../../kept shut/in/link; chmod 0 shut/in shut"
        )
        await box.remove("/workspace/a")
        await box.remove("/workspace/link")
        with pytest.raises(OSError) as caught:
            await box.remove("/workspace/d")
        assert caught.value.errno == errno.ENOTEMPTY
        await box.remove("/workspace/d", recursive=True)
        await box.remove("/workspace/shut", recursive=True)
        assert (await box.exec("find . -type f -o -type l")).output == b"./kept/x\n"
        with pytest.raises(FileNotFoundError):
            await box.remove("/workspace/a", recursive=True)
        with pytest.raises(OSError):
            await box.remove("/usr/bin/env")
        await box.exec('python3 -c \'import os\nfor _ in range(600): os.mkdir("deep"); os.chdir("deep")\'')
        await box.remove("/workspace/deep", recursive=True)
        assert [item.name for item in await box.list_dir("/workspace")] == ["kept"]

    run(scenario)
