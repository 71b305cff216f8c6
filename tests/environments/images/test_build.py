"""Building from Dockerfiles: real steps in real sandboxes, on a root file system of one program."""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from own_leftovers import left

from etude.environments.base import SandboxSpec
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.images.build import BuildConfig, build_image
from etude.environments.images.dockerfile import DockerfileError
from etude.environments.images.mounts import Mounts
from etude.environments.images.tree import digest_tree
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.store import sweep
from etude.errors import BuildError, ConfigError, DeadlineExceeded

CONFIG = BuildConfig(memory_mb=256, disk_mb=64, pids=64, cpus=1.0, step_timeout_s=20)


@pytest.fixture
def build(busybox, tmp_path):
    """Build a Dockerfile with these files beside it; `look` is run in a sandbox on it, and its output returned."""
    context = tmp_path / "context"
    context.mkdir()

    def builder(text, files=(), look=None, config=CONFIG, **options):
        for path, content in dict(files).items():
            (context / path).parent.mkdir(parents=True, exist_ok=True)
            (context / path).write_bytes(content.encode() if isinstance(content, str) else content)
        (context / "Dockerfile").write_text(text)

        async def whole():
            backend = NamespaceBackend(NamespaceConfig(images=busybox.config))
            try:
                async with asyncio.timeout(60):
                    built = await build_image(busybox, backend, context, config=config, name="built", **options)
                    if look is None:
                        return built
                    box = await backend.create(SandboxSpec(image="built"))
                    done = await box.exec(look)
                    assert done.exit_code == 0, done.output
                    return done.output.decode()
            finally:
                await backend.close()

        try:
            return asyncio.run(whole())
        finally:
            assert left() == []
            assert list((busybox.root / "new").iterdir()) == []

    builder.context = context
    return builder


def test_the_steps_of_a_task(build):
    text = """
    FROM busybox
    ARG WHO=world
    ENV GREETING="hello $WHO" DIR=/app
    WORKDIR $DIR
    COPY src/ ./
    COPY --chown=agent:staff --chmod=640 one.txt /data/renamed
    RUN echo "$GREETING" > said && \\
        # a comment
        mkdir -p /opt/x && chown 33:44 /opt/x && ls >> said
    RUN ["/bin/sh", "-c", "echo $0 \\"$WHO\\" >> said", "exec"]
    LABEL a=b
    EXPOSE 80 53/udp
    USER agent
    CMD ["run", "it"]
    """
    look = "cat said; stat -c '%n %a %u %g' /data/renamed /opt/x /app /; id -u; stat -c '%a %u' /app/tool"
    files = {"src/a.py": "a", "src/tool": "#!", "one.txt": "1"}
    (build.context / "src").mkdir()
    (build.context / "src" / "tool").write_text("")
    os.chmod(build.context / "src" / "tool", 0o755)
    os.chown(build.context / "src" / "tool", 12, 12)
    output = build(text, files, look)
    assert output == (
        "hello world\na.py\nsaid\ntool\nexec world\n/data/renamed 640 1000 65534\n/opt/x 755 65534 65534\n"
        "/app 755 1000 1001\n/ 755 65534 65534\n1000\n755 65534\n"
    )  # an agent sees owners other than itself as nobody; the workspace itself is its own


def test_what_is_said_of_the_image(build):
    built = build(
        'FROM busybox\nENV A=1 B="x y"\nWORKDIR /w\nWORKDIR sub\nLABEL l=1 m="2 3"\nEXPOSE 80 53/udp\n'
        'USER agent:staff\nENTRYPOINT ["e"]\nSHELL ["/bin/sh", "-ec"]\nCMD go $A\n'
    ).image
    assert built.env == {"PATH": "/bin", "A": "1", "B": "x y"}
    assert (built.workdir, built.workspace) == ("/w/sub", "/w/sub")
    assert (built.user, built.uid, built.gid) == ("agent:staff", 1000, 50)
    described = built.described
    assert described.labels == (("l", "1"), ("m", "2 3")) and described.exposed == ("80/tcp", "53/udp")
    assert described.entrypoint == ("e",) and described.cmd == ("/bin/sh", "-ec", "go $A")


def test_owners_and_deletions_are_the_images_own(build, busybox):
    build("FROM busybox\nRUN rm -r /usr /etc/group && echo x > /new && chown 7:9 /new && ln /new /twin\n")
    (layer,) = (busybox.root / "layers").iterdir()
    assert (layer / "new").stat().st_uid == 7 and (layer / "new").stat().st_gid == 9
    assert (layer / "new").stat().st_ino == (layer / "twin").stat().st_ino
    assert layer.stat().st_uid == 0
    output = build("FROM built\nUSER 7\n", look="ls -d /usr /etc/group 2>/dev/null || stat -c '%u %h' /new")
    assert output == "7 2\n"


