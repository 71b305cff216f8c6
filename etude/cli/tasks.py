"""`etude tasks mine|generate|adopt|validate|split|pack|unpack`: tasks as Harbor directories, and are they sound."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from etude.plain import plain_line, say

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from etude.environments.base import Backend
    from etude.rewards.mining.journal import Decision
    from etude.tasks.mined.environment import Environments


REPOSITORY_KINDS = ("bug", "deletion", "revert", "lint", "types")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_generate(actions.add_parser("generate", help="make tasks of a repository as it is, or of the ladder"))
    validate = actions.add_parser("validate", help="the solution must score 1, doing nothing 0, again and again")
    validate.add_argument(
        "tasks", type=Path, nargs="+", metavar="DIR", help="Harbor task directories, or directories of such"
    )
    mine = actions.add_parser("mine", help="make tasks of a git repository's commits; run again to go on")
    mine.add_argument("repository", metavar="REPO", help="a directory of it, or the URL to clone it from")
    mine.add_argument("--out", type=Path, required=True, help="directory that gets the tasks, a journal and a report")
    mine.add_argument("--revision", default="HEAD", help="where the walk starts")
    mine.add_argument("--issues", type=Path, metavar="FILE", help="issues, one a line of JSON: number, title, body")
    mine.add_argument("--most", type=int, default=500, metavar="N", help="commits looked at, newest first")
    mine.add_argument("--jobs", type=int, default=2, metavar="N", help="commits tried at the same time")
    mine.add_argument("--config", type=Path, help="a TOML file of the run's config")
    mine.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    _add_split(
        actions.add_parser("split", help="split tasks by time: the newest of each repository are for evaluation")
    )
    pack = actions.add_parser("pack", help="write many task directories into one small file, a git bundle")
    pack.add_argument("tasks", type=Path, nargs="+", help="Harbor task directories")
    pack.add_argument("--out", type=Path, required=True, metavar="FILE")
    unpack = actions.add_parser("unpack", help="write the task directories of bundles, and install what they need")
    unpack.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    unpack.add_argument("--out", type=Path, required=True, help="directory that gets one directory a task")
    adopt = actions.add_parser("adopt", help="make tasks of Harbor directories that others wrote: build, and solve")
    adopt.add_argument("tasks", type=Path, nargs="+", help="Harbor task directories with a Dockerfile or a solve.sh")
    adopt.add_argument("--out", type=Path, required=True, help="directory that gets one directory a task")
    adopt.add_argument("--images", type=Path, help="where images are kept (default: below XDG_DATA_HOME)")
    swe = actions.add_parser("import", help="make tasks of instances of SWE-bench and its kin, a JSONL file of them")
    swe.add_argument("instances", type=Path, metavar="FILE")
    swe.add_argument("--clone", action="append", default=[], metavar="REPO=DIR", help="REPO as the file has it")
    swe.add_argument("--only", action="append", metavar="ID", help="an instance; none: all")
    swe.add_argument("--out", type=Path, required=True, help="directory that gets one directory a task")
    swe.add_argument("--config", type=Path, help="a TOML file of the run's config")
    swe.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    for action in (mine, validate, unpack, swe):
        action.add_argument("--environments", type=Path, help="where installed packages are kept")
    for action in (mine, validate, swe):
        _add_limits(action)
    for action in (validate, mine, pack, unpack, adopt, swe):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def _add_split(split: argparse.ArgumentParser) -> None:
    split.add_argument(
        "tasks", type=Path, nargs="+", metavar="DIR", help="Harbor task directories, or directories of such"
    )
    split.add_argument("--out", type=Path, required=True, help="directory that gets one of each split: train, eval")
    split.add_argument("--newest", type=float, metavar="SHARE", help="the newest share of each repository's tasks")
    split.add_argument("--since", type=date.fromisoformat, metavar="DATE", help="all of commits from this day on (UTC)")
    for name, said in (
        ("turns", "messages"),
        ("context-tokens", "context"),
        ("sampled-tokens", "tokens the model says"),
    ):
        split.add_argument(f"--max-{name}", type=int, metavar="N", help=f"lower the tasks' own limit: {said}")
    split.add_argument("--json", action="store_true", help="print one JSON object")


def _add_limits(action: argparse.ArgumentParser) -> None:
    said = "rlimit: weaker limits of sandboxes, for a user who may write no control groups"
    action.add_argument("--limits", choices=["cgroup", "rlimit"], help=said)


def _add_generate(generate: argparse.ArgumentParser) -> None:
    said = "a repository, or with --kind calls directories of Python; none: of the ladder, or migrations"
    generate.add_argument("repository", type=Path, nargs="*", metavar="PATH", help=said)
    generate.add_argument("--out", type=Path, required=True, help="directory that gets one directory a task")
    generate.add_argument("--count", type=int, default=1, help="tasks of each kind (and level); of calls in all")
    generate.add_argument("--seed", type=int, default=0, help="the same seed makes the same tasks")
    generate.add_argument("--rung", type=int, choices=range(1, 9), help="of the ladder (default: 1)")
    generate.add_argument("--split", choices=["train", "eval", "heldout"], help="of the ladder (default: train)")
    generate.add_argument("--kind", action="append", choices=[*REPOSITORY_KINDS, "calls", "migration"], default=[])
    generate.add_argument("--level", action="append", type=int, choices=range(1, 6), default=[], help="how hard")
    generate.add_argument("--jobs", type=int, metavar="N", help="proposals tried at the same time (default: 2)")
    generate.add_argument("--config", type=Path, help="a TOML file of the run's config")
    generate.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    generate.add_argument("--environments", type=Path, help="where installed packages are kept")
    _add_limits(generate)
    generate.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.action == "pack":
        return _pack(options)
    if options.action == "split":
        return _split(options)
    if options.action == "generate":
        return asyncio.run(_generating(options)(options))
    return asyncio.run(_ACTIONS[options.action](options))


def _generating(options: argparse.Namespace) -> Callable[[argparse.Namespace], Coroutine[object, object, int]]:
    """By what tasks are made of."""
    from etude.errors import ConfigError

    if "calls" in options.kind:
        if options.kind != ["calls"] or not options.repository:
            raise ConfigError(
                "--kind calls: by itself, and of directories with Python source; name some, as tools/ lib/"
            )
        return _call
    if len(options.repository) > 1:
        raise ConfigError(f"{options.repository[1]}: tasks are made of one repository at a time; or give --kind calls")
    return _generate if options.repository else _invent


async def _call(options: argparse.Namespace) -> int:
    """Of real functions, judged by calls."""
    from etude.environments.backends import open_backend
    from etude.environments.namespace import NamespaceConfig
    from etude.rewards.mining.calls import generate_calls

    _refuse(options, "other kinds", "rung", "split", "level", "config", "set", "environments")
    backend = open_backend(NamespaceConfig(limits=options.limits) if options.limits else None)
    try:
        made = await generate_calls(
            options.repository, options.out, backend, count=options.count, seed=options.seed, jobs=options.jobs or 2,
            progress=_progress("tasks"),
        )  # fmt: skip
    finally:
        await backend.close()
    say(json.dumps(asdict(made)) if options.json else "\n".join(made.lines(options.count)))
    return 0


async def _invent(options: argparse.Namespace) -> int:
    """Tasks that need no repository. Migrations are validated: sandboxes may have no PostgreSQL."""
    from etude.errors import ConfigError
    from etude.rewards.validate import validate
    from etude.tasks.generate.migration import migration_task
    from etude.tasks.harbor import write_task
    from etude.tasks.ladder import ladder_task
    from etude.tasks.mined.environment import default_root

    if needs := sorted(set(options.kind) & set(REPOSITORY_KINDS)):
        raise ConfigError(f"--kind {needs[0]}: made of a repository; name one")
    _refuse(options, "a repository's tasks", "jobs", "config", "set")
    seeds = range(options.seed, options.seed + options.count)
    if options.kind:
        _refuse(options, "the ladder", "rung", "split")
        tasks = [migration_task(level, seed) for level in options.level or range(1, 6) for seed in seeds]
        backend = _open(options.environments or default_root(), options.limits)
        try:
            for task in tasks:
                if problems := (await validate(task, backend, runs=1)).problems:
                    raise ConfigError(
                        f"{task.id}: {problems[0]}; have the sandboxes PostgreSQL? apt-get install postgresql"
                    )
        finally:
            await backend.close()
    else:
        _refuse(options, "other kinds", "level", "environments", "limits")
        tasks = [ladder_task(options.rung or 1, options.split or "train", seed) for seed in seeds]
    for task in tasks:
        write_task(task, options.out / task.id)
    written = [str(options.out / task.id) for task in tasks]
    say(json.dumps({"tasks": written}) if options.json else "\n".join(written))
    return 0


def _refuse(options: argparse.Namespace, whose: str, *names: str) -> None:
    """No option is ignored."""
    from etude.errors import ConfigError

    for name in names:
        if getattr(options, name):
            raise ConfigError(f"--{name}: an option of {whose}, and of no use here; leave it out")


def _pack(options: argparse.Namespace) -> int:
    from etude.tasks.packed import pack_tasks

    pack_tasks(options.tasks, options.out)
    size = options.out.stat().st_size
    said = {"bundle": str(options.out), "tasks": len(options.tasks), "bytes": size}
    say(json.dumps(said) if options.json else f"{options.out}: {len(options.tasks)} tasks in {size:,} bytes")
    return 0


def _split(options: argparse.Namespace) -> int:
    from etude.errors import ConfigError
    from etude.tasks.dated import Bounds, split_by_time
    from etude.tasks.harbor import read_tasks, write_task
    from etude.tasks.names import file_name

    if options.out.exists():
        raise ConfigError(f"{options.out}: is there already; remove it, or name another directory")
    bounds = Bounds(options.max_turns, options.max_context_tokens, options.max_sampled_tokens)
    tasks = split_by_time(read_tasks(options.tasks), newest=options.newest, since=options.since, bounds=bounds)
    for task in tasks:
        write_task(task, options.out / task.split / file_name(task.id))
    counted = dict(Counter(task.split for task in tasks))
    repositories = len({str(name) for task in tasks if (name := task.provenance.get("repository"))})
    told = ", ".join(f"{count} for {split}" for split, count in counted.items())
    say(json.dumps({**counted, "repositories": repositories}) if options.json else f"{options.out}: {told}")
    return 0


async def _unpack(options: argparse.Namespace) -> int:
    from etude.tasks.harbor import read_task
    from etude.tasks.mined.environment import Environment, Environments, Unavailable, default_root
    from etude.tasks.packed import unpack_tasks

    written = [path for bundle in options.bundles for path in unpack_tasks(bundle, options.out)]
    wanted = {command for path in written for command in read_task(path).setup}
    environments, missing = Environments(options.environments or default_root()), 0
    for environment in filter(None, map(Environment.of_setup, sorted(wanted))):
        say(f"{environment.key}: {', '.join(environment.pins)}", sys.stderr)
        try:
            await environments.restore(environment)
        except Unavailable as error:
            missing += 1
            say(f"{environment.key} cannot be installed: {error}", sys.stderr)
    paths = [str(path) for path in written]
    say(json.dumps({"tasks": paths, "environments_missing": missing}) if options.json else "\n".join(paths))
    return 1 if missing else 0


async def _validate(options: argparse.Namespace) -> int:
    from etude.rewards.validate import validate
    from etude.tasks.harbor import read_task, task_directories
    from etude.tasks.mined.environment import default_root
    from etude.tasks.mined.shown import install_missing
    from etude.tasks.verifiers import unasked_tests

    paths = [path for directory in options.tasks for path in task_directories(directory)]
    tasks, root = {str(path): read_task(path) for path in paths}, options.environments or default_root()
    await install_missing(tasks.values(), root=root)
    backend = _open(root, options.limits)
    try:
        found = {}
        for path, task in tasks.items():
            _tell(len(found), len(tasks), "tasks", path)
            found[path] = await validate(task, backend)
        _tell(len(found), len(tasks), "tasks")
    finally:
        await backend.close()
    unseen = {path: task.provenance["unseen"] for path, task in tasks.items() if "unseen" in task.provenance}
    unasked = {path: unasked_tests(task.verifier) for path, task in tasks.items()}
    return _said({path: one.problems for path, one in found.items()}, options.json, unseen, unasked)


def _said(
    problems: Mapping[str, Sequence[str]], as_json: bool, unseen: Mapping[str, int] = MappingProxyType({}),
    unasked: Mapping[str, int] = MappingProxyType({}),
    not_taken: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> int:  # fmt: skip
    """What is wrong with each directory, and 1 if anything is. `unseen` counts the calls that a task asks beside its
    tests, where it could have some; `unasked` the tests whose own word decides; `not_taken` is what a task has nothing
    of, though what it was made of says it."""
    if as_json:
        counts = {"unseen": unseen, "unasked": unasked}
        said: dict[str, dict[str, object]] = {
            path: {"sound": not some, "problems": [*some]} for path, some in problems.items()
        }
        for path, one in said.items():
            one |= {name: count[path] for name, count in counts.items() if path in count}
            one |= {"not_taken": [*not_taken[path]]} if path in not_taken else {}
        say(json.dumps(said))
    else:
        if unseen:
            alone = sum(not count for count in unseen.values())
            only = "are judged by the repository's own tests only (no hidden checks)"
            say(f"{alone} of {len(unseen)} tasks with tests {only}")
        if any(unasked.values()):
            some, tests = sum(map(bool, unasked.values())), sum(unasked.values())
            say(f"{tests} tests in {some} tasks are taken at their word: they name no value that the judge can check")
        for path, some in problems.items():
            say(f"{'✗' if some else '✓'} {path}" + "".join(f"\n    {problem}" for problem in some))
            for each in not_taken.get(path, ()):
                say(f"    not taken: {each}")
    return 1 if any(problems.values()) else 0


def _environments(options: argparse.Namespace) -> Environments:
    from etude.tasks.mined.environment import Environments, default_root

    return Environments(options.environments or default_root(), tell=lambda said: say(said, sys.stderr))


def _open(environments: Path, limits: Literal["cgroup", "rlimit"] | None) -> Backend:
    """Sandboxes that see the environments, where there are some."""
    from etude.environments.backends import open_backend
    from etude.environments.namespace import NamespaceConfig
    from etude.tasks.mined.shown import showing

    return open_backend(showing(NamespaceConfig(limits=limits) if limits else None, root=environments))


async def _adopt(options: argparse.Namespace) -> int:
    from etude.environments.images.store import ImageStore
    from etude.environments.namespace import NamespaceBackend, NamespaceConfig
    from etude.environments.roots import ImagesConfig
    from etude.rewards.mining.adopt import adopt
    from etude.rewards.validate import validate
    from etude.tasks.harbor import write_task

    images = ImagesConfig(dir=options.images)
    backend, found = NamespaceBackend(NamespaceConfig(images=images)), {}
    try:
        for path in options.tasks:
            task = await adopt(path, ImageStore(images), backend)
            problems = (await validate(task, backend)).problems if task.solution else ("it has no solution",)
            write_task(task, options.out / path.resolve().name)
            found[str(options.out / path.resolve().name)] = problems
    finally:
        await backend.close()
    return _said(found, options.json)


async def _import(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.errors import ConfigError
    from etude.rewards.mining.importing import ImportConfig, Importer
    from etude.tasks.mined.history import History
    from etude.tasks.swe import read_instances

    config = load_recipe(options.config, ImportConfig, options.set)
    pairs = (pair.partition("=") for pair in options.clone)
    clones = {name: History(Path(path).expanduser()) for name, _, path in pairs}  # no shell expands ~ behind a =
    there = read_instances(options.instances)
    if unknown := sorted(set(options.only or ()) - {each.id for each in there}):
        raise ConfigError(f"--only {unknown[0]}: {options.instances} has no such instance")
    wanted = [each for each in there if not options.only or each.id in options.only]
    environments = _environments(options)
    backend, found, not_taken = _open(environments.root, options.limits), {}, {}
    try:
        importer = Importer(options.out, clones, backend, environments, config)
        for instance in wanted:
            _tell(len(found), len(wanted), "instances", instance.id)
            name = instance.id if instance.id not in found else f"{instance.id} ({instance.where})"
            try:
                await importer.add(instance)
                found[name], not_taken[name] = (), instance.not_taken
            except ConfigError as error:
                found[name] = (str(error),)
        _tell(len(wanted), len(wanted), "instances")
    finally:
        await backend.close()
    return _said(found, options.json, not_taken=not_taken)


async def _mine(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.rewards.mining.mine import MineConfig, mine
    from etude.tasks.mined.clone import cloned, is_address
    from etude.tasks.mined.issues import read_issues

    own = [f"revision={json.dumps(options.revision)}", f"most={options.most}", f"jobs={options.jobs}"]
    config = load_recipe(options.config, MineConfig, [*own, *options.set])
    issues = read_issues(options.issues) if options.issues else {}
    environments = _environments(options)
    repository = Path(options.repository)
    if is_address(options.repository):
        say(f"cloning {options.repository}", sys.stderr)
        repository = await asyncio.to_thread(cloned, options.repository)
    backend = _open(environments.root, options.limits)
    try:
        found = await mine(repository, options.out, backend, environments, config, _progress(), issues)
    finally:
        await backend.close()
    say(json.dumps(asdict(found)) if options.json else "\n".join(found.lines()))
    return 1 if found.undecided else 0


async def _generate(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.rewards.mining.generate import generate
    from etude.rewards.mining.making import GenerateConfig

    _refuse(options, "the ladder", "rung", "split")
    own = [f"count={options.count}", f"seed={options.seed}", f"jobs={options.jobs or 2}"]
    own += [f"kinds={json.dumps(options.kind)}"] if options.kind else []
    own += [f"levels={json.dumps(options.level)}"] if options.level else []
    config = load_recipe(options.config, GenerateConfig, [*own, *options.set])
    environments = _environments(options)
    backend = _open(environments.root, options.limits)
    try:
        [repository] = options.repository
        found = await generate(repository, options.out, backend, environments, config, _progress("tasks"))
    finally:
        await backend.close()
    say(json.dumps(asdict(found)) if options.json else "\n".join(found.lines("proposals")))
    return 0


def _progress(what: str = "commits") -> Callable[[int, int, Decision | None], None]:
    """A line for each decision."""

    def tell(done: int, of: int, decision: Decision | None) -> None:
        said = (
            ""
            if decision is None
            else f"{decision.commit[: 48 if what == 'tasks' else 12]} {decision.reason or f'kept as {decision.task}'}"
        )
        _tell(done, of, what, said)

    return tell


def _tell(done: int, of: int, what: str, said: str = "") -> None:
    """How far it is, on a line that is written over where there is a terminal."""
    tty, line = sys.stderr.isatty(), plain_line(f"{done}/{of} {what} {said}")
    shown, end = (f"\r\x1b[2K{line[:100]}", "" if done < of else "\n") if tty else (line, "\n")
    print(shown, end=end, file=sys.stderr, flush=True)


_ACTIONS = {"mine": _mine, "validate": _validate, "unpack": _unpack, "adopt": _adopt, "import": _import}
