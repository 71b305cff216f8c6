"""Which extra of Etude brings a package that is missing, and the command that installs it here.

Owns `extra_of` and `install_command`. Both read the metadata of the installed package: pyproject.toml is the only place
where extras are listed. The command installs from where Etude itself came: an index, a clone, an archive or a git
repository (PEP 610). Imports no package that it is asked about.
"""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit

_CALLED = {"acp": "agent-client-protocol", "yaml": "pyyaml"}
"""Packages whose modules have another name."""
_OTHERS = ("dev", "bench")
"""Extras for those who work on Etude: more than a command needs."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+).*\bextra == ['\"](?P<extra>[\w-]+)['\"]")


def extra_of(module: str) -> str | None:
    """The smallest extra that brings this module; None where no extra does."""
    wanted = _CALLED.get(module.partition(".")[0], module.replace(".", "-").replace("_", "-").lower())
    listed: dict[str, list[str]] = {}
    for line in _requirements():
        if (found := _REQUIREMENT.match(line)) and found["extra"] not in _OTHERS:
            listed.setdefault(found["extra"], []).append(found["name"].lower().replace("_", "-"))
    having = [extra for extra, names in listed.items() if any(f"{name}-".startswith(f"{wanted}-") for name in names)]
    return min(having, key=lambda extra: len(listed[extra]), default=None)


def install_command(extra: str) -> str:
    """What a user types to have the extra too: `pip install 'etude[train]'`, or the same from where Etude came."""
    return f"pip install {_origin(extra)}"


def _origin(extra: str) -> str:
    etude = _distribution()
    came: dict[str, Any] = {"dir_info": {}, "url": "."}  # as pip would be called in a clone
    if etude is not None:
        came = json.loads(etude.read_text("direct_url.json") or "{}")
    url: str = came.get("url", "")
    if "dir_info" in came:
        editable = "-e " if came["dir_info"].get("editable") else ""
        return f"{editable}'{unquote(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in came:
        url = f"{came['vcs_info']['vcs']}+{url}@{came['vcs_info']['commit_id']}"
    return shlex.quote(f"etude[{extra}] @ {url}" if url else f"etude[{extra}]")


def _requirements() -> list[str]:
    etude = _distribution()
    return [] if etude is None else etude.requires or []


def _distribution() -> Distribution | None:
    try:
        return distribution("etude")
    except PackageNotFoundError:  # run from its source alone
        return None