def test_the_artefact_holds_the_tree_its_name_says(build, tmp_path):
    image = build("FROM busybox\nRUN rm -r /usr && mkdir /usr && echo x > /usr/x\nCOPY Dockerfile /usr/share/\n").image
    work = tmp_path / "mounts"
    work.mkdir()
    mounts = Mounts(guest_program(default_cache_dir()), work)
    try:
        seen = mounts.seen(mounts.erofs(image.path))
        assert digest_tree(seen).digest == image.tree
        assert sorted(path.name for path in (seen / "usr").iterdir()) == ["share", "x"]
    finally:
        mounts.close()


def test_layers_are_cached_by_content(build):
    text = "FROM busybox\nARG X=1\nCOPY a.txt /a\nRUN cat /a > /b\nRUN echo $X > /c\n"
    first = build(text, {"a.txt": "1"})
    assert (first.ran, first.cached) == (3, 0)
    os.utime(build.context / "a.txt", (1, 1))
    again = build(text)
    assert (again.ran, again.cached) == (0, 3) and again.image.id == first.image.id
    assert [build(text, args={"X": "2"}).ran, build(text, args={"X": "2"}).ran] == [2, 0]
    changed = build(text, {"a.txt": "2"})
    assert (changed.ran, changed.cached) == (3, 0) and changed.image.id != first.image.id
    (build.context / "a.txt").chmod(0o600)
    assert build(text).ran == 3


def test_collection_keeps_the_layers_of_named_images_alone(build, busybox):
    build("FROM busybox\nRUN echo 1 > /a\n")
    kept = build("FROM busybox\nRUN echo 2 > /a\n")
    assert busybox.gc().layers == 1
    assert (build("FROM busybox\nRUN echo 2 > /a\n").ran, busybox.get("built").id) == (0, kept.image.id)


def test_stages_and_what_they_hand_over(build):
    text = """
    ARG BASE=busybox
    FROM $BASE AS make
    RUN mkdir -p /out/sub && echo built > /out/sub/f && ln -s f /out/sub/l && chown -R 5:6 /out/sub
    FROM busybox AS unused
    RUN false
    FROM make AS more
    RUN echo more >> /out/sub/f
    FROM scratch
    COPY --from=busybox /bin /bin
    COPY --from=make /out /made
    COPY --from=2 /out/sub/f /
    COPY --from=make --chown=0:0 /out/sub/f /mine
    """
    output = build(text, look="cat /made/sub/l /f; stat -c '%u' /mine; readlink /made/sub/l; ls /")
    assert output.startswith("built\nbuilt\nmore\n0\nf\n") and "etc" not in output
    target = build(text, target="make")
    assert target.image.cmd == () and target.cached == 1


def test_sources_and_destinations(build):
    files = {"odd<<name": "o", "d/x/1": "1", "d/2.log": "2", "d/keep.log": "k", "top.txt": "t", "z[1]": "z"}
    files[".dockerignore"] = "**/*.log\n!d/keep.log\n"
    (build.context / "link").symlink_to("/top.txt")
    text = """FROM busybox
    COPY . /all/
    COPY d /d
    COPY t*.txt d/x/? /into/
    COPY ["top.txt", "/with space/a b"]
    COPY link /followed
    COPY odd<<name /odd
    COPY top.txt /into
    COPY <<one <<"two" /docs/
$PATH \\$PATH
one
$PATH
two
    """
    look = (
        "cd /; find all d into docs -type f | sort; cat 'with space/a b' followed docs/*; stat -c %a docs/one; cat odd"
    )
    assert build(text.replace("    ", ""), files, look).split("\n") == [
        *[
            "all/.dockerignore",
            "all/Dockerfile",
            "all/d/keep.log",
            "all/d/x/1",
            "all/odd<<name",
            "all/top.txt",
            "all/z[1]",
        ],
        *["d/keep.log", "d/x/1"],
        *["docs/one", "docs/two", "into/1", "into/top.txt", "tt/bin $PATH", "$PATH", "644", "o"],
    ]


def test_add_unpacks_archives(build):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        entry = tarfile.TarInfo("deep/file")
        entry.size, entry.uid = 3, 4
        archive.addfile(entry, io.BytesIO(b"abc"))
    text = "FROM busybox\nADD a.tar.xz plain.txt /at/\nCOPY a.tar.xz /kept\n"
    output = build(text, {"a.tar.xz": packed.getvalue(), "plain.txt": "p"}, "cat /at/deep/file /at/plain.txt; ls /kept")
    assert output == "abcp/kept\n"


