"""A root file system for virtual machines, of this machine's own programs: a shell, its tools, and python3."""

import os
import shutil
import subprocess
from pathlib import Path

TOOLS = (
    "bash cat chmod cmp cp cut date df dirname echo env expr false find grep head hostname id kill link ln ls "
    "mkdir mkfifo mknod mount mv nproc pgrep pkill printenv printf ps pwd readlink rm rmdir sed seq sh sleep sort stat "
    "stty tail tar tee test timeout touch tr true truncate uname uniq unshare wc which xargs yes"
)
SKIPPED = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "*-packages", "config-*"
)


def build(root: Path) -> None:
    """Fill the empty directory `root`."""
    for name in ("usr/bin", "etc", "tmp", "home/agent", "var/tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        place = Path("/", name)
        if place.is_symlink():
            (root / os.readlink(place)).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(os.readlink(place))
    programs = [Path(found) for tool in TOOLS.split() if (found := shutil.which(tool, path="/usr/bin:/bin"))]
    programs.append(_python(root))
    for program in programs:
        _copy(root, program)
    _copy_libraries(root, [*programs, *root.rglob("lib-dynload/*.so")])
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:a:/home/agent:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nagent:x:1000:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")


def _python(root: Path) -> Path:
    python = shutil.which("python3", path="/usr/bin") or shutil.which("python3")
    ask = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    library = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    shutil.copytree(library, root / library.relative_to("/"), symlinks=False, ignore=SKIPPED)
    for compiled in root.rglob("*.pyc"):  # images keep no times: tell the interpreter not to compare them
        data = bytearray(compiled.read_bytes())
        data[4:8] = b"\1\0\0\0"
        compiled.write_bytes(data)
    return Path(python)


def _copy(root: Path, path: Path) -> None:
    target = root / path.parent.resolve().relative_to("/") / path.name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path.resolve(), target)


def _copy_libraries(root: Path, programs: list[Path]) -> None:
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    for library in {word for word in said.split() if word.startswith("/") and ".so" in word and word[-1] != ":"}:
        _copy(root, Path(library))
