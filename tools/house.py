"""The size of the house: lines, files and config keys by room, circles of imports, how long functions are.

    python tools/house.py                what this tree is
    python tools/house.py --write        and the column "after" of the table in docs/design.md
    python tools/house.py --check        exits 1 where that table is not this tree's, or a limit that was met is passed
    python tools/house.py --write --before DIR    the column "before" too, from another commit's tree: the same rules

Lines are all lines of Python. A room's wings are the folders named in WINGS, everything else in it is its core;
tests/test_architecture.py holds that the core imports none of them. A recipe path is a leaf of the schema of a
training recipe, and its key name the last part of it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WINGS = {
    "environments": (
        "server", "cluster", "scheduling", "docker", "container", "firecracker", "qemu", "vm", "images",
        "kata",  # a backend that is gone: for the column "before"
    ),
}  # fmt: skip
LIMITS = {"etude": 60_000, "environments, core": 8_000, "rollouts": 5_500, "distinct key names": 150, "circles": 0}
MISSED = {"etude", "rollouts"}
"""Limits that are not met yet. The table says so; tests/test_house.py holds the others, and that these are missed."""
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
    graph = arrows(trees, package)
    for room, wings in WINGS.items():
        inside = {name_of(path, package): lines[path] for path in trees if path.is_relative_to(package / room)}
        core = {name for name in inside if name.split(".")[2:3] not in ([wing] for wing in wings)}
        arrows_inside = {name: others & inside.keys() for name, others in graph.items() if name in inside}
        rooms[f"{room}, core and all it imports"] = sum(inside[name] for name in reached(arrows_inside, core))
    found |= dict(sorted(rooms.items()))
    functions = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    keys = config_paths(root)
    return found | {
        "median function": int(statistics.median(functions)),
        "longest function": max(functions),
        "comment and docstring lines in 100": round(100 * said(trees, package) / sum(lines.values())),
        "recipe paths": len(keys),
        "distinct key names": len({path.rpartition(".")[2] for path in keys}),
        "circles": len(_circles(graph)),
    }


def statements(tree: ast.Module) -> Any:
    """Every one, however deep, and no expression: most of a tree is expressions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += within(node)


def within(node: ast.AST) -> list[ast.AST]:
    """The statements directly in one, and the branches that hold more."""
    kinds = (ast.stmt, ast.ExceptHandler, ast.match_case)
    return [each for each in ast.iter_child_nodes(node) if isinstance(each, kinds)]


def said(trees: dict[Path, ast.Module], package: Path) -> int:
    """Lines of comments and of strings that stand by themselves."""
    count = 0
    for path, tree in trees.items():
        count += sum(line.lstrip().startswith("#") for line in path.read_text().splitlines())
        for node in statements(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                count += (node.end_lineno or node.lineno) - node.lineno + 1
    return count


_SCHEMA = """
import json
from etude.rollouts.config import RunConfig
print(json.dumps(RunConfig.model_json_schema()))
"""


def config_paths(root: Path) -> set[str]:
    """Dotted paths of a training recipe's leaves, as the tree at `root` has them."""
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", _SCHEMA], cwd=root, env=env, check=True, capture_output=True)
    schema = json.loads(done.stdout)
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


def arrows(trees: dict[Path, ast.Module], package: Path) -> dict[str, set[str]]:
    """Which modules each module imports, inside functions too, by their dotted names."""
    names = {name_of(path, package): tree for path, tree in trees.items()}
    found = {}
    for name, tree in names.items():
        meant = (each if each in names else each.rpartition(".")[0] for each in _imports(tree))
        found[name] = {each for each in meant if each in names} - {name}
    return found


def name_of(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def circles(trees: dict[Path, ast.Module], package: Path) -> list[list[str]]:
    """Groups of modules that import each other in a circle, imports inside functions among them."""
    return _circles(arrows(trees, package))


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    return [group for group in _components(graph) if len(group) > 1]


def reached(graph: dict[str, set[str]], start: set[str]) -> set[str]:
    """`start`, and what it imports, and what that imports, to the end."""
    found, waiting = set(start), list(start)
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _imports(tree: ast.Module) -> Any:
    """What a module imports at any time, but not for types alone: modules, and `module.name` of what is taken of one.
    `from package import module` is of that module, and not of its package."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += within(node)


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


def over(found: dict[str, int]) -> set[str]:
    """The rows that are above their limit."""
    return {name for name, most in LIMITS.items() if found[name] > most}


def table(found: dict[str, int], before: dict[str, str]) -> str:
    """The table, and below it in words what it misses and what the limit of recipes counts."""
    lines = ["| | before | after | at most |", "|---|---|---|---|"]
    missed = over(found)
    for name, count in found.items():
        most = f"{LIMITS[name]:,}{' (missed)' if name in missed else ''}" if name in LIMITS else ""
        lines.append(f"| {name} | {before.get(name, '')} | {count:,} | {most} |")
    by = [f"`{name}` is {found[name] - LIMITS[name]:,} above {LIMITS[name]:,}" for name in LIMITS if name in missed]
    lines += ["", f"Missed: {', '.join(by) or 'nothing'}."]
    lines += [
        f"The limit of {LIMITS['distinct key names']} is on distinct key names, of which recipes have "
        f"{found['distinct key names']}. By paths that can be set it is {found['recipe paths']}, and is not held."
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="bring the table in docs/design.md up to date")
    parser.add_argument("--check", action="store_true", help="fail where it is not, or where a limit is passed")
    parser.add_argument("--before", type=Path, metavar="DIR", help="a tree whose figures are the column before")
    options = parser.parse_args()
    found = measured(ROOT)
    page = ROOT / "docs/design.md"
    if not (there := TABLE.search(page.read_text())):
        sys.exit(f"{page}: no table between <!-- house --> and <!-- /house -->")
    before = {name: row[0] for name, row in rows(there[2]).items()}
    if options.before:
        before = {name: f"{count:,}" for name, count in measured(options.before.resolve()).items()}
    wanted = table(found, before)
    if options.write:
        page.write_text(TABLE.sub(lambda match: match[1] + wanted + match[3], page.read_text()))
    passed = sorted(over(found) - MISSED)
    stale = options.check and there[2] != wanted
    print(json.dumps({"found": found, "passed": passed, "table": "stale" if stale else "as it is"}))
    return 1 if options.check and (passed or stale) else 0


if __name__ == "__main__":
    sys.exit(main())
