"""The guard of a workspace: what it lets through is as it would be without it, and what it names is not written."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from guarded_workspace import example, python, repository, said, within
from proofs import one_of_each
from pydantic import ValidationError
from users_git import git

from etude.environments.base import SandboxSpec
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.environments.local.planted import ANYWHERE, AT_ANY_DEPTH, AT_ROOTS, IN_PROJECTS, UNPACKED
from etude.environments.local.workspace import ConfinedWorkspace
from etude.errors import ConfigError, SandboxError

_SCRIPT = Path(__file__).with_name("guarded_calls.py")


@pytest.fixture
def project(outer: Path) -> Path:
    return repository(outer)


# it is as it would be without it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", one_of_each(0.5, range(6)))
def test_calls_at_random_do_what_they_do_without_a_guard(seed: int, outer: Path) -> None:
    printed = []
    for guard in ("on", "existing"):
        root = outer / guard
        root.mkdir()

        async def scenario(workspace: ConfinedWorkspace) -> None:
            await workspace.write_file("/tmp/calls.py", _SCRIPT.read_bytes())
            done = await workspace.exec(
                f"python3 /tmp/calls.py {seed} 2000 /tmp/away /workspace/w", max_output_bytes=1 << 24
            )
            assert done.exit_code == 0, done.output[-2000:].decode()
            printed.append(done.output.decode(errors="replace").splitlines())

        within(root, scenario, guard=guard)
    differ = [lines for lines in zip(*printed, strict=False) if lines[0] != lines[1]]
    assert not differ and len(printed[0]) == len(printed[1]) > 1000, differ[:3]


_REASONS = """
import errno, os
W, C, X, N = os.O_WRONLY, os.O_CREAT, os.O_EXCL, os.O_NOFOLLOW
def why(call, *arguments, **named):
    try:
        call(*arguments, **named)
        print("works")
    except OSError as error:
        print(errno.errorcode[error.errno])
os.mkdir("d"); open("f", "w").close(); os.symlink("nowhere", "dangling"); os.symlink("loop", "loop")
os.symlink("f", "to-f"); os.mkdir("closed", 0)
for path, flags in (("none", W), ("none/x", W | C), ("f/x", W | C), ("d", W), ("f", W | C | X), ("to-f", W | N),
                    ("loop", W), ("dangling", W | C | X), ("dangling", W | C), ("new/", W | C), ("x" * 256, W | C),
                    ("/usr/x", W | C), ("/etc/passwd", W), ("", W), ("x/" * 2048, W), ("/proc/self/none", W)):
    why(os.open, path, flags)
for path in ("d", ".", "d/..", "none/x", "to-f/x", "e/", "/etc/x", "f"):
    why(os.mkdir, path)
    why(os.mkfifo, path)
    why(os.symlink, "target", path)
for one, other in (("none", "x"), ("d", "d/x"), ("f", "d"), ("d", "f"), ("f", "/tmp/f"), ("d", "y"), ("f", "f")):
    why(os.link, one, other)
    why(os.rename, one, other)
why(os.symlink, "", "z")
for path in ("d", "none", "f", "y"):
    why(os.truncate, path, 0)
    why(os.chmod, path, 0o755)
why(os.open, "f", W, dir_fd=99)
why(os.mkdir, "x", dir_fd=os.open("f", os.O_RDONLY))
"""


def test_reasons_are_the_kernels_own(outer: Path) -> None:
    printed = []
    for guard in ("on", "existing"):
        root = outer / guard
        root.mkdir()

        async def scenario(workspace: ConfinedWorkspace) -> None:
            printed.append(await said(workspace, python(_REASONS)))

        within(root, scenario, guard=guard)
    assert printed[0] == printed[1] and "EEXIST" in printed[0] and "ELOOP" in printed[0]


def test_a_fifo_waits_for_its_reader_and_hinders_nobody(project: Path) -> None:
    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, "mkfifo f g")
        writer = await workspace.start("echo through > f; echo written > done")
        killed = await workspace.start("echo never > g")
        await said(workspace, "echo others > b; [ ! -e done ]")
        await killed.kill()
        assert await said(workspace, "cat f") == "through\n"
        assert (await writer.wait(120)).exit_code == 0 and await said(workspace, "cat done b") == "written\nothers\n"

    within(project, scenario)


def test_a_directory_has_a_path_of_at_most_3825_bytes(project: Path) -> None:
    deep = """
