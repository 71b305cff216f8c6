"""The errors Etude raises on purpose.

Owns the tree below, and `Exit`, the codes that commands end with; every message says what went wrong, where, and what
to do about it. Never used for control flow, and never for a failing task: a failed rollout is an `Outcome` (see
`records`), not an exception.

    EtudeError
    ├── ConfigError        a recipe or option is wrong; names the key's path
    ├── MissingDependency  a program or extra is not installed; names the command that installs it
    ├── DeadlineExceeded   a wait ran out; names what was waited for
    ├── SandboxError       a sandbox could not be made, reached or destroyed
    │   ├── SandboxSpoiled what ran inside made it unusable
    │   ├── Overloaded     there is no room for it now; names how long to wait before asking again
    │   └── Unreachable    the server of sandboxes does not answer
    ├── BuildError         a step of an image's build failed; names its line and quotes what it said
    ├── CheckpointError    saved state is absent, torn or does not match
    ├── RankLost           a rank of a trainer is gone; all of them start anew from the checkpoint
    ├── WeightError        a version, delta or chunk failed its check
    ├── ContextOverflow    a request does not fit the model's context
    ├── InvalidRequest     a request to an engine could never be carried out as it stands
    ├── EndpointError      a model's endpoint would not answer as it was asked; says which setting to look at
    ├── Interrupted        the user asked to stop
    │   └── Terminated     whoever looks after processes did, by SIGTERM
    ├── AccountingError    samples of a run were lost, or trained on twice
    └── UnusedFeature      an enabled feature was never used in a whole run
"""

from __future__ import annotations

import signal
from enum import IntEnum


class Exit(IntEnum):
    """How a command ends. Every command keeps to these; docs/commands.md shows them with what they mean."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    DONE = 0, "it did what was asked"
    FAILED = 1, "something failed: a model, a sandbox, the disk; or what was checked is not as it should be"
    UNKNOWN = 2, "an unknown command, flag or choice"
    BAD_INPUT = 42, "what was given is wrong: a file, a key, a name, or two options that do not go together"
    REFUSED = (
        43,
        "`etude agent -p`: the model finished, and calls were refused because nobody could be asked",
    )
    LIMIT = 53, "`etude agent -p`: a limit was reached: turns, tokens or time; `-r` goes on"
    CRASHED = 70, "`etude train`: a bug of ours, after the restarts that `[faults]` allows"
    INTERRUPTED = 130, "you stopped it with Ctrl-C"
    TERMINATED = 143, "it was stopped by SIGTERM"


class EtudeError(Exception):
    """Base of every deliberate error. `str(error)` is one message a user can act on."""


class ConfigError(EtudeError):
    """A recipe, option or record is wrong; the message starts with the path of the offending key."""


class MissingDependency(EtudeError):
    """A program or optional package is missing; the message holds the command that installs it."""


class DeadlineExceeded(EtudeError):
    """A wait ran out of time."""

    def __init__(self, waited_for: str, seconds: float, hint: str = "") -> None:
        super().__init__(f"waited {seconds:.1f} s for {waited_for}{': ' + hint if hint else ''}")
        self.waited_for = waited_for
        self.seconds = seconds

    def __reduce__(self) -> tuple[type, tuple[str, float]]:  # exceptions with own arguments must say how to unpickle
        return type(self), (self.waited_for, self.seconds)


class SandboxError(EtudeError):
    """A sandbox could not be made, reached or destroyed. An infrastructure failure, never a reward, unless it is
    SandboxSpoiled."""


class SandboxSpoiled(SandboxError):
    """What ran inside made it unusable: the policy's outcome, never an infrastructure failure."""


class Unreachable(SandboxError):
    """No server of sandboxes answers where one should be: it is away, or was never there."""


class Overloaded(SandboxError):
    """A request was refused because too many wait already. Ask again, with the same request id, after a while."""

    def __init__(self, what: str, retry_after_s: float) -> None:
        super().__init__(f"{what}; ask again in {retry_after_s:.0f} s")
        self.what = what
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type, tuple[str, float]]:
        return type(self), (self.what, self.retry_after_s)


class BuildError(EtudeError):
    """A step of an image's build failed: the Dockerfile's fault, not the sandbox's."""


class CheckpointError(EtudeError):
    """Saved state is absent, torn, or belongs to another run."""


class RankLost(EtudeError):
    """A rank of a trainer has ended or is out of reach, and the others can do nothing without it."""


class WeightError(EtudeError):
    """A version, delta or chunk failed its check; nothing of it was served."""


class ContextOverflow(EtudeError):
    """A request does not fit the model's context window."""


class InvalidRequest(EtudeError):
    """A request to an engine could never be carried out as it stands; its sender must change it."""


class EndpointError(EtudeError):
    """A model's endpoint refused, or answered what is no answer, and asking again will not help."""


class Interrupted(EtudeError):
    """The user asked to stop, and everything that can be resumed is saved."""


class Terminated(Interrupted):
    """SIGTERM asked to stop."""


def stopped_by(number: int, said: str) -> Interrupted:
    """The error of a process that a signal asked to stop."""
    return (Terminated if number == signal.SIGTERM else Interrupted)(said)


class AccountingError(EtudeError):
    """What became of a run's samples does not add up: a fault of the program."""


class UnusedFeature(EtudeError):
    """A feature was enabled and its use counter is zero at the end of the run."""