def test_symlinks_of_the_image_lead_only_inside_it(build, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("host")
    text = f"""FROM busybox
RUN ln -s {outside} /to && ln -s {outside}/secret /file && ln -s ../../../../.. /up
COPY a /to/a
COPY a /up/b
COPY a /file
WORKDIR /to/w
RUN cat /to/a /b /file > /result && pwd >> /result
"""
    assert build(text, {"a": "A"}, "cat /result") == f"AAA{outside}/w\n"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_text() == "host"
    with pytest.raises(DockerfileError, match=r"Dockerfile:4: COPY: '/to/secret' is not in"):
        build(f"FROM busybox AS x\nRUN ln -s {outside} /to\nFROM busybox\nCOPY --from=x /to/secret /s\n")


def test_here_documents_run(build):
    text = """FROM busybox
RUN <<EOF
x=1
echo $x > /one
EOF
RUN cat <<'A' > /two && echo done >> /two
$x
A
RUN <<EOF
#!/bin/sh
echo "$0" > /three
EOF
"""
    assert build(text, look="cat /one /two /three") == "1\n$x\ndone\n/dev/shm/step\n"


def test_a_build_has_roots_powers_over_the_image_and_no_others(build):
    text = """FROM busybox
RUN touch /f && chown 1000 /f && chmod 4755 /f && su agent -c 'id -u > /tmp/who'
RUN ! mount -t tmpfs x /usr && ! unshare -U true && ! mknod /n c 1 3 && ! echo 1 > /proc/sys/kernel/hostname
RUN ! grep -v -e lo: -e face -e Inter /proc/net/dev
RUN test ! -e /etc/hostname && test ! -e /workspace && test "$HOME" = /root
USER agent
RUN test "$(id -u):$(id -g)" = 1000:1001 && test "$HOME" = /home/agent && echo x > ~/mine && ! touch /etc/x
"""
    built = build(text).image
    assert built.uid == 1000
    output = build("FROM built\n", look="stat -c '%a %U' /f; stat -c %u /home/agent /; grep CapEff /proc/self/status")
    assert output == "4755 agent\n1000\n65534\nCapEff:\t0000000000000000\n"  # home is the sandbox's own tmpfs


def test_no_trace_of_the_sandbox_stays_in_the_image(build, busybox):
    build("FROM busybox\nRUN touch /made; i=0; while [ $i -lt 200000 ]; do echo 0123456789; i=$((i+1)); done\n")
    (layer,) = (busybox.root / "layers").iterdir()
    assert {str(path.relative_to(layer)) for path in layer.rglob("*")} <= {"made", "tmp"}


def test_clearing_up_after_a_step_reaches_nothing_outside(build, tmp_path):
    victims = [tmp_path / f"exec-{number}.log" for number in range(50)]
    for victim in victims:
        victim.write_text("whole")
    loud = "i=0; while [ $i -lt 200000 ]; do echo 0123456789; i=$((i+1)); done"  # so much that the guest writes a log
    build(f"FROM busybox\nRUN {loud}; rm -r /tmp && ln -s {tmp_path} /tmp\n")
    assert [victim.read_text() for victim in victims] == ["whole"] * 50


def test_a_step_that_fails_says_where_and_what(build):
    said = r"(?s)Dockerfile:3: RUN echo why; exit 3: ended with 3 \(it had no network: .*\).*why"
    with pytest.raises(BuildError, match=said):
        build("FROM busybox\nRUN true\nRUN echo why; exit 3\n")
    with pytest.raises(BuildError, match="cannot run /bin/sh"):
        build("FROM scratch\nRUN true\n")
    with pytest.raises(BuildError, match="standard output: I/O error"):
        build("FROM busybox\nRUN head -c 80000000 /dev/zero > /big\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM nowhere:1\n", r"Dockerfile:1: FROM: image 'nowhere:1'.*images add SOURCE --name nowhere:1"),
        ("FROM busybox\nCOPY missing /x\n", r"Dockerfile:2: COPY: 'missing' is not in"),
        ("FROM busybox\nCOPY ../etc /x\n", r"Dockerfile:2: COPY: .*`\.\.` leads out"),
        ("FROM busybox\nADD http://x/y /z\n", r"Dockerfile:2: ADD: a URL"),
        ("FROM busybox\nCOPY --chown=ghost Dockerfile /x\n", r"Dockerfile:2: COPY: user 'ghost'"),
        ("FROM busybox\nCOPY --chmod=u+x Dockerfile /x\n", r"Dockerfile:2: COPY --chmod"),
        ("FROM busybox\nCOPY Dockerfile\n", r"Dockerfile:2: COPY needs a source"),
        ("FROM busybox\nCOPY Docker* Dockerfile /x\n", r"Dockerfile:2: COPY: several sources"),
        ("FROM busybox\nWORKDIR /etc/passwd\n", r"Dockerfile:2: WORKDIR: /etc/passwd is a file"),
        ("FROM busybox\nUSER ghost\nRUN true\n", r"Dockerfile:3: RUN: user 'ghost'"),
        ("FROM busybox\nENV a\n", r"Dockerfile:2: ENV: 'a' has no value"),
        ("FROM busybox\nENV a=${b%x}\n", r"Dockerfile:2: ENV: .* not supported"),
        ("FROM busybox\nRUN --network=host true\n", r"Dockerfile:2: RUN --network"),
        ("FROM --platform=linux/s390x busybox\n", r"Dockerfile:1: platform linux/s390x"),
        ("FROM $NONE\n", r"Dockerfile:1: FROM \$NONE comes to nothing"),
    ],
)
def test_what_cannot_be_built_names_its_line(build, text, said):
    with pytest.raises(DockerfileError, match=said):
        build(text)


