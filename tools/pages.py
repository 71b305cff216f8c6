"""Writes the pages that are made of the code: docs/recipes.md and docs/configuration.md of the docstrings of configs,
docs/commands.md of the commands' own help.

python tools/pages.py
"""

from __future__ import annotations

import argparse
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

from etude.cli.examples import EXAMPLES
from etude.cli.main import FILES
from etude.cli.parser import COMMANDS, actions_of, parser_of
from etude.config import Config
from etude.errors import Exit
from etude.explain import Key, keys_of, toml_of
from etude.models.shipped import shipped_model
from etude.rollouts.config import RunConfig

_LONGEST = 400
"""Characters of a default on a page; of a longer list only its length is said."""
DOCS = Path(__file__).parents[1] / "docs"
RECIPES = """# The keys of a recipe

A recipe is a TOML file for `etude train`; an unknown key is refused with its path, one that is gone with what to write
in its place, and one that would change nothing beside the others by name: `--set groups.straggler_s=` leaves a recipe's
key out. What stands here is from the docstrings of the configs (`python tools/pages.py` writes it). Of
one key in one recipe, and of a whole recipe:

```sh
etude train recipes/quickstart.toml --explain groups.straggler_s # what it does, its value, and the line that sets it
etude config recipes/quickstart.toml                             # every value in effect, as a recipe that loads again
```

Deadlines are no keys: each is a constant beside the code that waits, and `deadlines.scale` multiplies them all.

"""
CONFIGURATION = """# Configuration

The keys of every TOML file but recipes, which have [a page of their own](recipes.md). What stands here is from the
docstrings of the configs (`python tools/pages.py` writes it). An unknown key is refused with its path. A key can be
given on the command line too, by `--set TABLE.KEY=VALUE` as often as you like: [commands](commands.md) says where.

The keys of `etude pretrain`, which makes base models, are in [base_model.py](../etude/trainer/base_model.py),
[warm_start.py](../etude/trainer/warm_start.py) and [continued.py](../etude/trainer/continued.py). The last two are
explained in [warm-start](warm-start.md) and [midtraining](midtraining.md).

"""
COMMANDS_HEAD = """# Commands

Every command, its arguments and an example, as `etude COMMAND --help` has them (`python tools/pages.py` writes this).
A flag is written in full: `--mod` is not taken for `--model`. With `--json` a command prints JSON for programs.

## Completion
The script needs the extra `completion` (`pip install '.[completion]'`). Open a new shell after one of these:

```sh
etude completion bash > ~/.local/share/bash-completion/completions/etude
etude completion zsh > ~/.zfunc/_etude # where .zshrc has: fpath+=~/.zfunc; autoload -Uz compinit; compinit
etude completion fish > ~/.config/fish/completions/etude.fish
```

## Exit codes
All commands have these. A run of `etude train` that was ended by signal N has 128 + N.

| code | |
|---|---|
"""


_TABLE = ("| key | | default | what it changes |", "|---|---|---|---|")
Places = dict[tuple[type[Config], ...], str]
"""Where the keys of tables stand already: page and anchor, by the configs that a table may hold."""


def page(schema: type[Config], of: str = "", known: Places | None = None) -> str:
    """All keys of a file as Markdown, a heading for each table; `of` names the file where a page has several. A table
    that is `known` is linked to; the others are added to it."""
    known = {} if known is None else known
    lines, links, below = [], [], []
    rows: dict[str, list[Key]] = {}
    tables: dict[str, Key] = {}
    for key in keys_of(schema):
        if any(key.path.startswith(f"{path}.") for path in below):
            continue
        beside = rows.setdefault(key.path.rpartition(".")[0], [])
        if not key.tables:
            beside.append(key)
        elif key.tables in known:
            links.append(f"- `[{key.path}]`: [as there]({known[key.tables]}){_otherwise(key)}. {key.doc}")
            below.append(key.path)
        else:
            tables[key.path] = key
            known[key.tables] = f"#{_anchor(_heading(key.path, of))}"
    for above, keys in ((above, keys) for above, keys in rows.items() if keys):
        if above or not of:
            lines += ["", f"{'###' if of else '##'} {_heading(above, of)}", ""]
        if above:
            lines += [tables[above].doc, ""]
        lines += [*_TABLE, *map(_row, keys)]
        for key, listed in ((key, key.listed) for key in keys):
            if listed is not None and (listed,) not in known:
                known[listed,] = f"#{_anchor(_heading(f'[{key.path}]', of))}"
                lines += ["", f"### {_heading(f'[{key.path}]', of)}", "", f"{' '.join((listed.__doc__ or '').split())}"]
                lines += ["", *_TABLE, *map(_row, (each for each in keys_of(listed) if not each.tables))]
    lines += ["", "Tables that stand elsewhere:", *links] if links else []
    return "\n".join(lines).lstrip("\n") + "\n"