import errno, os
def tried(call):
    try: call()
    except OSError as error: return errno.errorcode[error.errno]
    return "made"
def down(length):
    os.mkdir("d" * length); os.chdir("d" * length)
while len(os.getcwd()) < 3825 - 255: down(200)
rest = 3825 - len(os.getcwd()) - 1
os.mkdir("e" * (rest + 1))
longer = os.open("e" * (rest + 1), os.O_PATH)
down(rest)
print(len(os.getcwd()), tried(lambda: open("f", "w").close()), tried(lambda: open("f", "w").close()), end=" ")
os.fchdir(longer)
print(len(os.getcwd()), tried(lambda: open("f", "w").close()), tried(lambda: os.mkdir("g")))
"""

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await said(workspace, python(deep)) == "3825 made made 3826 ENAMETOOLONG ENAMETOOLONG\n"

    within(project, scenario)


def test_what_means_the_caller_means_the_caller(project: Path) -> None:
    itself = """
import ctypes, os, socket
open("/proc/self/comm", "w").write("by-self")
print(open("/proc/self/comm").read().strip())
libc = ctypes.CDLL(None)
print(libc.prctl(4, 0, 0, 0, 0), open("hidden", "w").write("hidden from the guard"))
os.chdir("/tmp")
server = socket.socket(socket.AF_UNIX); server.bind("./here"); print(server.getsockname(), os.path.exists("/tmp/here"))
server = socket.socket(); server.bind(("127.0.0.1", 0)); print(server.getsockname()[0])
server = socket.socket(socket.AF_UNIX); server.bind("\\0abstract"); print(server.getsockname())
print(libc.syscall(444, None, 0, 1))
"""

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert (await said(workspace, python(itself))).split("\n") == [
            "by-self", "0 21", "here True", "127.0.0.1", "b'\\x00abstract'", "-1", "",
        ]  # fmt: skip
        by_name = "echo to-out > /dev/stdout; echo to-err > /dev/stderr; echo a > >(cat); wait $!"
        shown = await said(workspace, f"bash -c '{by_name}'")
        assert {"to-out", "to-err", "a"} == set(shown.split())
        assert "/dev/pts/0" in await said(workspace, "script -qc 'tty; echo by-tty > /dev/tty' /dev/null")
        await said(workspace, "echo x > /dev/tty", 2)

    within(project, scenario)


def test_many_at_once(project: Path) -> None:
    """Processes that make files beside each other, some of which are killed in the midst of it."""
    many = "for i in $(seq 8); do (for j in $(seq 200); do echo $j > d$i-$j; done) & done; wait; ls | grep -c ^d"
    endless = "while :; do echo x > k; mkdir k$$ && rmdir k$$; done"
    killed = f"for i in $(seq 20); do timeout -s KILL 0.05 sh -c '{endless}'; done; true"

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await said(workspace, many) == "1600\n"
        await said(workspace, killed)
        assert await said(workspace, "echo still > works; cat works") == "still\n"

    within(project, scenario)


def test_packages_and_archives_are_unpacked(project: Path) -> None:
    """Names that are obeyed at a root are no harm below `node_modules`."""
    make = (
        "mkdir -p /tmp/p/.vscode /tmp/p/.idea /tmp/p/.github && cd /tmp/p && echo {} > .vscode/settings.json && "
        "touch .idea/x .github/x .editorconfig .gitignore .gitattributes .npmrc package.json Makefile && "
        "tar cf /tmp/p.tar ."
    )

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, f"{make}; cd /workspace; mkdir -p node_modules/p; tar xf /tmp/p.tar -C node_modules/p")
        await workspace.upload((await workspace.read_file("/tmp/p.tar")), "/workspace/vendor/p")
        assert (await workspace.guarded())[1] == 0
        shown = await said(workspace, "cp -r vendor/p lib; mv lib lib2; ls lib2/Makefile")
        assert all(f"lib/{name}" in shown for name in (".npmrc", ".idea", ".vscode")), "it is the project's now"
        await said(
            workspace, "echo x > .gitignore; echo y > .gitattributes; mkdir .github; echo > .github/x; echo > AGENTS.md"
        )
        assert (await workspace.guarded())[1] == 3

    within(project, scenario)


_WORK = """
set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
first=$(git rev-parse HEAD)
git checkout -q -b side; echo s > s; git add s; git commit -qm side; git tag one; git tag -m two two
git checkout -q --detach $first; echo m > m; git add -A; git commit -qm other; git merge -q side -m merged
echo z >> a.txt; git stash -q; git stash pop -q; git commit -qam z; git checkout -q -b third $first
echo r > r; git add r; git commit -qm r; git rebase -q side; git commit --amend -qm again; git revert --no-edit HEAD
git reset -q --hard HEAD~1; echo c >> a.txt; git commit -qam c; git checkout -q side; echo d >> a.txt; git commit -qam d
git cherry-pick third && exit 1; git cherry-pick --abort; git merge -q third && exit 1; git merge --abort
git rebase -q third && exit 1; git rebase --abort; git notes add -m n; git rm -q s; git mv m n 2>/dev/null || true
git commit -qm gone; git worktree prune; git pack-refs --all; git repack -adq 2>/dev/null || true
git fsck --no-progress; git log --oneline | wc -l; git status --short
"""


@pytest.mark.parametrize("kind", ["plain", "worktree", "nested"])
def test_git_goes_on_working_for_the_agent(kind: str, project: Path) -> None:
    inside = "."
    if kind == "worktree":
        project, main = project.parent / "tree", project
        git(main, "worktree", "add", "-q", "--detach", str(project))
    elif kind == "nested":
        shutil.copytree(project, project / "deps", symlinks=True)
        inside = "deps"

    async def scenario(workspace: ConfinedWorkspace) -> None:
        done = await workspace.exec(f"cd {inside}; {_WORK}")
        assert done.exit_code == 0, done.output.decode()
        assert b"side" in (await workspace.exec(f"cd {inside}; git log --oneline")).output

    within(project, scenario)
    assert git(project / inside, "status", "--short", "--untracked-files=no") == ""
    assert "gone" in git(project / inside, "log", "--oneline", "side")


# what is refused -------------------------------------------------------------------------------------------------


_FORMS = """
import os, shutil, sys
def form(call, *arguments):
    try:
        call(*arguments)
        return "made"
    except PermissionError:
        return "refused"
    except (FileExistsError, FileNotFoundError, NotADirectoryError, OSError):
        return "cannot"
