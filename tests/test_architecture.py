"""The rules of the house: which room may import which, how large things may be, what every module says of itself."""

import ast
import dataclasses
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from etude import syntax
from etude.rollouts.sample import Sample

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import house

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "etude"
LEVELS = [
    {"durable", "errors", "extras", "plain", "retired", "syntax"},
    {"config"},
    {"records", "deadlines", "explain", "host", "plugins", "serving"},
    {"search", "made_by"},
    {"harness", "environments", "kernels"},
    {"models", "weights", "tasks"},
    {"engine", "rewards", "archive"},
    {"trainer"},
    {"rollouts"},
    {"bench", "product"},
    {"studio"},
    {"cli"},
]
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
SEAMS = ("etude.environments.base",)  # protocols and records only: a room beside may use them
IMPORTERS = {"import_module", "__import__", "find_spec", "resolve_name"}
NAMED = re.compile(r"(etude(?:\.\w+)+)\.?(?::\w+)?")
"""A string that names a module of ours, or something in one: what imports it may be elsewhere."""
PROGRAMS = {"etude.cli.main"}  # started by its name, as a process of its own
RAY = {"rollouts", "environments/cluster"}
PEER = {"engine/check"}
"""Where another implementation is what ours is held to."""
TORCH = {"models", "kernels", "engine", "trainer", "rollouts"}
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(path for folder in ("etude", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return syntax.parse(path.read_text())


def trees():
    """Read when a test first asks: to collect the tests needs none of them."""
    return ((path, tree_of(path)) for path in MODULES)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_called(call: ast.Call) -> str:
    """The last of its names."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def imports(nodes):
    """(line, module or name in one) of every import among them, by a string too."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in PROGRAMS:
            if match := NAMED.fullmatch(node.value):
                yield node.lineno, match[1]
        elif isinstance(node, ast.Call) and name_called(node) in IMPORTERS:
            yield from ((node.lineno, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    return list(imports(ast.walk(tree_of(path))))


def at_load(tree):
    """What runs when a module is imported: outside functions, and not for types alone."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def below(name, *modules):
    """Whether it is one of them, or in one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def violations(rule):
    found = []
    for path in MODULES:
        room = room_of(path)
        if room == "__init__":
            continue
        found += [
            f"{path.relative_to(ROOT)}:{line} imports {name}" for line, name in imported(path) if rule(room, name)
        ]
    return found


def test_every_room_has_its_place():
    assert {room_of(path) for path in MODULES} - {"__init__"} <= LEVEL_OF.keys()


def test_imports_are_by_whole_names():
    """So that what follows can read them."""
    assert violations(lambda room, name: name.startswith(".")) == []


def test_arrows_go_one_way():
    def wrong(room, name):
        parts = name.split(".")
        if parts[0] != "etude" or parts[1:2] == [room] or below(name, *SEAMS):
            return False
        return any(LEVEL_OF.get(other, -1) >= LEVEL_OF[room] for other in parts[1:2])

    assert violations(wrong) == []


@pytest.mark.parametrize(("library", "rooms"), [("ray", RAY), ("torch", TORCH), ("transformers", PEER)])
def test_heavy_libraries_stay_in_their_rooms(library, rooms):
    found = violations(lambda room, name: name.split(".")[0] == library)
    allowed = tuple(f"etude/{room}/" for room in rooms)
    assert [line for line in found if not line.startswith(allowed)] == []


READS_TARS = {
    "etude/environments/archive.py": "what a sandbox made: never as anything but the plain tar that the guest unpacks",
    "etude/environments/images/archives.py": "layers and what ADD finds, which the same code unpacks that reads them",
    "etude/environments/images/oci.py": "images that an operator names",
    "etude/rewards/realset.py": "downloads that are pinned by their digest",
    "etude/tasks/leaks.py": "files of a repository, compressed as they are",
}
"""Where tarfile may be told, or left to guess, how an archive is packed. Everybody else reads with `archive.opened`."""


OPENS_TARS = {"tarfile.open", "tarfile.TarFile", "tarfile.TarFile.open", "shutil.unpack_archive"}
LAST = {name.rpartition(".")[2] for name in OPENS_TARS}


def test_nobody_but_these_opens_a_tar():
    """Where two readers of what a sandbox made differ, a session shows one workspace and is paid for another."""
    found = set()
    for path, tree in trees():
        for node in ast.walk(tree):
            call = ast.unparse(node.func) if isinstance(node, ast.Call) and name_called(node) in LAST else ""
            modes = [word.value for word in node.keywords if word.arg == "mode"] if call else []
            writes = any(isinstance(mode, ast.Constant) and str(mode.value).startswith("w") for mode in modes)
            if call in OPENS_TARS and not writes:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == READS_TARS.keys()
    assert not violations(lambda room, name: name.startswith("tarfile.")), "which would hide a call"


def test_the_core_of_a_room_knows_none_of_its_wings():
    """Not by a string either: what is optional is found by its entry point, or handed in."""
    known = []
    for room, wings in house.WINGS.items():
        optional = tuple(f"etude.{room}.{wing}" for wing in wings)
        for path in MODULES:
            if room_of(path) == room and not below(house.name_of(path, PACKAGE), *optional):
                known += [
                    f"{path.relative_to(ROOT)}:{line} names {name}"
                    for line, name in imported(path)
                    if below(name, *optional)
                ]
    assert known == []


CONTROLLER = [path for path in MODULES if room_of(path) == "rollouts"]


def test_the_controller_loads_torch_only_inside_its_actors():
    loaded = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in CONTROLLER
        for line, name in imports(at_load(tree_of(path)))
        if below(name, "torch")
    ]
    assert loaded == []


def test_nor_does_what_the_controller_imports():
    """In a fresh process: no module of the room, its actors' among them, has torch loaded by being imported."""
    modules = [house.name_of(path, PACKAGE) for path in CONTROLLER]
    look = f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n"
    look += "    assert 'torch' not in sys.modules, name"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_files_and_functions_fit_the_eye():
    long = []
    for path in SOURCES:
        text = path.read_text()
        if len(text.splitlines()) > 500:
            long.append(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines")
        for node in house.statements(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60:
                long.append(
                    f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
                )
    assert long == []


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(ROOT)) for path in MODULES if path.stat().st_size and not ast.get_docstring(tree_of(path))
    ]
    assert silent == []


def test_public_classes_and_functions_of_rooms_are_documented():
    """Classes whose name says it all (small configs, errors) may go without; functions other rooms call may not."""
    bare = []
    for path, tree in trees():
        for node in tree.body:
            public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node) and len(node.body) > 6:
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert bare == []


def test_nothing_names_a_machine_or_a_registry():
    kinds = {".py", ".md", ".toml", ".txt", ".sh"}
    tops = [path for path in ROOT.iterdir() if path.name not in {".venv", ".git", "runs"}]
    others = {".venv", "node_modules"}
    tracked = [p for top in tops for p in (top, *top.rglob("*")) if p.suffix in kinds and not others & {*p.parts}]
    patterns = ["/wo" + "rk/", "py" + "pi.org", "python" + "hosted", "npm" + "js.org", "deb." + "debian.org"]
    named = [
        f"{p.relative_to(ROOT)}: {w}"
        for p in tracked
        if "runs" not in p.parts
        for w in patterns
        if w in p.read_text(errors="ignore")
    ]
    assert named == []


SPAWNS = {
    "run", "Popen", "call", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell", "system",
    "popen", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe",
}  # fmt: skip


def called(tree: ast.AST):
    """(line, last name) of every call, and what it is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, name_called(node)


def test_one_module_starts_git():
    """Only host/git knows how to run it so that it obeys no repository."""
    found = []
    for path, tree in trees():
        starts = any(name in SPAWNS or name in ("which", "find_program") for _, name in called(tree))
        words = {str(node.value).split(" ")[0] for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        if starts and "git" in words:
            found.append(str(path.relative_to(PACKAGE)))
    assert found == ["host/git.py"]


def test_one_module_locks_files():
    found = [str(path.relative_to(PACKAGE)) for path, tree in trees() if "flock" in dict(called(tree)).values()]
    assert found == ["host/lock.py"]


READS = {
    "open", "fdopen", "read_text", "read_bytes", "walk", "fwalk", "scandir", "listdir", "iterdir", "glob", "rglob",
    "copy2", "copyfile", "copytree", "move", "rmtree", "readlink",
}  # fmt: skip
OF_ETUDE = {
    "cli/agent.py": "a file of tasks that the user names",
    "harness/endpoint/config.py": "the file with the user's key for an endpoint, from their own config",
    "harness/events.py": "a session's log",
    "harness/fleet/repository.py": "an index of Etude's own, and the worktrees that it made",
    "harness/fleet/worktrees.py": "the places of worktrees, which are Etude's but for `tree` in them",
    "harness/journal.py": "a session's log",
    "harness/mcp/config.py": "a file of servers that the user names",
    "harness/permissions/git_places.py": "walks names of git's own files; those it reads by beneath",
    "harness/permissions/gitconfig.py": "walks names to find repositories in repositories; files it reads by beneath",
    "harness/permissions/paths.py": "lists names and follows links as a shell would, and opens no file",
    "harness/permissions/store.py": "the user's own permissions",
    "harness/permissions/unreadable.py": "walks names, follows no link and opens no file",
    "harness/permissions/walks.py": "walks names, follows no link and opens no file",
    "harness/shadow.py": "the repository of snapshots, in Etude's home",
    "harness/store.py": "the logs of sessions",
    "product/acp/stdio.py": "the null device",
    "product/fleet/run_records.py": "the records of runs",
    "product/own_commands.py": "the user's own slash commands, in their configuration",
    "product/sessions/stream.py": "a session's log",
    "search/database.py": "the user's store of indexes, in their cache",
    "search/embedder.py": "the embedder that comes with Etude",
    "search/others.py": "the static model that the user names",
    "product/setup/written.py": "the agent.toml that was there, which is kept",
}
"""What reads files in the rooms that work in a user's directory, and which: none of a workspace."""
OF_OURS = ("beneath", "AcpSession", "store", "self")


def test_one_module_reads_a_workspace_on_the_host():
    found = set()
    for path, tree in trees():
        if room_of(path) not in ("harness", "product", "search", "cli"):
            continue
        for node, name in called(tree):
            if name in READS and ast.unparse(node.func).rpartition(".")[0] not in OF_OURS:
                found.add(str(path.relative_to(PACKAGE)))
    assert found == OF_ETUDE.keys()


def test_commands_are_listed_and_exist():
    from etude.cli.parser import COMMANDS

    files = {path.stem for path in (PACKAGE / "cli").glob("*.py")} - {
        "__init__",
        "main",
        "parser",
        "examples",
        "stopping",
    }
    assert files == set(COMMANDS)


def test_no_two_test_files_share_a_name():
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def given(call: ast.Call) -> str:
    return ", ".join([*map(ast.unparse, call.args), *map(ast.unparse, call.keywords)])


def test_the_page_is_the_algorithm():
    """It fits a page, and takes, credits, packs, steps and puts by name; the trainer's process runs it."""
    path = PACKAGE / "rollouts" / "loop.py"
    assert 80 <= len(path.read_text().splitlines()) <= 150
    functions = {n.name: n for n in tree_of(path).body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    calls = {name: [each for _, each in called(function)] for name, function in functions.items()}
    assert calls["learn"] == ["assign_advantages", "build_batch", "step", "put"]
    assert [given(call) for call, _ in called(functions["learn"])] == [
        "groups, config.advantages, config.credit",
        "groups, credit.advantages, trainer.version, mask_summaries=config.credit.mask_summaries",
        "batch, progress, hints",
        "trainer.version, trainer.export",
    ]
    for name, function in functions.items():
        taken = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        read = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
        assert taken <= read, f"{name} does not use {taken - read}"
    assert {"make_groups", "take_groups", "step", "announce_version"} <= set(calls["train"])
    assert {"draw", "start", "dispatch"} <= set(calls["make_groups"])
    assert {"play_and_judge", "commit"} <= set(calls["roll_out"])
    actor = tree_of(PACKAGE / "rollouts" / "actors" / "trainer.py")
    learned = [given(call) for call, name in called(actor) if name == "learn"]
    assert learned == ["whole, self.trainer, self.publishing, self.config.trainer, progress, hints"]
    assert "build_batch" not in [name for _, name in called(actor)]


def test_no_token_passes_the_controller():
    """What the controller's process holds of a sample has no array in it."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(Sample)}
    assert not [name for name, kind in fields.items() if any(word in kind for word in ("Segment", "Event", "ndarray"))]
    handled = ("controller", "groups", "restore", "schedule", "stats", "loop")
    for name in handled:
        tree = tree_of(PACKAGE / "rollouts" / f"{name}.py")
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not names & {"segments", "token_ids", "logprobs"}, name


def test_pins_agree():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert pins["torch"] == "2.13.0"
    assert len(pins) > 50


def test_what_is_printed_cannot_drive_a_terminal():
    """`plain.say` prints; the one other print moves the cursor on purpose and shows a plain line."""
    bare = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if "inside" not in path.parts and path != PACKAGE / "plain.py"
    ]
    assert [place.partition(":")[0] for place in bare] == ["etude/cli/tasks.py"], bare
