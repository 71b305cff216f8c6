"""Where permissions are kept: the user's own file, and a repository's.

    [permissions]                        # everywhere
    ask = ["run(git push *)"]

    [projects."/home/ada/engine"]        # in this project
    allow = ["run(pytest *)"]

A repository may bring a file as well, which asks and denies, and allows nothing: who writes a repository does not
decide what runs on the machine of whoever opens it. Who starts below a project is still in it: what a table or a file
of a directory above asks or denies holds too (`permissions.inherited`), a file's up to the repository's top. What a
user allowed holds where they allowed it, and nowhere else. What a user answers with "always" goes into their own file.
Owns `load_permissions`, `brought`, for a sandbox that is no user's, and `remember`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from etude.config import parse, parse_toml
from etude.durable import write_whole
from etude.errors import ConfigError
from etude.harness.permissions.inherited import inherited
from etude.harness.permissions.rules import STRICTNESS, PermissionConfig, Rule, Verdict
from etude.host import beneath
from etude.host.repository import find

IN_REPOSITORY = ".etude/permissions.toml"
_LISTS = ("allow", "ask", "deny")
_STRICT: tuple[Verdict, ...] = ("ask", "deny")
_MOST_BYTES, _MOST_RULES, _LONGEST = 1 << 16, 200, 4_096
"""Of a repository's file: each rule is looked for in all of the workspace."""
_SHOWN = 300
_OF_TOP = "this repository"


@dataclass(frozen=True)
class _Placed(Rule):
    """A rule that says where it was written."""

    told: str

    def __str__(self) -> str:
        return self.told


class _Stored(PermissionConfig):
    """The permissions of a project, of which some were written above it."""

    _told: dict[tuple[Verdict, str], str] = PrivateAttr(default_factory=dict)

    def rules(self) -> list[Rule]:
        return [
            _Placed(rule.text, rule.verdict, told) if (told := self._told.get((rule.verdict, rule.text))) else rule
            for rule in super().rules()
        ]


@dataclass(frozen=True)
class _Table:
    """What was written for a directory, above the project or the project itself."""

    place: Path
    said: PermissionConfig
    whose: str = ""

    def rules(self, verdict: Verdict, project: Path) -> Iterator[tuple[str, str]]:
        """Rules as the project has to read them, each with what is told of it."""
        for text in getattr(self.said, verdict):
            rule = Rule(text, verdict)
            told = f"{rule} of {self.whose}" if self.whose else ""
            texts = [text] if self.place == project else inherited(rule, str(self.place), str(project))
            yield from ((each, told) for each in texts)