root = sys.argv[1]
for name in sys.argv[2:]:
    for path in (f"{root}/{name}", f"{root}/{name.upper()}"):
        os.makedirs("/workspace/t/d"), open("/workspace/t/f", "w").close()
        above = form(os.makedirs, os.path.dirname(path))
        print(name, "refused" if above == "refused" else "", *(form(*call) for call in (
            (os.mkdir, path), (lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),), (os.symlink, "x", path),
            (os.link, "t/f", path), (os.rename, "t/f", path), (os.rename, "t/d", path), (os.mkfifo, path))))
        shutil.rmtree("/workspace/t")
"""


ROOTS = [".", "deps", "packages/p", *(f"{name}/p" for name in UNPACKED)]


@pytest.mark.parametrize("root", one_of_each(0.9, ROOTS, lambda root: root.startswith(UNPACKED) or root))
def test_every_listed_name_is_refused_in_every_form(root: str, project: Path) -> None:
    """At the top, in a nested repository, anywhere else, and where packages are, whatever the case."""
    (project / "deps" / ".git").mkdir(parents=True)
    (project / root).mkdir(parents=True, exist_ok=True)
    for name in (*AT_ANY_DEPTH, *IN_PROJECTS, *AT_ROOTS):
        (project / root / name).parent.mkdir(parents=True, exist_ok=True)
    kinds = [(True, (*ANYWHERE, *AT_ANY_DEPTH)), (not root.startswith(UNPACKED), IN_PROJECTS)]
    kinds.append((root in (".", "deps"), AT_ROOTS))
    listed = [example(name) for held, names in kinds if held for name in names]

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await workspace.write_file("/tmp/t.py", _FORMS.encode())
        shown = await said(workspace, f"python3 /tmp/t.py {root} {' '.join(listed)}")
        lines = [line.split() for line in shown.splitlines() if line and not line.startswith("[")]
        assert len(lines) == 2 * len(listed)
        for name, *forms in lines:
            assert "made" not in forms and "refused" in forms, (name, forms)
        for name in (example(name) for held, names in kinds if not held for name in names):
            await said(workspace, f"mkdir -p {root}/{name} && rm -r {root}/{name}")

    within(project, scenario)


_EXCHANGE = """
import ctypes
print("exchanged:", not ctypes.CDLL(None).renameat2(-100, b"src", -100, b"node_modules/s", 2))
"""


def test_packages_are_moved_where_people_work_without_what_is_obeyed_there(project: Path) -> None:
    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, "mkdir -p node_modules/p/.vscode node_modules/q src; echo > node_modules/p/.exrc")
        await said(workspace, "mv node_modules/p node_modules/q/p; mv node_modules/q node_modules/r")
        shown = await said(workspace, "mv node_modules/r src/r", 1)
        assert "only the user may write it: src/r/p/.vs" in shown or "it: src/r/p/.exrc, " in shown
        await said(workspace, "mkdir -p node_modules/s/.zed")
        shown = await said(workspace, f"{python(_EXCHANGE)}\nmv node_modules packages", 1)
        assert "exchanged: False" in shown and "packages/s/.zed" in shown

    within(project, scenario)
    assert not [*(project / "src").rglob(".exrc"), *(project / "packages").rglob(".zed")]


def test_opening_a_workspace_leaves_nothing(project: Path) -> None:
    def everything() -> list[str]:
        return sorted(str(path.relative_to(project.parent)) for path in project.parent.rglob("*"))

    before = everything()

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, "mkdir .vscode; echo > .envrc; git init -q; true")

    within(project, scenario)
    assert everything() == before


def test_what_the_user_gives_up_may_be_written(project: Path) -> None:
    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, "mkdir .vscode; echo {} > .vscode/tasks.json")
        await said(workspace, "mkdir .idea", 1)

    within(project, scenario, unguarded=(".vscode",))
    with pytest.raises(ConfigError, match=r"unguarded: '\.git' is not listed"):
        asyncio.run(open_workspace(project, WorkspaceConfig(unguarded=(".git",))))
    for config in ({"guard": "existing"}, {"sandbox": "off", "network": "full"}):
        with pytest.raises(ValidationError, match="nothing is guarded here"):
            WorkspaceConfig(unguarded=(".vscode",), **config)


def test_what_is_protected_may_be_absent(project: Path) -> None:
    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, "mkdir -p infra/keys", 1)
        await said(workspace, "mkdir -p x/keys; mv x infra; ls infra/keys", 2)
        await said(workspace, "echo > infra[1]", 2)
        await said(workspace, "echo > infra1")

    within(project, scenario, protected=("infra/keys", "infra[1]"))


def test_calls_that_would_pass_by_the_guard_are_not_there(project: Path) -> None:
    """io_uring, file handles, and a second filter with a listener; the ioctls that make subvolumes."""
    passing = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number, arguments in ((425, (1, 0)), (304, (-100, 0, 0)), (428, (-100, b".", 0)), (437, (-100, b"x", 0, 24)),
                          (16, (0, 0x5000940e, 0)), (16, (0, 0x50009401, 0)), (317, (1, 8, b"\\1" + bytes(7)))):
    print(libc.syscall(number, *arguments), errno.errorcode[ctypes.get_errno()])
"""

    async def scenario(workspace: ConfinedWorkspace) -> None:
        shown = (await said(workspace, python(passing))).split("\n")
        assert shown[:6] == ["-1 EPERM", "-1 EPERM", "-1 EPERM", "-1 ENOSYS", "-1 EPERM", "-1 EPERM"]
        assert shown[6].startswith("-1 ")

    within(project, scenario)