def test_no_option_is_ignored(build):
    with pytest.raises(ConfigError, match="'TYPO': no ARG"):
        build("FROM busybox\nARG X\n", args={"TYPO": "1"})
    with pytest.raises(ConfigError, match="no stage 'x'"):
        build("FROM busybox\n", target="x")


def test_a_step_cannot_lead_the_next_ones_mounts_elsewhere(build):
    (build.context / "links").mkdir()
    (build.context / "links" / "guest").symlink_to("/oldroot/tmp")
    with pytest.raises(DockerfileError, match=r"Dockerfile:3: RUN: image: /guest is, or lies below, a symlink"):
        build("FROM busybox\nCOPY links/ /\nRUN true\n")


def test_a_step_that_hangs_is_ended(build):
    hasty = CONFIG.model_copy(update={"step_timeout_s": 0.5})
    with pytest.raises(DeadlineExceeded, match=r"Dockerfile:2: RUN sleep 60"):
        build("FROM busybox\nRUN sleep 60\n", config=hasty)


def test_builds_of_the_same_at_once_agree(busybox, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM busybox\nRUN sleep 0.2; echo x > /x\nWORKDIR /w\n")

    async def both():
        backend = NamespaceBackend(NamespaceConfig(images=busybox.config))
        try:
            async with asyncio.timeout(60):
                return await asyncio.gather(*(build_image(busybox, backend, tmp_path, config=CONFIG) for _ in range(3)))
        finally:
            await backend.close()

    built = asyncio.run(both())
    assert len({each.image.id for each in built}) == 1
    assert left() == [] and list((busybox.root / "new").iterdir()) == []


KILLED = """
import asyncio, sys
from pathlib import Path
from etude.environments.images.build import BuildConfig, build_image
from etude.environments.images.store import ImageStore
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.roots import ImagesConfig

async def main():
    store = ImageStore(ImagesConfig(dir=Path(sys.argv[1])))
    backend = NamespaceBackend(NamespaceConfig(images=store.config, state_dir=Path(sys.argv[3])))
    await build_image(store, backend, Path(sys.argv[2]), config=BuildConfig(memory_mb=256, disk_mb=64))

asyncio.run(main())
"""


def test_a_build_that_is_killed_leaves_nothing_that_the_next_does_not_clear(busybox, tmp_path):
    context, state = tmp_path / "context", Path("/dev/shm") / f"etude-test-{os.getpid()}"
    context.mkdir()
    nap = f"sleep {4_000_000 + os.getpid()}"  # so long, and only ours
    (context / "Dockerfile").write_text(f"FROM busybox\nRUN echo 1 > /one\nRUN {nap}\n")
    before = len(list((busybox.root / "layers").iterdir()))
    command = [sys.executable, "-c", KILLED, str(busybox.root), str(context), str(state)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])})
    try:
        wait_until(lambda: any(nap in line for line in running()), "the step to run")
    finally:
        process.kill()
        process.wait(120)
    wait_until(lambda: not any(str(state) in line or nap in line for line in running()), "all of it to end")
    assert str(busybox.root) not in Path("/proc/self/mountinfo").read_text()
    assert len(list((busybox.root / "layers").iterdir())) == before + 1  # the step that was done is kept
    assert busybox.gc().unfinished == 2
    sweep(state)
    state.rmdir()
    assert left(NamespaceConfig(state_dir=state), [process.pid]) == []


def running():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def wait_until(done, what, deadline_s=120.0):
    until = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < until, f"waited {deadline_s} s for {what}"
        time.sleep(0.05)
