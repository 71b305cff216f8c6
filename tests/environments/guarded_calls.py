"""Makes calls at random on a small tree, and prints what each returned and what the tree then is.

    guarded_calls.py SEED COUNT DIRECTORY...

Run below the guard and without it, the same seed must print the same. Calls are made as they are, without a library in
between that would mend or check them. The last directory is where it works; the others are for paths that lead away."""

import contextlib
import ctypes
import fcntl
import os
import random
import stat
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "open": 2, "creat": 85, "mkdir": 83, "mknod": 133, "link": 86, "symlink": 88, "rename": 82, "chmod": 90,
    "truncate": 76, "fchmod": 91, "openat": 257, "mkdirat": 258, "mknodat": 259, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "fchmodat": 268, "renameat2": 316, "rmdir": 84, "unlink": 87, "umask": 95, "chdir": 80,
}  # fmt: skip
FLAGS = (
    os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_NOFOLLOW, os.O_DIRECTORY,
    os.O_CLOEXEC, os.O_PATH, os.O_NONBLOCK, os.O_TMPFILE, os.O_NOCTTY, os.O_SYNC,
)  # fmt: skip
ODD = (
    b"", b"/", b".", b"..", b"./", b"../..", b"/proc/self/comm", b"/proc/thread-self/comm", b"/proc/self/mounts",
    b"x/" * 2047 + b"y", b"/usr/x", b"/proc/self/nothing", b"/proc/self",
)  # fmt: skip
NAMES = ("a", "b", "c", "d", "e", "HEAD", "refs", "x" * 255, "x" * 256)


class Calls:
    def __init__(self, seed, work, away):
        self.random, self.work, self.away = random.Random(seed), work, away
        self.directory = os.open(work, os.O_RDONLY)
        self.starts = (
            "", "", "", "", "./", f"{work}/", f"{away}/", "/proc/self/cwd/", "/proc/thread-self/cwd/",
            f"/proc/self/fd/{self.directory}/", f"/dev/fd/{self.directory}/",
        )  # fmt: skip
        self.held = [os.open(f"{work}/held", os.O_CREAT | os.O_RDWR), os.open(f"{work}/held", os.O_PATH)]

    def path(self):
        pick = self.random.choice
        if self.random.random() < 0.03:
            return pick(ODD)
        parts = [pick(NAMES[:7]) for _ in range(self.random.choice((1, 1, 1, 2, 2, 3)))]
        if self.random.random() < 0.02:
            parts[-1] = pick(NAMES[7:])
        if self.random.random() < 0.1:
            parts.insert(self.random.randrange(len(parts) + 1), pick((".", "..", "")))
        start = self.random.choice(self.starts)
        text = start + "/".join(parts) + self.random.choice(("", "", "", "", "", "/", "//"))
        if self.random.random() < 0.05:
            text = f"/proc/self/fd/{pick(self.held)}"
        return os.fsencode(text)

    def at(self):
        return self.random.choice((-100, -100, self.directory, self.directory, self.held[0], 999, -1))

    def mode(self):
        return self.random.choice((0o644, 0o755, 0o600, 0o777, 0o755, 0o770, 0o1777, 0, 0o111))

    def flags(self):
        chosen = 0
        for flag in self.random.sample(FLAGS, self.random.randrange(1, 5)):
            chosen |= flag
        return chosen

    def arguments(self, name):
        pick, node = (
            self.random.choice,
            self.random.choice((stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, 0, stat.S_IFDIR)),
        )
        return {
            "open": lambda: (self.path(), self.flags(), self.mode()),
            "creat": lambda: (self.path(), self.mode()),
            "mkdir": lambda: (self.path(), self.mode()),
            "mknod": lambda: (self.path(), node | self.mode(), 0),
            "link": lambda: (self.path(), self.path()),
            "symlink": lambda: (self.path(), self.path()),
            "rename": lambda: (self.path(), self.path()),
            "chmod": lambda: (self.path(), self.mode()),
            "truncate": lambda: (self.path(), pick((0, 5, -1))),
            "fchmod": lambda: (pick((self.held[0], self.directory, 999)), self.mode()),
            "openat": lambda: (self.at(), self.path(), self.flags(), self.mode()),
            "mkdirat": lambda: (self.at(), self.path(), self.mode()),
            "mknodat": lambda: (self.at(), self.path(), node | self.mode(), 0),
            "renameat": lambda: (self.at(), self.path(), self.at(), self.path()),
            "linkat": lambda: (self.at(), self.path(), self.at(), self.path(), pick((0, 0x400, 0x1000, 0x1400, 7))),
            "symlinkat": lambda: (self.path(), self.at(), self.path()),
            "fchmodat": lambda: (self.at(), self.path(), self.mode()),
            "renameat2": lambda: (self.at(), self.path(), self.at(), self.path(), pick((0, 1, 2, 3, 8))),
            "rmdir": lambda: (self.path(),),
            "unlink": lambda: (self.path(),),
            "umask": lambda: (pick((0, 0o22, 0o77, 0o27)),),
            "chdir": lambda: (pick((self.work, self.away)).encode(),),
        }[name]()

    def make(self, name):
        arguments = self.arguments(name)
        if "open" in name:  # a FIFO would wait for its other end
            at = 1 if name == "open" else 2
            flags = arguments[at] | os.O_NONBLOCK
            arguments = (*arguments[:at], flags, *arguments[at + 1 :])
        if self.random.random() < 0.01:
            arguments = tuple(8 if isinstance(value, bytes) else value for value in arguments)  # no address
        if name == "creat" and self.is_fifo(arguments[0]):
            return None
        ctypes.set_errno(0)
        values = (value if isinstance(value, bytes) else ctypes.c_long(value) for value in arguments)
        got = LIBC.syscall(NUMBERS[name], *values)
        failed = ctypes.get_errno() if got == -1 else 0
        opened = self.opened(got) if not failed and ("open" in name or name == "creat") else got
        return name, arguments, "fails" if failed else "works", opened  # of several reasons, either may be told

    def is_fifo(self, path):
        try:
            return isinstance(path, bytes) and stat.S_ISFIFO(os.stat(path).st_mode)
        except (OSError, ValueError):
            return False

    def opened(self, fd):
        info, flags = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL)
        close, offset = fcntl.fcntl(fd, fcntl.F_GETFD), None
        if stat.S_ISREG(info.st_mode) and (flags & os.O_ACCMODE) in (1, 2) and not flags & os.O_PATH:
            offset = os.write(fd, b"text")
        os.close(fd)
        return oct(info.st_mode), info.st_size, oct(flags), close, offset


def tree(directory):
    for root, names, files in sorted(os.walk(directory)):
        for name in sorted((*names, *files)):
            try:
                info = os.lstat(os.path.join(root, name))
            except PermissionError:
                print(root, name)
                continue
            link = os.readlink(os.path.join(root, name)) if stat.S_ISLNK(info.st_mode) else ""
            size = info.st_size if stat.S_ISREG(info.st_mode) else 0
            print(root, name, oct(info.st_mode), size, info.st_nlink, link.replace(directory, "."))


def main():
    seed, count, away, work = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    os.makedirs(work)
    os.makedirs(away)
    os.chdir(work)
    calls = Calls(seed, work, away)
    for number in range(count):
        if (made := calls.make(calls.random.choice(list(NUMBERS)))) is not None:
            print(number, *made)
    with contextlib.suppress(PermissionError):  # a mode that shuts us out is a result too
        os.chmod(work, 0o755)
    tree(work)
    tree(away)


main()