def test_a_kernel_that_cannot_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """seccomp(2) is taken away before the guest begins, as on a kernel that has not got what the guard needs."""
    fake, real = project.parent / "bin" / "bwrap", shutil.which("bwrap")
    fake.parent.mkdir()
    number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(c.to_bytes(2, "little") + bytes([t, f]) + k.to_bytes(4, "little") for c, t, f, k in steps)
    (fake.parent / "filter").write_bytes(program)
    version = f'[ "$1" = --version ] && exec {real} --version'
    fake.write_text(f'#!/bin/sh\n{version}\nexec {real} --seccomp 9 "$@" 9< {fake.parent}/filter\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r'Linux 5\.14.*guard = "existing".*Function not implemented'):
        asyncio.run(open_workspace(project))

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, "echo works > b")

    within(project, scenario, guard="existing")


def test_a_rollout_is_not_guarded(run: Any) -> None:
    """Nothing of it is ever opened by a user's programs, and its tasks make repositories."""

    async def scenario(backend: Any) -> None:
        sandbox = await backend.create(SandboxSpec())
        try:
            done = await sandbox.exec("git init -q . && mkdir .vscode && git config core.fsmonitor x")
            assert done.exit_code == 0, done.output.decode()
        finally:
            await sandbox.destroy()

    run(scenario)