def _heading(table: str, of: str) -> str:
    return f"[{table}]{f' of {of}' if of else ''}" if table else "At the top"


def _anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _row(key: Key) -> str:
    default = key.usual
    only = f" Only where `kind` is {', '.join(key.kinds)}." if key.kinds else ""
    if len(default) > _LONGEST and isinstance(key.default, tuple):
        default = f"a list of {len(key.default)}"
    cells = (f"`{key.name}`", key.holds, default if "\n" not in default else "…", f"{key.doc}{only}".strip())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _otherwise(key: Key) -> str:
    """How a table's values differ here from those of its class, where nothing is said of them."""
    if not isinstance(key.default, Config):
        return ""
    fields = type(key.default).model_fields
    own = {name: getattr(key.default, name) for name in fields}
    differ = [
        f"`{name} = {toml_of(own[name])}`"
        for name, field in fields.items()
        if own[name] is not None
        and not field.is_required()
        and name != "kind"
        and own[name] != field.get_default(call_default_factory=True, validated_data={})
    ]
    return f", with {', '.join(differ)}" if differ else ""


# --- the pages -----------------------------------------------------------------------------------------------------


def recipes() -> str:
    return RECIPES + page(RunConfig)


def configuration() -> str:
    known: Places = {}
    page(RunConfig, known=known)
    known = {tables: f"recipes.md{anchor}" for tables, anchor in known.items()}
    of_others = ("train", "pretrain")
    files = {
        line: FILES[line] for line in sorted(FILES, key=lambda line: line != "agent --config") if line not in of_others
    }
    parts = []
    for line, configs in files.items():
        for config in map(pkgutil.resolve_name, configs):
            name = line.removesuffix(" --config")
            title = "agent.toml" if name == "agent" else f"etude {name}"
            parts.append(f"## {title}\n\n{' '.join((config.__doc__ or '').split())}\n\n{page(config, name, known)}")
    return (CONFIGURATION + "\n".join(parts)).replace(str(shipped_model()), f"models/{shipped_model().name}")


def commands() -> str:
    codes = "".join(f"| {code:d} | {code.meaning} |\n" for code in Exit)
    return COMMANDS_HEAD + codes + "".join(_command(each, 2) for _, each in actions_of(parser_of(COMMANDS)))


def _command(parser: argparse.ArgumentParser, level: int, said: str = "") -> str:
    """A command's part of the page, and below it those of its actions."""
    said = said or parser.description or ""
    lines = ["", f"{'#' * level} {parser.prog}", "", said[0].upper() + said[1:].rstrip(".") + ".", ""]
    inside = list(actions_of(parser))
    if inside:
        lines.pop()
    else:
        lines += ["```sh", EXAMPLES[parser.prog], "```", *_arguments(parser)]
    return "\n".join(lines) + "\n" + "".join(_command(each, level + 1, help) for help, each in inside)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    shown = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    yield from ["", "| | |", "|---|---|"] if shown else []
    for action in shown:
        value = "" if action.nargs == 0 else _value(action)
        flags = ", ".join(f"`{flag}{' ' if value else ''}{value}`" for flag in action.option_strings[-1:])
        short = "".join(f"`{flag}`, " for flag in action.option_strings[:-1])
        needed = " (must be given)" if action.required and action.option_strings else ""
        help = parser._get_formatter()._expand_help(action) if action.help else _default(action)
        yield f"| {short}{flags or f'`{value}`'}{needed} | {help} |"


def _value(action: argparse.Action) -> str:
    """What is typed for it."""
    name = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = str(name[0] if isinstance(name, tuple) else name).replace("|", "\\|")
    return {"?": f"[{value}]", "*": f"[{value} …]", "+": f"{value} …", 2: f"{value} {value}"}.get(action.nargs, value)  # ty: ignore


def _default(action: argparse.Action) -> str:
    return "" if action.default is None or action.default is argparse.SUPPRESS else f"default: {action.default}"


PAGES = {"recipes.md": recipes, "configuration.md": configuration, "commands.md": commands}

if __name__ == "__main__":
    for name, written in PAGES.items():
        (DOCS / name).write_text(written())
