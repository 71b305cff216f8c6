"""What a sandbox has as its / when it starts on an image instead of the host's toolchain.

Owns the `Root` a backend hands to the launcher, the places an image must have for a sandbox to run on it, and the part
of the launcher's and of bubblewrap's arguments that only images need. There are two kinds: an agent's, read-only
but for the workspace, its user without any capability; and a build's, all of it writable, whose root keeps those
capabilities over the image's own users that installing packages takes (none reaches beyond the image).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.environments.base import WORKSPACE
from etude.environments.images.confined import Confined
from etude.environments.toolchain import ENVIRONMENT
from etude.errors import ConfigError

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POINTS = ("proc", "dev", "guest")
_AGENT_POINTS = ("tmp", "workspace", "tests", "logs", "home/agent")
_BUILD_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SYS_CHROOT",
)  # fmt: skip


@dataclass(frozen=True)
class Root:
    """See environments.roots.Root. `trees` are directories in the mount namespace `mounts`, highest first."""

    trees: tuple[Path, ...]
    mounts: str
    uid: int
    gid: int
    env: Mapping[str, str]
    workspace: str = WORKSPACE
    """The directory of the image that agents work in: the workspace starts from it, and stands in its place."""
    has_workspace: bool = False
    """Whether the image has that directory."""
    building: bool = False

    @property
    def owner(self) -> tuple[int, int]:
        """Whose the top of the writable overlay is, as seen inside: an agent's workspace, a build's whole root."""
        return (0, 0) if self.building else (self.uid, self.gid)

    @property
    def isolation(self) -> list[str]:
        """bubblewrap's part: who the user is, and what it may do."""
        if self.building and self.uid == 0:
            return [part for name in _BUILD_CAPABILITIES for part in ("--cap-add", f"CAP_{name}")]
        return ["--unshare-user", "--disable-userns", "--uid", str(self.uid), "--gid", str(self.gid)]

    @property
    def variables(self) -> Mapping[str, str]:
        """Of every command: a build's are the image's alone."""
        return self.env if self.building else image_environment(self.uid, self.env)

    def lowers(self, layers: Sequence[str]) -> list[str]:
        """What the writable overlay stands on: `layers` over the workspace of the image, or the whole image."""
        if self.building:
            return [*self._stages, "stage/build-points"]
        return [*layers, *([f"stage/tree-0{self.workspace}"] if self.has_workspace else [])]

    def launch(self, directory: Path, first: int, shown: Sequence[str]) -> list[str]:
        """The launcher's part: users, trees, and for an agent the read-only root. Its user 0 is `first` of the host;
        `shown` are arguments for what else is to be shown as owned by such."""
        points = "stage/build-points" if self.building else "stage/points"
        # a build's root makes no user namespaces; an agent's bubblewrap makes two and then forbids more itself
        nested = "0" if self.building and self.uid == 0 else "-"
        arguments = ["-u", str(first), *shown]
        for tree, stage in zip(self.trees, self._stages, strict=True):
            (directory / stage).mkdir(exist_ok=True)
            arguments += ["-l", str(tree), stage]
        arguments += ["-l", str(directory / points), points]
        if not self.building:
            arguments += ["-r", f"lowerdir={':'.join([*self._stages, points])}"]
        return [*arguments, "-i", str(self.uid), str(self.gid), nested]

    @property
    def _stages(self) -> list[str]:
        return [f"stage/tree-{number}" for number in range(len(self.trees))]


def check_points(tree: Confined, targets: Sequence[str], building: bool = False) -> None:
    """Refuse an image in which a symlink stands where a sandbox mounts something: it could lead the mount elsewhere."""
    for point in (*_POINTS, *(() if building else (*_AGENT_POINTS, *targets))):
        place = tree.root / point.lstrip("/")
        if tree.resolve(point) != place:
            raise ConfigError(
                f"image: /{point.lstrip('/')} is, or lies below, a symlink; a sandbox mounts its own there"
            )


def image_environment(uid: int, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of commands on an image whose user is `uid` and that declares `env`."""
    return {**ENVIRONMENT, "USER": "root" if uid == 0 else "agent", "PATH": DEFAULT_PATH, **env}


def make_points(directory: Path, targets: Sequence[str]) -> None:
    """Make the mount points that lie beneath an image, for whatever it lacks; `targets` are further ones of agents."""
    agents = (*_POINTS, *_AGENT_POINTS, *(target.lstrip("/") for target in targets))
    for name, points in (("points", agents), ("build-points", _POINTS)):
        root = directory / "stage" / name
        for point in points:
            (root / point).mkdir(parents=True, exist_ok=True)
        (root / "guest" / "guest").touch()
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)  # whatever our umask
