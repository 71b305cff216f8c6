"""Containers that a command on this machine starts, with the guest agent on the command's standard streams.

Owns what every such kind of sandbox repeats: the agent's line, its greeting and what the command said where there is
none, the one image, and the end of the process. A backend of this kind writes `capabilities` and `command`, and nothing
else; docs/extending.md has one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence

from etude.deadlines import scaled
from etude.environments.base import Capabilities, SandboxSpec
from etude.environments.child import spawn
from etude.environments.container.backend import ContainerBackend, Image
from etude.environments.container.config import ContainerConfig
from etude.environments.container.places import sizes
from etude.environments.container.sandbox import ContainerHost, ContainerSandbox
from etude.environments.spawned import SpawnedSandbox
from etude.errors import ConfigError, SandboxError

_STOP_S = 15.0


class CommandSandbox(ContainerSandbox, SpawnedSandbox):
    """See base.Sandbox for the meaning of its methods; made by CommandBackend.create."""

    def __init__(
        self, keeper: ContainerHost, name: str, number: int, spec: SandboxSpec, command: Sequence[str],
        config: ContainerConfig,
    ) -> None:  # fmt: skip
        super().__init__(keeper, name, number, config.image or "", spec, config.file_timeout_s)
        self._command, self._start_s = command, config.start_timeout_s

    async def boot(self) -> None:
        program = shutil.which(self._command[0])
        if program is None:
            raise SandboxError(f"{self._command[0]} is not installed; it starts the sandboxes of this backend")
        command = [program, *self._command[1:]]
        with tempfile.TemporaryFile() as log:
            try:
                await self._begin(
                    lambda line: spawn(command, (), log.fileno(), line=line.fileno(), env=os.environ), self._start_s
                )
            except SandboxError:
                log.seek(0)
                said = log.read()[-500:].decode(errors="replace").strip()
                raise SandboxError(
                    f"sandbox {self.id} did not start: {said or 'its agent ended silently'}; {program} started it"
                ) from None

    async def _remove(self) -> None:
        await SpawnedSandbox._end(self)

    @property
    def _stop_s(self) -> float:
        return scaled(_STOP_S)


class CommandBackend(ContainerBackend):
    """Base of such backends. `config.image` names the only image there is."""

    capabilities: Capabilities

    def __init__(self, config: ContainerConfig) -> None:
        super().__init__(config, config.kind)

    def command(self, name: str, spec: SandboxSpec, places: Mapping[str, int]) -> Sequence[str]:
        """What starts `guest contain NAME PROCESSES` (the program is `self.program`) in a sandbox of this name, with
        its standard input and output as they are. `places` are the directories to be written to, with their bytes.
        The command has this process's environment, keys and all: it must give none of it to the sandbox."""
        raise NotImplementedError

    async def _look_at(self, name: str) -> Image:
        if name != self._config.image:
            raise ConfigError(f"image {name}: the {self._name} backend has {self._config.image!r} alone; name no other")
        return Image(name)

    def _new(self, name: str, number: int, image: Image, spec: SandboxSpec) -> CommandSandbox:
        command = self.command(name, spec, sizes(spec.resources))
        return CommandSandbox(self, name, number, spec, command, self._config)
