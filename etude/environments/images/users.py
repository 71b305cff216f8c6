"""Users and groups by name, as an image's own /etc/passwd and /etc/group give them."""

from __future__ import annotations

from collections.abc import Iterator

from etude.environments.images.confined import Confined
from etude.errors import ConfigError

_LAST = 65_535  # an image has as many users as the range it is given on the host


def resolve_user(tree: Confined, user: str) -> tuple[int, int]:
    """The numbers of `name`, `uid`, `name:group` or `uid:gid`; nothing named is root."""
    name, _, group = user.partition(":")
    entry = _find(tree, "etc/passwd", name or "0", user)
    uid = int(name) if name.isdigit() else int(entry[2]) if entry else 0
    if group:
        found = _find(tree, "etc/group", group, user)
        gid = int(group) if group.isdigit() else int(found[2]) if found else 0
    else:
        gid = int(entry[3]) if entry else 0
    if not (0 <= uid <= _LAST and 0 <= gid <= _LAST):
        raise ConfigError(f"user {user!r}: an image's users and groups are 0 to {_LAST}")
    return uid, gid


def home_of(tree: Confined, uid: int) -> str:
    """The home directory of a user; / when it has no entry, as login programs take it."""
    for fields in _entries(tree, "etc/passwd"):
        if len(fields) > 5 and fields[2] == str(uid):
            return fields[5] or "/"
    return "/root" if uid == 0 else "/"


def _find(tree: Confined, path: str, wanted: str, user: str) -> list[str] | None:
    """The line of a name or, for a number, of that number. A number needs none."""
    for fields in _entries(tree, path):
        if len(fields) > 3 - (path == "etc/group") and (fields[0] == wanted or fields[2] == wanted):
            return fields
    if wanted.isdigit():
        return None
    raise ConfigError(f"user {user!r}: {wanted!r} is not in the image's /{path}")


def _entries(tree: Confined, path: str) -> Iterator[list[str]]:
    place = tree.resolve(path)
    if place.is_file():
        for line in place.read_text(errors="replace").splitlines():
            yield line.split(":")
