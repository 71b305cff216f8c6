"""The file of `etude cluster manifest`: the nodes of a cluster that KubeRay or SkyPilot makes, and what each is given.

Owns `NodesConfig`. A secret is named, never read: its value is in Kubernetes, or given to `sky launch`.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from etude.config import Config
from etude.rollouts.machines.bare_config import Variable
from etude.rollouts.machines.config import Resources

Label = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$")]
_SECRET_KEY = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._A-Za-z0-9]+")


def _secret_and_key(given: str) -> str:
    if not _SECRET_KEY.fullmatch(given):
        raise ValueError("give SECRET/KEY, a Secret of Kubernetes and the key of it that holds the value, no value")
    return given


SecretKey = Annotated[str, AfterValidator(_secret_and_key)]
_OURS = re.compile(r"RAY_|ETUDE_|SKYPILOT_")
_SECRET = re.compile(
    r"(^|_)(secret|password|passwd|token|credentials?|auth|authorization|webhook|(api|access|private|account)_?key)(_|$)"
    r"|(^|_)(?<!public_)key$",
    re.I,
)
_LOGIN = re.compile(r"\w://[^\s/?#'\"]*@")


def names_a_secret(name: str) -> bool:
    """Whether the value of a variable or key of this name is one, by the words of its name."""
    return bool(_SECRET.search(name)) and not name.lower().endswith(("_file", "_path", "_env", "_id"))


def holds_a_login(text: str) -> bool:
    """Whether there is a URL in it that says who its user is, and most often their password."""
    return bool(_LOGIN.search(text))


class NodeGroup(Config):
    """Nodes that are alike: pods of KubeRay, machines or pods of SkyPilot."""

    name: Label
    """Of its pods, and in what is said of it."""
    count: int = Field(1, ge=1, le=10_000)
    """How many of them."""
    cpus: int = Field(ge=1)
    """Of each, all of which Ray gives away."""
    memory_gb: int = Field(ge=1)
    """Of each, in units of 2^30 bytes."""
    gpus: int = Field(0, ge=0)
    """Of each."""
    resources: Resources = {}
    """Further things that Ray may give away there, by names of your own: a recipe's `machines.places` asks for them."""
    privileged: bool = False
    """Whether the container is privileged, as sandboxes of the namespace backend need. It gives up the isolation of the
    container, so dedicate the nodes."""
    node_selector: dict[str, str] = {}
    """Labels of the Kubernetes nodes that its pods may be on, with `--form kuberay`: the kind of GPU, say."""

    @property
    def offers(self) -> dict[str, float]:
        """What Ray gives away on one of them, by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_gb << 30, **self.resources}


class NodesConfig(Config):
    """The nodes of a cluster that KubeRay or SkyPilot makes for one run."""

    image: str = Field(pattern=r"^[a-z0-9][\w./:@-]*$")
    """Of the containers: Etude with its extra `train`, and `ray[default]` of the same version of Ray."""
    shared: PurePosixPath
    """The directory that all nodes share: the run's is below it. An absolute path."""
    volume: Label
    """What is mounted there: a PersistentVolumeClaim that several nodes may write (ReadWriteMany), or SkyPilot's volume
    of that name."""
    groups: tuple[NodeGroup, ...] = Field(min_length=1)
    """The first is the head, of which there is one."""
    accelerator: str | None = Field(None, pattern=r"^[A-Za-z][\w-]*$")
    """The kind of GPU by SkyPilot's name, `H100` say: needed with `--form skypilot` where a group has GPUs."""
    env: dict[Variable, str] = {}
    """Variables of all processes of the cluster."""
    secrets: dict[Variable, SecretKey] = {}
    """Variables with a secret's value: each as SECRET/KEY, a Secret of Kubernetes and the key of it that holds the
    value. With SkyPilot the variable's name is enough: `sky launch --secret NAME`."""

    @model_validator(mode="after")
    def _as_meant(self) -> NodesConfig:
        names = [each.name for each in self.groups]
        if twice := {each for each in names if names.count(each) > 1}:
            raise ValueError(f"groups: {min(twice)} is there twice; give each a name of its own")
        if self.groups[0].count != 1:
            raise ValueError(f"groups: {names[0]} is the first and so the head, of which there is one; set count = 1")
        if not self.shared.is_absolute() or len(self.shared.parts) < 2:
            raise ValueError(f"shared: {self.shared} must be an absolute path below /, such as /shared")
        for name in (*self.env, *self.secrets):
            if _OURS.match(name) or (name in self.env and name in self.secrets):
                raise ValueError(f"{name}: is set by Etude, or both in env and in secrets; leave it out")
        for name, value in self.env.items():
            if names_a_secret(name) or holds_a_login(value):
                kind = "names a secret" if names_a_secret(name) else "holds a URL with a user's name"
                raise ValueError(f"env: {name} {kind}, and what is in env is in the manifest; put it in secrets")
        return self

    @property
    def head(self) -> NodeGroup:
        return self.groups[0]

    @property
    def count(self) -> int:
        """Of all nodes."""
        return sum(each.count for each in self.groups)
