"""One request to one machine, by the plain `ssh` program; what answers there is `far`.

Owns how ssh is called, and what is said where it, the interpreter or Etude is not as it must be. Nothing is ever asked
of the user (BatchMode). The request goes in by stdin, so that what it holds is on no command line; the answer is one
marked line, since a login may print before it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any

from etude.deadlines import scaled
from etude.errors import ConfigError, DeadlineExceeded, EtudeError, MissingDependency
from etude.rollouts.machines.bare_config import BareConfig, MachineConfig

ANSWER = "etude-cluster: "
"""What the line of an answer begins with."""
CONNECT_S = 10.0
_MODULE = "etude.rollouts.machines.far"
_SSH_FAILED, _NOT_FOUND = 255, 127
_DEAD_AFTER = ("ServerAliveInterval=5", "ServerAliveCountMax=3")


class Unreached(EtudeError):
    """A machine cannot be asked: ssh gets no connection to it, or not within the deadline."""


def command_of(config: BareConfig, machine: MachineConfig) -> list[str]:
    """The command line, on which there is no secret. The user's options come first, since ssh keeps the first."""
    own = ("BatchMode=yes", f"ConnectTimeout={max(1, round(scaled(CONNECT_S)))}", *_DEAD_AFTER)
    there = f"{shlex.quote(config.python)} -m {_MODULE}"
    return ["ssh", "-T", *_options(config, *own), "--", machine.destination, there]


def _options(config: BareConfig, *own: str) -> list[str]:
    return [part for option in (*config.ssh_options, *own) for part in ("-o", option)]


async def ask(config: BareConfig, machine: MachineConfig, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer of a machine. Raises Unreached, or what is wrong there, naming the machine and what to do."""
    try:
        ssh = await asyncio.create_subprocess_exec(
            *command_of(config, machine),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except FileNotFoundError:
        raise MissingDependency("ssh is not installed here: apt-get install openssh-client") from None
    try:
        async with asyncio.timeout(seconds):
            out, said = await ssh.communicate(json.dumps(request).encode())
    except TimeoutError:
        raise Unreached(str(DeadlineExceeded(f"{machine.address} to {request['verb']}", seconds))) from None
    finally:
        if ssh.returncode is None:
            ssh.kill()
            await ssh.wait()
    assert ssh.returncode is not None
    return _answer(out.decode(errors="replace"), said.decode(errors="replace"), ssh.returncode, config, machine)


def _answer(out: str, said: str, code: int, config: BareConfig, machine: MachineConfig) -> dict[str, Any]:
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing").strip()
    if code == _SSH_FAILED:
        raise Unreached(
            f"{machine.address}: ssh gets no connection ({last}); it must work without a question: "
            f"{shlex.join(['ssh', *_options(config, 'BatchMode=yes'), machine.destination, 'true'])}"
        )
    if code == _NOT_FOUND:
        raise ConfigError(f"python: {machine.address} has no {config.python}; name the interpreter of Etude there")
    for line in reversed(out.splitlines()):
        if line.startswith(ANSWER):
            answer = json.loads(line.removeprefix(ANSWER))
            if "error" in answer:
                raise EtudeError(f"{machine.address}: {answer['error']}")
            return answer
    if "No module named" in last:
        raise ConfigError(
            f"python: {machine.address}: {config.python} has no Etude with its extra train ({last}); install it there, "
            "or name another interpreter"
        )
    raise EtudeError(f"{machine.address}: {config.python} ended with {code}: {last}")
