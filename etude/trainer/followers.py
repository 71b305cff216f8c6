"""The ranks of a trainer but the first, as the first one sees them; and how a process becomes one of them.

Owns the lines between rank 0 and the others, wherever they are: rank 0 listens at an address that they reach, whoever
runs them starts them there, and each calls back with a key that only they were given. Over its line a rank is told what
to do, and answers. A rank that is gone is `RankLost`, whatever showed it: its line, or the exchange that it was needed
in. Knows nothing of what ranks do.
"""

from __future__ import annotations

import pickle
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch.distributed as dist

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError, RankLost
from etude.trainer.greeting import KEY, NUMBER, hear

START_S = 300.0
"""Longest wait for a rank to have loaded the model."""
_BACKLOG = 128
"""Callers that the kernel keeps until they are let in, strangers among them."""
_GLOO = "gloo"
"""In what an exchange raises when a rank that it needs is gone, or out of reach: that has no type of its own."""


class Meeting(NamedTuple):
    """Where rank 0 waits for the others, and what shows that they are meant."""

    address: str
    port: int
    key: bytes


Start = Callable[[int, Meeting], object]
"""Has the process of this rank `obey`; returns at once."""


@dataclass(frozen=True)
class _Failure:
    """What a rank says before it ends: what it has failed of."""

    error: EtudeError


class Followers:
    """All ranks but this process's own, which is 0."""

    def __init__(self, ranks: int, address: str, start: Start) -> None:
        """Raises DeadlineExceeded, naming those that have not called."""
        with socket.create_server((address, 0), backlog=max(ranks, _BACKLOG)) as server:
            meeting = Meeting(address, server.getsockname()[1], secrets.token_bytes(KEY))
            for rank in range(1, ranks):
                start(rank, meeting)
            self._lines = hear(server, meeting.key, range(1, ranks), scaled(START_S))
        if missing := sorted({*range(1, ranks)} - self._lines.keys()):
            self.close()
            raise DeadlineExceeded(
                f"ranks {', '.join(map(str, missing))} of {ranks} to call rank 0 at {address}:{meeting.port}",
                scaled(START_S), "every machine of the trainer must reach the others at all ports",
            )  # fmt: skip

    def begin(self, first: Callable[[int], Any]) -> None:
        """Tell each what it needs to become one of us."""
        for rank in self._lines:
            self._tell(rank, first(rank))

    def send(self, name: str, *arguments: Any) -> None:
        """Have all ranks do something, without waiting for it. Raises RankLost if one has ended."""
        for rank in self._lines:
            self._tell(rank, (name, arguments))

    def _tell(self, rank: int, what: Any) -> None:
        try:
            _send(self._lines[rank], what)
        except OSError:
            raise self._last_word(rank) or _ended(rank) from None

    def receive(self, what: str, seconds: float) -> list[Any]:
        """What they answer. Raises DeadlineExceeded, RankLost, or EtudeError if one has failed."""
        answers = []
        for rank, line in sorted(self._lines.items()):
            if not line.poll(seconds):
                raise DeadlineExceeded(f"rank {rank} of {len(self._lines) + 1} {what}", seconds, "see the run's log")
            try:
                answer = _receive(line)
            except (EOFError, OSError):
                raise _ended(rank) from None
            if isinstance(answer, _Failure):
                raise answer.error
            answers.append(answer)
        return answers

    @contextmanager
    def together(self) -> Generator[None]:
        """In what all ranks do at once. Raises RankLost, or what one has failed of, where an exchange does not end."""
        try:
            yield
        except RuntimeError as error:
            if (failure := self.failure()) is not None:
                raise failure from error
            if _means_lost(error):
                raise RankLost(f"the trainer's ranks do not reach each other: {_first_line(error)}") from error
            raise

    def failure(self) -> EtudeError | None:
        """Why an exchange may have failed: which rank has ended, or what one has failed of."""
        words = [self._last_word(rank) for rank, line in sorted(self._lines.items()) if line.poll(1.0)]
        found = [word for word in words if word is not None]
        return min(found, key=lambda error: isinstance(error, RankLost), default=None)

    def _last_word(self, rank: int) -> EtudeError | None:
        """What a rank has failed of, or that it has ended; None of one that goes on."""
        line = self._lines[rank]
        try:
            while line.poll(0):
                if isinstance(answer := _receive(line), _Failure):
                    return answer.error
        except (EOFError, OSError):
            return _ended(rank)
        return None

    def close(self) -> None:
        """They end when their lines do."""
        for line in self._lines.values():
            line.close()


def obey(meeting: Meeting, rank: int, become: Callable[[Any], Any]) -> None:
    """Be this rank: do what rank 0 says until its line ends. What it says first, `become` makes of the object whose
    methods it calls from then on. Raises RankLost where another rank is gone, and EtudeError for all else that it
    failed of; rank 0 hears of it too.
    """
    with Connection(_call(meeting, rank).detach()) as line, suppress(EOFError, OSError):  # rank 0 is gone
        first = _receive(line)
        try:
            follower = become(first)
        except Exception as error:
            raise _told(line, rank, error) from error
        _send(line, None)
        while True:
            name, arguments = _receive(line)
            try:
                answer = getattr(follower, name)(*arguments)
            except Exception as error:
                raise _told(line, rank, error) from error
            _send(line, answer)


def _ended(rank: int) -> RankLost:
    return RankLost(f"rank {rank} of the trainer has ended")


def _call(meeting: Meeting, rank: int) -> socket.socket:
    try:
        caller = socket.create_connection((meeting.address, meeting.port), timeout=scaled(START_S))
        caller.sendall(meeting.key + rank.to_bytes(NUMBER))
    except OSError as error:
        raise RankLost(
            f"rank {rank} of the trainer cannot reach rank 0 at {meeting.address}:{meeting.port} ({error}); every "
            "machine of a trainer must reach the others at all ports"
        ) from None
    caller.settimeout(None)
    return caller


def _told(line: Connection, rank: int, error: Exception) -> EtudeError:
    """What a rank has failed of, once rank 0 was told."""
    failure = _failure_of(rank, error)
    with suppress(OSError):
        _send(line, _Failure(failure))
    return failure


def _failure_of(rank: int, error: Exception) -> EtudeError:
    if isinstance(error, EtudeError):
        return error
    if _means_lost(error):
        return RankLost(f"rank {rank} of the trainer does not reach another: {_first_line(error)}")
    return EtudeError(f"rank {rank} of the trainer failed: {type(error).__name__}: {error}")


def _means_lost(error: Exception) -> bool:
    return isinstance(error, RankLost | dist.DistError) or (isinstance(error, RuntimeError) and _GLOO in str(error))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _send(line: Connection, what: Any) -> None:
    line.send_bytes(pickle.dumps(what))  # `send` would hand tensors over in shared memory, which strangers cannot open


def _receive(line: Connection) -> Any:
    return pickle.loads(line.recv_bytes())
