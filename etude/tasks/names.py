"""Names that others gave and that become paths: the directories in a bundle, and the ids of tasks.

Owns `is_name`, `is_id` and `file_name`. A bundle, a task.toml and a line of a data set come from strangers, and none of
them may say where on this disk something is written. An id may have slashes, as Harbor's `organisation/name` has: as a
path it is always one component, the same for no other id.
"""

from __future__ import annotations

import re

from etude.plain import is_plain

_MOST_BYTES, _MOST_ID_BYTES = 255, 240
"""Of a name, as file systems have it; and of an id's, which gets an ending."""
ID_RULE = "an id is visible text of at most 240 bytes, without '', '.', '..' or '.git' between its slashes"


def is_name(name: str) -> bool:
    """Whether it is one plain component of a path that can be seen as it is."""
    odd = name in ("", ".", "..") or name.lower() == ".git" or "/" in name or "\n" in name or not is_plain(name)
    return not odd and len(name.encode()) <= _MOST_BYTES


def is_id(task_id: str) -> bool:
    """Whether a task may have this id."""
    return all(map(is_name, task_id.split("/"))) and len(file_name(task_id)) <= _MOST_ID_BYTES


def file_name(task_id: str) -> str:
    """An id as one component of a path: the id itself where it is plain."""
    return re.sub(rb"[^A-Za-z0-9._-]", lambda found: b"%%%02x" % ord(found[0]), task_id.encode()).decode()
