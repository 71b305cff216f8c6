"""Where permissions are kept: the user's own file, and a repository's.

    [permissions]                        # everywhere
    ask = ["run(git push *)"]

    [projects."/home/ada/engine"]        # in this project
    allow = ["run(pytest *)"]

A repository may bring a file as well, which asks and denies, and allows nothing: who writes a repository does not
decide what runs on the machine of whoever opens it. What a user answers with "always" goes into their own file. Owns
`load_permissions` and `remember`.
"""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from etude.config import parse
from etude.durable import write_whole
from etude.errors import ConfigError
from etude.harness.permissions.rules import PermissionConfig
from etude.host import beneath

IN_REPOSITORY = ".etude/permissions.toml"
_LISTS = ("allow", "ask", "deny")
_MOST_BYTES = 1 << 20


def user_file() -> Path:
    """Below XDG_CONFIG_HOME, or ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "etude" / "permissions.toml"


def load_permissions(project: Path, file: Path | None = None) -> PermissionConfig:
    """The user's permissions for a project, made stricter by the project's own. Missing files are empty."""
    file = file or user_file()
    own = _read(file)
    if unknown := set(own) - {"permissions", "projects"}:
        raise ConfigError(f"{file}: {', '.join(sorted(unknown))}: unknown table; known: permissions, projects")
    here = own.get("projects", {}).get(str(project.resolve()), {})
    theirs = _read(project / IN_REPOSITORY, project)
    if unknown := set(theirs) - {"ask", "deny"}:
        raise ConfigError(
            f"{project / IN_REPOSITORY}: {', '.join(sorted(unknown))}: a repository may only `ask` and `deny`; "
            f"allow in {file}"
        )
    tables = (own.get("permissions", {}), here, theirs)
    merged = {key: value for table in tables for key, value in table.items()}
    for name in _LISTS:
        merged[name] = [rule for table in tables for rule in table.get(name, [])]
    return parse(merged, PermissionConfig, str(file))


def remember(project: Path, rules: Sequence[str], file: Path | None = None) -> None:
    """Allow these in a project from now on. The file is replaced whole: a reader never finds half of it."""
    file = file or user_file()
    data = _read(file)
    here = data.setdefault("projects", {}).setdefault(str(project.resolve()), {})
    here["allow"] = list(dict.fromkeys([*here.get("allow", []), *rules]))
    parse({"allow": here["allow"]}, PermissionConfig, str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, tomli_w.dumps(data).encode(), listed=True, shared=True)


def _read(file: Path, within: Path | None = None) -> dict[str, Any]:
    """The user's own file, which may be a link; or, `within` a project, one that somebody else may have written."""
    try:
        if within is None:
            return tomllib.loads(file.read_text())
        return tomllib.loads(beneath.read(within, str(file.relative_to(within)), _MOST_BYTES).decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # no fault of the file's
            raise
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); make it a plain file, or remove it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