def user_file() -> Path:
    """Below XDG_CONFIG_HOME, or ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "etude" / "permissions.toml"


def load_permissions(project: Path, file: Path | None = None) -> PermissionConfig:
    """The user's permissions for a project, made stricter by what holds above it and by the repository's own. Missing
    files are empty."""
    file, project = file or user_file(), project.resolve()
    own = _read(file)
    if unknown := set(own) - {"permissions", "projects"}:
        raise ConfigError(f"{file}: {', '.join(sorted(unknown))}: unknown table; known: permissions, projects")
    everywhere = parse(own.get("permissions", {}), PermissionConfig, str(file))
    here = parse(own.get("projects", {}).get(str(project), {}), PermissionConfig, str(file))
    above = _users_above(own.get("projects", {}), project, file)
    tables = (_Table(project, everywhere), _Table(project, here), *above, *_repositorys(project, file))
    merged: dict[str, Any] = _defaults(everywhere, here, above) | {"allow": [*everywhere.allow, *here.allow]}
    told: dict[tuple[Verdict, str], str] = {}
    for verdict in _STRICT:
        placed = [pair for table in tables for pair in table.rules(verdict, project)]
        merged[verdict] = list(dict.fromkeys(text for text, _ in placed))
        for text, where in placed:
            told.setdefault((verdict, text), where)
    found = parse(merged, _Stored, str(file))
    found._told.update(told)
    return found


def _users_above(projects: dict[str, Any], project: Path, file: Path) -> list[_Table]:
    """The user's tables for directories that the project lies in, the nearest first; and those that name the project
    itself in another way, by a link or a `~`."""
    found = []
    for name, table in projects.items():
        place = Path(name).expanduser()
        if name != str(project) and place.is_absolute() and project.is_relative_to(place := place.resolve()):
            found.append(_Table(place, parse(table, PermissionConfig, f"{file}: projects.{name}"), name))
    return sorted(found, key=lambda table: -len(table.place.parts))


def _defaults(everywhere: PermissionConfig, here: PermissionConfig, above: Sequence[_Table]) -> dict[str, Any]:
    """What is said of calls that no rule matches: for this project, or the strictest of what holds above it."""
    said = _set(everywhere)
    for table in above:
        for name, value in _set(table.said).items():
            now = said.get(name, PermissionConfig.model_fields[name].default)
            stricter = value and not now if isinstance(value, bool) else STRICTNESS[value] > STRICTNESS[now]
            said |= {name: value} if stricter else {}
    return said | _set(here)


def _set(config: PermissionConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.model_fields_set if name not in _LISTS}


def _repositorys(project: Path, file: Path) -> Iterator[_Table]:
    """Of the project, and of each directory above it up to the repository's top, where that is the user's."""
    repository = find(project) if project.is_dir() else None
    top = (repository.top if repository else None) or project
    for place in (project, *(each for each in project.parents if each.is_relative_to(top))):
        theirs = _read(place / IN_REPOSITORY, top)
        whose = _OF_TOP if place == top else f"{_OF_TOP}'s {place.relative_to(top)}"
        yield _Table(place, _strict(theirs, str(place / IN_REPOSITORY), f"allow in {file}"), whose)


def _strict(theirs: dict[str, Any], where: str, instead: str) -> PermissionConfig:
    if unknown := set(theirs) - set(_STRICT):
        keys = ", ".join(sorted(unknown))[:_SHOWN]
        raise ConfigError(
            f"{where}: {keys}: a repository may only `ask` and `deny`, as "
            f'keys without a table above them: `deny = ["run(git push *)"]`; {instead}'
        )
    for name, rules in theirs.items():
        said = rules if isinstance(rules, list) else [rules]
        if len(said) > _MOST_RULES or any(len(str(rule)) > _LONGEST for rule in said):
            wanted = f"at most {_MOST_RULES} rules of at most {_LONGEST} characters"
            raise ConfigError(f"{where}: {name}: a repository may have {wanted}")
    return parse(theirs, PermissionConfig, where)


def brought(data: bytes | None) -> PermissionConfig:
    """What a repository's own file at its top asks and denies, and nothing of any user's; None is no such file. Raises
    ConfigError."""
    if data is not None and len(data) > _MOST_BYTES:
        raise ConfigError(f"{IN_REPOSITORY}: it is longer than {_MOST_BYTES} bytes")
    try:
        theirs = parse_toml(data.decode()) if data is not None else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{IN_REPOSITORY}: not valid TOML: {error}") from None
    said = _strict(theirs, IN_REPOSITORY, "what is denied by no rule is allowed")
    found = parse({verdict: list(getattr(said, verdict)) for verdict in _STRICT}, _Stored, IN_REPOSITORY)
    rules = [Rule(text, verdict) for verdict in _STRICT for text in getattr(said, verdict)]
    found._told.update({(rule.verdict, rule.text): f"{rule} of {_OF_TOP}" for rule in rules})
    return found


def remember(project: Path, rules: Sequence[str], file: Path | None = None) -> None:
    """Allow these in a project from now on. Only the list of what the project allows is changed, so the user's comments
    stay; the file is replaced whole: a reader never finds half of it."""
    file, name = file or user_file(), str(project.resolve())
    wanted = _read(file)
    allowed = wanted.setdefault("projects", {}).setdefault(name, {}).setdefault("allow", [])
    new = [rule for rule in dict.fromkeys(rules) if rule not in allowed]
    allowed += new
    parse({"allow": allowed}, PermissionConfig, str(file))
    if not new:
        return
    text = file.read_bytes().decode() if file.exists() else ""
    written = next((each for each in _with_allowed(text, name, new) if _read_as(each) == wanted), None)
    if written is None:
        lines = f"[projects.{json.dumps(name)}] allow = {json.dumps(allowed)}"
        raise ConfigError(f"{file}: its tables are written in a way that cannot be added to; write yourself: {lines}")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file.resolve(), written.encode(), listed=True, shared=True)  # it may be a link to where it is kept


def _with_allowed(text: str, name: str, rules: Sequence[str]) -> Iterator[str]:
    """The file's text with these allowed in a project and every other byte as it was, in the ways that could be right
    for how it is written."""
    import tomlkit  # only who answers "always" needs it
    from tomlkit.exceptions import TOMLKitError
    from tomlkit.items import InlineTable

    end = "\r\n" if "\r\n" in text else "\n"
    line = f"allow = {tomlkit.item(list(rules)).as_string()}{end}"
    document = tomlkit.parse(text)
    projects = document.get("projects", {})
    if name not in projects and not isinstance(projects, InlineTable):
        gap = "" if not text else end if text.endswith("\n") else 2 * end
        yield f"{text}{gap}[projects.{tomlkit.string(name).as_string()}]{end}{line}"
    with contextlib.suppress(TOMLKitError, TypeError):
        project = projects[name] if name in projects else projects.setdefault(name, tomlkit.inline_table())
        if "allow" not in project:
            yield from _below_its_head(text, name, line)
            project["allow"] = []
        for rule in rules:
            project["allow"].append(rule)
        yield tomlkit.dumps(document)


def _below_its_head(text: str, name: str, line: str) -> Iterator[str]:
    """With a line more below what could be the head of a project's table: at the table's end there may be comments that
    are about the next."""
    lines = text.splitlines(keepends=True)
    for at, head in enumerate(lines):
        if _read_as(head) == {"projects": {name: {}}}:
            whole = head if head.endswith("\n") else head + "\n"
            yield "".join([*lines[:at], whole, line, *lines[at + 1 :]])


def _read_as(text: str) -> dict[str, Any] | None:
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError:
        return None


def _read(file: Path, within: Path | None = None) -> dict[str, Any]:
    """The user's own file, which may be a link; or, `within` a project, one that somebody else may have written."""
    try:
        if within is None:
            return parse_toml(file.read_text())
        return parse_toml(beneath.read(within, str(file.relative_to(within)), _MOST_BYTES).decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # no fault of the file's
            raise
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); make it a plain file, or remove it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {str(error)[:_SHOWN]}") from None
