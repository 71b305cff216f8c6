"""The memory of machines: empty, or a copy of a stopped machine's that others start from.

Owns memory files (memfds): they have no name, so nothing of them outlives the processes that hold them, and a copy is
sealed once it is whole, so that no machine started from it, not even one whose guest broke out, can change what the
others see. A machine maps its file privately: pages it writes become its own, all others are shared. A copy is
therefore made from outside, of the pages that the kernel says are the machine's own, over those it still shares; or of
what a machine's own process has written out, which is everything, so that its empty pages must be found.
A page that is in no copy yet costs twice when a machine first touches it: the kernel puts a page of zeros into the
shared file, once for all machines on it, before it makes one for the machine. Taking a copy from outside needs the
right to read the machine's memory: root's, or the same user's.
"""

from __future__ import annotations

import fcntl
import os

import numpy as np
import numpy.typing as npt

from etude.errors import SandboxError

PAGE = os.sysconf("SC_PAGESIZE")
_NAME = "etude-ram"
_PRESENT_OR_SWAPPED = np.uint64(3 << 62)
_OF_A_FILE = np.uint64(1 << 61)
_PIECE = 4 << 20
Pages = npt.NDArray[np.bool_]


class Ram:
    """One memory file. Open as long as somebody holds this object: a snapshot, or a machine that runs on it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        self._filled: Pages = np.zeros(size // PAGE, np.bool_)

    def __del__(self) -> None:
        os.close(self.fd)

    @classmethod
    def written(cls, fd: int, size: int) -> Ram:
        """A copy of the file `fd`, in which a machine's memory lies, without its pages of zeros."""
        if os.fstat(fd).st_size != size:
            raise SandboxError(f"a memory of {os.fstat(fd).st_size} bytes was written, not of {size}")
        copy = cls(size)
        for first in range(0, size, _PIECE):
            piece = np.frombuffer(_read(fd, min(_PIECE, size - first), first), np.uint64)
            at = first // PAGE
            copy._filled[at : at + len(piece) * 8 // PAGE] = piece.reshape(-1, PAGE // 8).any(axis=1)
        _copy(fd, 0, copy.fd, copy._filled)
        copy._seal()
        return copy

    def copy_of(self, pid: int) -> Ram:
        """What the memory of machine `pid`, which runs on this file and stands still, holds now."""
        copy = Ram(self.size)
        start = _mapped(pid, self.size)
        own = _own_pages(pid, start, self.size)
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _copy(memory, start, copy.fd, own)
        finally:
            os.close(memory)
        _copy(self.fd, 0, copy.fd, self._filled & ~own)
        copy._filled = self._filled | own
        copy._seal()
        return copy

    def _seal(self) -> None:
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def _mapped(pid: int, size: int) -> int:
    """Where the memory lies in the emulator's own."""
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            where, rights, _, _, _, *name = line.split()
            first, last = (int(part, 16) for part in where.split("-"))
            if name[:1] == [f"/memfd:{_NAME}"] and rights == "rw-p" and last - first == size:
                return first
    raise SandboxError(f"machine process {pid} has not mapped its {size >> 20} MiB of memory as expected")


def _own_pages(pid: int, start: int, size: int) -> Pages:
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(start // PAGE * 8)
        entries = np.frombuffer(pagemap.read(size // PAGE * 8), np.uint64)
    if len(entries) != size // PAGE:
        raise SandboxError(f"machine process {pid}: the kernel does not say which pages are its own")
    return ((entries & _PRESENT_OR_SWAPPED) != 0) & ((entries & _OF_A_FILE) == 0)


def _copy(source: int, shift: int, target: int, pages: Pages) -> None:
    """Copy these pages, which lie `shift` bytes further on in the source."""
    edges = np.flatnonzero(np.diff(pages, prepend=False, append=False)) * PAGE
    for first, last in edges.reshape(-1, 2).tolist():
        while first < last:
            first += os.pwrite(target, _read(source, min(last - first, _PIECE), shift + first), first)


def _read(source: int, size: int, at: int) -> bytes:
    piece = os.pread(source, size, at)
    if len(piece) != size:
        raise SandboxError("the memory of a machine ends early: has it ended?")
    return piece
