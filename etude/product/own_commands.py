"""Slash commands of the user's own: a Markdown file each, whose text is the prompt.

Owns `own_commands` and `expanded`. They lie in the user's configuration (`~/.config/etude/commands/NAME.md`) and
nowhere else: a repository's are not read, since whoever writes a repository is not who gives its user's orders.
`$ARGUMENTS` in a file stands for what was typed after the name. Files are read when they are asked for, so one that was
just written is there. Knows no face: a prompt that begins with such a command is expanded wherever it comes from.
"""

from __future__ import annotations

import re
from pathlib import Path

from etude.errors import ConfigError
from etude.plain import short_line
from etude.product.config import config_file

_ARGUMENTS = "$ARGUMENTS"
_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
_TYPED = re.compile(rf"/({_NAME.pattern})(?:\s+(.*))?", re.DOTALL)
_MOST_BYTES = 64_000
_LONGEST = 60


def own_commands() -> dict[str, str]:
    """What there is by name, with the first line of each: what a list says it does."""
    found = {path.stem: path for path in sorted(_folder().glob("*.md")) if _NAME.fullmatch(path.stem)}
    return {name: _does(path) for name, path in found.items()}


def expanded(prompt: str) -> str:
    """A prompt as the model reads it: the text of the command that it is, or the prompt itself."""
    typed = _TYPED.fullmatch(prompt.strip())
    if typed is None or not (path := _folder() / f"{typed[1]}.md").is_file():
        return prompt
    text, given = _text(path), (typed[2] or "").strip()
    if _ARGUMENTS in text:
        return text.replace(_ARGUMENTS, given)
    return f"{text}\n\n{given}" if given else text


def _folder() -> Path:
    return config_file().parent / "commands"


def _does(path: Path) -> str:
    try:
        return short_line(_text(path).lstrip("# "), _LONGEST)
    except ConfigError as error:
        return str(error)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{path}: longer than {_MOST_BYTES} bytes; a command is a prompt, so make it shorter")
        text = data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from None
    if not text:
        raise ConfigError(f"{path}: is empty; write into it what the model is to be told")
    return text
