"""The file of `etude cluster`: the machines, how they are reached, and what each must have.

Owns `BareConfig`. Files and secrets are named once, here, and are the same on every machine. Needs no Ray, so that a
laptop can hold it.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from etude.config import Config
from etude.deadlines import DeadlineConfig
from etude.environments.remote import default_state_dir
from etude.errors import ConfigError
from etude.rollouts.machines.config import Resources
from etude.serving.token import own_token

Destination = Annotated[str, Field(pattern=r"^[^-\s][^\s]*$")]
"""What ssh would take for an option is none."""
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_OURS = re.compile(r"RAY_|ETUDE_")


def _as_usual(address: str) -> str:
    """The one spelling of an address. Raises ValueError for what is none, or of a kind that was never tried."""
    if re.fullmatch(r"[^:]+:\d+", address):
        raise ValueError(f'{address}: give the address alone; a port of ssh\'s is one of ssh_options: "Port=2222"')
    if re.search(r"[^\w.:\-]", address) or not address:
        raise ValueError(f"{address!r}: give a name or an IPv4 address of the machine; a user's name goes into `ssh`")
    if address.lower() == "localhost" or address.startswith("127."):
        raise ValueError(
            f"{address}: is every machine's name for itself, and Ray takes another; give the address by which others "
            "reach this one"
        )
    if ":" in address:
        raise ValueError(f"{address}: Etude's clusters know no IPv6; give a name or an IPv4 address of the machine")
    if re.fullmatch(r"[\d.]+", address):
        return str(IPv4Address(address))
    return address.lower()


class MachineConfig(Config):
    """One machine."""

    address: Annotated[str, AfterValidator(_as_usual)]
    """By which the others reach it: an IPv4 address or a name."""
    ssh: Destination | None = None
    """What `ssh` is told, `USER@HOST` or a host of ~/.ssh/config; None: the address."""
    cpus: int | None = Field(None, ge=0)
    """That Ray may give away there; None: all."""
    resources: Resources = {}
    """Further things that Ray may give away there, by names of your own: a recipe's `machines.places` asks for them."""

    @property
    def destination(self) -> str:
        return self.ssh or self.address


class BareConfig(Config):
    """A cluster of bare machines, on each of which Etude is installed, the same version, with its extra `train`."""

    name: str = Field("etude", pattern=r"^[a-z0-9-]{1,32}$")
    """Tells its processes from those of another cluster on the same machines."""
    machines: tuple[MachineConfig, ...] = Field(min_length=1)
    """The first is the head: the others join it, and runs are started on it."""
    port: int = Field(6379, ge=1, le=65535)
    """Of the head."""
    python: str = Field("python3", min_length=1)
    """The interpreter that Etude is installed for, on every machine."""
    state_dir: PurePosixPath = PurePosixPath("~/.local/state/etude/clusters")
    """Where each machine keeps the token and what Ray said when it was started."""
    ssh_options: tuple[str, ...] = ()
    """Each is given to `ssh -o`: "IdentityFile=~/.ssh/cluster", say."""
    token_file: Path | None = None
    """Holds the cluster's token, which `up` makes where there is none; None: below Etude's home."""
    files: dict[str, Path] = {}
    """Copied to every machine by `up`: where they are there, an absolute path, and where they are here."""
    env: dict[Variable, str] = {}
    """Variables of all processes of the cluster."""
    secrets: dict[Variable, Path] = {}
    """The same, each with the file that holds its value. They go through ssh's input, never on a command line."""
    deadlines: DeadlineConfig = DeadlineConfig()

    @model_validator(mode="after")
    def _apart(self) -> BareConfig:
        addresses = [each.address for each in self.machines]
        if twice := {each for each in addresses if addresses.count(each) > 1}:
            raise ValueError(f"machines: {min(twice)} is there twice; a machine runs one part of a cluster")
        for there in self.files:
            if not there.startswith("/"):
                raise ValueError(f"files: {there!r}: give an absolute path of the machines")
        for name in (*self.env, *self.secrets):
            if _OURS.match(name) or (name in self.env and name in self.secrets):
                raise ValueError(f"{name}: is set by Etude, or both in env and in secrets; leave it out")
        return self

    @property
    def head(self) -> MachineConfig:
        return self.machines[0]

    @property
    def url(self) -> str:
        """What `machines.url` of a recipe is for this cluster."""
        return f"{self.head.address}:{self.port}"

    @property
    def directory(self) -> str:
        """Where the machines keep what is of this cluster."""
        return str(self.state_dir / self.name)

    def token(self) -> str:
        """Made when there is none yet."""
        usual = default_state_dir().parent / "clusters" / f"{self.name}.token"
        return own_token(usual if self.token_file is None else self.token_file.expanduser())

    def variables(self) -> dict[str, str]:
        """Of the cluster's processes, secrets among them. Raises ConfigError where a file is not there."""
        found = {name: _read(path, f"secrets.{name}").decode().rstrip("\n") for name, path in self.secrets.items()}
        return {**self.env, **found, **self.deadlines.variables()}

    def contents(self) -> dict[str, bytes]:
        """Of the files, by where they are to be."""
        return {there: _read(here, f"files.{there}") for there, here in self.files.items()}


def _read(path: Path, key: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}; relative paths start where the command is run") from None