OF_PROCESS_ONE = """
import os
for path in ("/proc/1/mem", "/proc/1/maps", "/proc/1/environ", "/proc/1/fd/3", "/proc/1/cwd/in", "/proc/1/root/tmp/in",
             "/proc/self/root/proc/1/mem", "/proc/1/../1/mem", "/proc/1/attr/exec"):
    for flags in (os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC):
        try:
            os.open(path, flags, 0o600)
            print("opened", path, flags)
        except OSError:
            pass
directory = os.open("/proc/1", os.O_PATH)
for name in ("mem", "maps"):
    try:
        os.open(name, os.O_RDWR, dir_fd=directory)
        print("opened", name)
    except OSError:
        pass
print("done")
"""


def test_the_guard_opens_nothing_of_its_own_process_for_a_command(project: Path) -> None:
    """It is a thread of process 1, so the kernel would let it: its rules lie in /proc/1/mem."""

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await workspace.write_file("try.py", OF_PROCESS_ONE.encode())
        done = await workspace.exec("python3 try.py")
        assert done.output == b"done\n", done.output.decode()

    within(project, scenario)


SWAPPED = """
import os, socket, threading
os.mkdir("safe"); os.mkdir("evil")
safe, evil = os.open("safe", os.O_PATH), os.open("evil", os.O_PATH)
open("evil/HEAD", "w").write("ref: refs/heads/main\\n"); os.mkdir("evil/objects")
stop = False
def swap():
    while not stop:
        os.fchdir(safe); os.fchdir(evil)
thread = threading.Thread(target=swap)
thread.start()
for _ in range(3000):
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind("refs")
    except OSError:
        pass
    sock.close()
    if os.path.lexists(f"/proc/self/fd/{evil}/refs"):
        print("planted")
        break
    try:
        os.unlink("refs", dir_fd=safe)
    except OSError:
        pass
stop = True
thread.join()
print("done")
"""


def test_a_socket_is_made_where_it_was_judged(project: Path) -> None:
    """However fast another thread changes the directory that both share."""

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await workspace.write_file("swap.py", SWAPPED.encode())
        done = await workspace.exec("python3 swap.py", timeout_s=100)
        assert done.output.startswith(b"done\n"), done.output.decode()
        assert "planted" not in done.output.decode().split("\n")

    within(project, scenario)


def test_no_program_with_its_owners_rights_is_left_outside(project: Path) -> None:
    """A product that runs as root would leave root's to every user of the machine."""
    tries = """
import os, shutil
shutil.copy("/bin/true", "p")
for mode in (0o4755, 0o2755, 0o6711):
    for change in (lambda: os.chmod("p", mode), lambda: os.fchmod(os.open("p", os.O_RDONLY), mode)):
        try:
            change()
            print("changed")
        except PermissionError:
            pass
os.close(os.open("q", os.O_CREAT | os.O_WRONLY, 0o4755))
os.mknod("r", 0o106755)
os.chmod("p", 0o755)
os.mkdir("d")
os.chmod("d", 0o2775)
"""

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert await said(workspace, python(tries)) == ""

    within(project, scenario)
    modes = {name: (project / name).stat().st_mode & 0o7777 for name in ("p", "q", "r", "d")}
    assert modes == {"p": 0o755, "q": 0o755, "r": 0o755, "d": 0o2775}
