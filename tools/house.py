"""The size of the house: lines, files and config keys by room, circles of imports, how long functions are.

    python tools/house.py                what this tree is
    python tools/house.py --write        and the column "after" of the table in docs/design.md
    python tools/house.py --check        exits 1 where that table is not this tree's, or a limit is passed

Lines are all lines of Python. A room's wings are the folders that its core never imports. A config path is a leaf of
the schema of a training recipe.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WINGS = {
    "environments": ("server", "cluster", "scheduling", "docker", "container", "firecracker", "qemu", "vm", "images"),
}
LIMITS = {"etude": 60_000, "environments, core": 8_000, "rollouts": 5_500, "recipe keys": 150, "circles": 0}
TABLE = re.compile(r"(<!-- house -->\n)(.*?)(<!-- /house -->)", re.DOTALL)


def measured(root: Path) -> dict[str, int]:
    """Every figure of the table, by its row."""
    package = root / "etude"
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    lines = {path: len(path.read_text().splitlines()) for path in trees}
    found = {"etude": sum(lines.values()), "files": len(lines)}
    rooms = Counter[str]()
    for path, count in lines.items():
        room, *more = path.relative_to(package).parts
        rooms[room.removesuffix(".py")] += count
        if room in WINGS:
            rooms[f"{room}, {'wings' if more[0] in WINGS[room] else 'core'}"] += count
    found |= dict(sorted(rooms.items()))
    functions = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    keys = config_paths()
    return found | {
        "median function": int(statistics.median(functions)),
        "longest function": max(functions),
        "comment and docstring lines in 100": round(100 * said(trees, package) / sum(lines.values())),
        "recipe paths": len(keys),
        "recipe keys": len({path.rpartition(".")[2] for path in keys}),
        "circles": len(circles(trees, package)),
    }


def said(trees: dict[Path, ast.Module], package: Path) -> int:
    """Lines of comments and of strings that stand by themselves."""
    count = 0
    for path, tree in trees.items():
        count += sum(line.lstrip().startswith("#") for line in path.read_text().splitlines())
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                count += (node.end_lineno or node.lineno) - node.lineno + 1
    return count


def config_paths() -> set[str]:
    """Dotted paths of a training recipe's leaves."""
    from etude.rollouts.config import RunConfig

    schema = RunConfig.model_json_schema()
    return set(_leaves(schema, schema.get("$defs", {}), ""))


def _leaves(schema: dict[str, Any], known: dict[str, Any], path: str) -> Any:
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    members = [each for name in ("anyOf", "oneOf", "allOf") for each in schema.get(name, ())]
    inner = [each for each in members if "$ref" in each or each.get("properties")]
    if "properties" in schema:
        for name, each in schema["properties"].items():
            yield from _leaves(each, known, f"{path}.{name}".lstrip("."))
    elif inner:
        for each in inner:
            yield from _leaves(each, known, path)
    else:
        yield path


def circles(trees: dict[Path, ast.Module], package: Path) -> list[list[str]]:
    """Groups of modules that import each other in a circle, imports inside functions among them."""
    names = {path: ".".join(path.relative_to(package.parent).with_suffix("").parts) for path in trees}
    modules = set(names.values())
    arrows: dict[str, set[str]] = {}
    for path, tree in trees.items():
        arrows[names[path]] = {each for each in _imports(tree) if each in modules} - {names[path]}
    return [group for group in _components(arrows) if len(group) > 1]


def _imports(tree: ast.Module) -> Any:
    """What a module imports at any time, but not for types alone."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _components(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected ones (Kosaraju)."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(start: str, along: dict[str, set[str]], into: list[str]) -> None:
        waiting = [(start, iter(sorted(along[start])))]
        seen.add(start)
        while waiting:
            name, rest = waiting[-1]
            following = next((each for each in rest if each not in seen), None)
            if following is None:
                into.append(name)
                waiting.pop()
            else:
                seen.add(following)
                waiting.append((following, iter(sorted(along[following]))))

    for name in sorted(arrows):
        if name not in seen:
            visit(name, arrows, order)
    back: dict[str, set[str]] = {name: set() for name in arrows}
    for name, others in arrows.items():
        for other in others:
            back[other].add(name)
    seen.clear()
    found = []
    for name in reversed(order):
        if name not in seen:
            group: list[str] = []
            visit(name, back, group)
            found.append(sorted(group))
    return found


# --- the table --------------------------------------------------------------------------------------------------------


def rows(text: str) -> dict[str, list[str]]:
    """The rows of a table, by their first cell, without its head."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells[2:]}


def table(found: dict[str, int], before: dict[str, list[str]]) -> str:
    head = ["| | before | after | at most |", "|---|---|---|---|"]
    for name, count in found.items():
        was = before.get(name, ["", ""])[0]
        head.append(f"| {name} | {was} | {count:,} | {f'{LIMITS[name]:,}' if name in LIMITS else ''} |")
    return "\n".join(head) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="bring the table in docs/design.md up to date")
    parser.add_argument("--check", action="store_true", help="fail where it is not, or where a limit is passed")
    options = parser.parse_args()
    found = measured(ROOT)
    page = ROOT / "docs/design.md"
    if not (there := TABLE.search(page.read_text())):
        sys.exit(f"{page}: no table between <!-- house --> and <!-- /house -->")
    wanted = table(found, rows(there[2]))
    if options.write:
        page.write_text(TABLE.sub(lambda match: match[1] + wanted + match[3], page.read_text()))
    over = [f"{name}: {found[name]:,}, at most {most:,}" for name, most in LIMITS.items() if found[name] > most]
    stale = options.check and there[2] != wanted
    print(json.dumps({"found": found, "over": over, "table": "stale" if stale else "as it is"}))
    return 1 if options.check and (over or stale) else 0


if __name__ == "__main__":
    sys.exit(main())
