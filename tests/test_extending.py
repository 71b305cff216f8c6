"""The pieces of docs/extending.md, as a package in a directory of its own that Etude knows nothing of."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from proofs import one_of_each

ROOT = Path(__file__).parents[1]
PIECE = re.compile(r"```\w+\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def outside(tmp_path):
    """Runs Python where the package is installed, as pip would have it: its modules, and what its metadata names."""
    pieces = dict(PIECE.findall((ROOT / "docs/extending.md").read_text()))
    assert all(len(text.splitlines()) <= 40 for text in pieces.values())
    for name, text in pieces.items():
        (tmp_path / name).write_text(text)
    points = tomllib.loads(pieces["pyproject.toml"])["project"]["entry-points"]
    metadata = tmp_path / "outside-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    groups = [
        [f"[{group}]", *(f"{name} = {place}" for name, place in found.items())] for group, found in points.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(line for group in groups for line in group))

    def run(*command, code=0):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def another(directory, name, group, point, module=""):
    """One more package beside it, with one entry point."""
    metadata = directory / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[etude.{group}]\n{point}\n")
    (directory / f"{name}.py").write_text(module)


ETUDE = ("-m", "etude.cli.main")


@pytest.mark.parametrize(
    ("group", "key", "said"),
    one_of_each(
        4, [("backends", "environment", "No module named 'absent'"), ("engines", "engine", "No module named 'absent'")]
    ),
)
def test_a_plug_in_that_cannot_be_loaded_is_told_of_where_it_is_asked_for(outside, tmp_path, group, key, said):
    another(tmp_path, "broken", group, "bad = broken:PLUGIN", "import absent")
    outside(*ETUDE, "config", str(ROOT / "recipes/quickstart.toml"))
    told = outside(*ETUDE, "config", "recipe.toml", "--set", f"{key}={{kind='bad'}}", code=42)
    assert f"'bad' of the package broken cannot be loaded (ModuleNotFoundError: {said})" in told
    assert "pip uninstall broken" in told and len(told.splitlines()) == 1
    if group == "backends":
        assert "namespace: " in outside(*ETUDE, "environments", "doctor", "--backend", "namespace")
        told = outside(*ETUDE, "environments", "doctor", "--backend", "bad", code=42)
        assert "of the package broken cannot be loaded" in told


UNLOADED = (
    ("broken", "nothing", "", "AttributeError: module 'broken' has no attribute 'nothing'"),
    ("divides", "loss", "1 / 0", "ZeroDivisionError"),
    ("number", "loss", "loss = 1", "bad_number is int, and must be Callable"),
)


def test_a_loss_that_cannot_be_loaded_names_its_package(outside, tmp_path):
    for package, loss, module, _ in UNLOADED:
        another(tmp_path, package, "losses", f"bad_{package} = {package}:{loss}", module)
    told = outside("-c", BEFORE, *(f"trainer.loss.formula=bad_{package}" for package, *_ in UNLOADED)).splitlines()
    for (package, _, _, said), line in zip(UNLOADED, told, strict=True):
        assert said in line and package in line


@pytest.mark.parametrize(("group", "name", "key"), [("losses", "policy", "loss"), ("backends", "namespace", "box")])
def test_a_name_that_two_packages_offer_is_refused(outside, tmp_path, group, name, key):
    another(tmp_path, "usurper", group, f"{name} = usurper:{key}", f"def {key}(): pass")
    told = outside("-c", f"from etude.plugins import find; find({group!r}, {name!r})", code=1).splitlines()[-1]
    assert f"{group}: {name!r} is offered by etude and usurper" in told and "uninstall one" in told


BEFORE = """
import asyncio, sys
from pathlib import Path
from etude.config import load_recipe
from etude.errors import EtudeError
from etude.rollouts.config import RunConfig
from etude.rollouts.preflight import preflight

recipes = [load_recipe(Path("recipe.toml"), RunConfig, ["trainer.router_replay=false", key]) for key in sys.argv[1:]]
assert "torch" not in sys.modules
for recipe in recipes:
    try:
        print("nothing wrong with", asyncio.run(preflight(recipe, Path("."))))
    except EtudeError as error:
        print(str(error).replace("\\n", " "))
"""


NOWHERE = (
    ("trainer.loss.formula", "reinforce:nothere", "cannot be imported: module 'reinforce' has no attribute"),
    ("trainer.loss.formula", "reinforce:__name__", "is str, and must be Callable"),
    ("trainer.advantages.baseline", "median:nope", "cannot be imported: module 'median' has no attribute"),
    ("rewards.parts", '{"brief:nope" = 1.0}', "rewards.parts.brief:nope: rewards: brief:nope cannot be imported"),
    ("harness.tools", '["grep", "count_lines:NOPE"]', "harness.tools: tools: count_lines:NOPE cannot be imported"),
    ("harness.tools", '["grep", "count_lines:count"]', "count_lines:count is function, and must be Tool"),
)


def test_an_import_path_that_leads_nowhere_is_refused_before_the_run_begins(outside):
    told = outside("-c", BEFORE, *(f"{key}={value}" for key, value, _ in NOWHERE)).splitlines()
    for (key, _, said), line in zip(NOWHERE, told, strict=True):
        assert line.startswith(key) and said in line


BACKEND = """
import asyncio
from pathlib import Path
from etude.config import load_recipe
from etude.environments.backends import open_backend
from etude.environments.base import SandboxSpec
from etude.harness.schema import ToolCall
from etude.harness.tools import run_calls
from etude.rollouts.config import RunConfig

async def main():
    recipe = load_recipe(Path("recipe.toml"), RunConfig)
    backend = open_backend(recipe.environment)
    try:
        box = await backend.create(SandboxSpec(files={"a.txt": b"one\\ntwo\\n"}))
        print((await box.exec("echo there; echo $LANG; id -u")).output.split(), type(backend).__name__)
        calls = [ToolCall("count_lines", {"path": path}, "") for path in ("a.txt", "b.txt")]
        said, tools = [], recipe.harness.chosen()
        await run_calls(calls, tools, box, recipe.harness.tool, lambda index, result: said.append((index, result.text)))
        print([*tools], sorted(said))
    finally:
        await backend.close()

asyncio.run(main())
"""


def test_a_backend_and_a_tool_of_somebody_elses_are_found_by_name(outside):
    said = outside("-c", BACKEND)
    assert "[b'there', b'C.UTF-8', b'1000'] BoxedBackend" in said
    assert "['read_file', 'edit_file', 'run_terminal_cmd', 'count_lines']" in said
    assert "[(0, '2'), (1, 'error: there is no /workspace/b.txt')]" in said
    looked = outside("-m", "etude.cli.main", "environments", "doctor", "--backend", "boxed")
    assert "boxed: offered" in looked


@pytest.mark.parametrize("name", one_of_each(15, ["boxed:PLUGIN", "boxed"]))
def test_a_backend_of_somebody_elses_is_tested_as_ours_are(outside, name):
    """By the page's own command; a few of the scenarios by import path, for the time they take."""
    page = (ROOT / "docs/extending.md").read_text()
    [line] = re.findall(r"^python (-m pytest \S+conformance --backend) boxed$", page, re.M)
    *command, where, option = line.split()
    few = [] if name == "boxed" else ["-k", "allow_list or exit_codes", "--set", 'env={A="b"}']
    said = outside(*command, "-vv", "-p", "no:cacheprovider", str(ROOT / where), option, name, *few)
    assert f"[{name}] PASSED" in said and "[namespace]" not in said
    assert "SKIPPED" not in said and said.count("PASSED") >= (2 if few else 60)


def test_a_backend_that_falls_short_fails_those_tests(outside):
    where = str(ROOT / "tests/environments/conformance")
    script = (
        "import boxed, pytest, sys\n"
        "boxed.BWRAP.insert(2, '--share-net')\n"
        f"sys.exit(0 if pytest.main(['-q', {where!r}, '-k', 'no_network', '--backend', 'boxed']) == 1 else 9)\n"
    )
    assert "test_without_one_there_is_no_network[boxed]" in outside("-c", script)


STARTED = """
import asyncio, boxed, sys
from etude.environments.base import SandboxSpec
from etude.errors import SandboxError

async def main():
    boxed.BWRAP[int(sys.argv[1])] = sys.argv[2]
    backend = boxed.PLUGIN.create_backend(boxed.BoxedConfig())
    try:
        await backend.create(SandboxSpec())
    except SandboxError as error:
        print(error, backend.live)
    finally:
        await backend.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("word", "by", "why"),
    [
        (1, "--nonsense", "did not start: bwrap: Unknown option --nonsense"),
        (0, "nobody-has-this", "nobody-has-this is not installed"),
    ],
)
def test_a_command_that_starts_no_sandbox_says_why(outside, word, by, why):
    said = outside("-c", STARTED, str(word), by)
    assert why in said and said.strip().endswith("{}"), "and none is left"


TRAINED = """
import sys
from pathlib import Path
import numpy as np
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.records import Group, Scored, Segment, Task, Trajectory, Verifier
from etude.rollouts.config import RunConfig
from etude.trainer.credit import assign_advantages
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer

SHAPE = ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=32)

def trajectory(reward):
    ids = np.arange(6, dtype=np.int32)
    said = Segment(ids, ids > 2, np.full(6, -4.0, np.float32), np.zeros(6, np.int32), np.zeros((0, 0, 0), np.uint8))
    return Trajectory(str(reward), "t", "g", (said,), (), Scored(reward, {}))

group = Group("g", Task("t", "", {}, Verifier({})), tuple(trajectory(reward) for reward in (0.0, 0.0, 1.0)))
for words in ([], *([word] for word in sys.argv[1:])):
    config = load_recipe(Path("recipe.toml"), RunConfig, ["trainer.router_replay=false", *words]).trainer
    credit = assign_advantages([group], config.advantages, config.credit)
    trainer = Trainer(Decoder(SHAPE), config)
    try:
        found = trainer.step(build_batch([group], credit.advantages, trainer.version))
    except ConfigError as error:
        print(str(error).replace("\\n", " "))
        continue
    used = {name: (found["used"] | credit.used)[name] > 0 for name in config.features}
    print(found["version"], np.isfinite(found["loss"]), [float(each[0]) for each in credit.advantages[0]], used)
"""


def test_a_loss_and_an_advantage_of_somebody_elses_train(outside):
    """And an option that the loss reads and the recipe lacks is named."""
    wrong = [f"trainer.loss.options={options}" for options in ("{}", "{ entropi = 0.1 }")]
    trained, none, entropi = outside("-c", TRAINED, *wrong).splitlines()
    used = "{'formula_tokens': True, 'baselined_rollouts': True}"
    assert f"1 True [0.0, 0.0, 1.0] {used}" in trained
    assert all("trainer.loss.options: the formula reads `entropy`" in said for said in (none, entropi))
    assert "it has none" in none and "it has entropi" in entropi


REWARDED = """
import asyncio
from pathlib import Path
from etude.config import load_recipe
from etude.environments.namespace import NamespaceBackend
from etude.harness.session import SessionResult
from etude.rewards.sealed import judge, run_to_seal
from etude.rewards.reward import score
from etude.rollouts.config import RunConfig
from etude.rollouts.evaluate import evaluation_set
from etude.tasks.families import family

USAGE = {"malformed_calls": 0, "tool_calls": 0, "sampled_tokens": 9, "observed_tokens": 0}

async def outcome(task, recipe, backend, turns):
    done = SessionResult("s", (), (), "finished", {"turns": turns, **USAGE})

    async def session(box):
        for path, content in task.solution.items():
            await box.write_file(f"/workspace/{path}", content)
        return done

    async with recipe.rewards.judges() as judges:
        said = await judge(task, await run_to_seal(task, backend, session), backend, judges)
    return score(task, done, said, recipe.rewards)

async def main():
    recipe = load_recipe(Path("recipe.toml"), RunConfig)
    print(len(evaluation_set(recipe.evaluation.model_copy(update={"real": False}), recipe.rollouts.family)))
    task = family(recipe.rollouts.family).task(2, "train", 7)
    backend = NamespaceBackend()
    try:
        for turns in (3, 5):
            print(turns, (await outcome(task, recipe, backend, turns)).parts)
    finally:
        await backend.close()

asyncio.run(main())
"""


def test_a_family_and_a_part_of_the_reward_of_somebody_elses_are_played_and_paid(outside):
    said = outside("-c", REWARDED).splitlines()
    assert said[0] == str(2 * 64 + 2 * 24)
    assert "'tests': 1.0" in said[1] and "'brief': 0.1" in said[1] and "'brief': 0.0" in said[2]


SAMPLED = """
import asyncio
from pathlib import Path
from etude.config import load_recipe
from etude.engine.opening import open_engine
from etude.harness.sampler import SampleRequest
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.rollouts.config import RunConfig

SHAPE = ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=32)
engine = open_engine(load_recipe(Path("recipe.toml"), RunConfig).engine, Decoder(SHAPE), 0)
print(len(asyncio.run(engine.sample(SampleRequest("mine", (1, 2, 3), 4, frozenset(), seed=1))).token_ids))
engine.close()
print(Path("requests.log.0").read_text())
"""


def test_an_engine_of_somebody_elses_samples(outside):
    assert outside("-c", SAMPLED).split() == ["4", "mine", "3"]


def test_a_sink_of_somebody_elses_is_told_the_figures_of_a_run(outside, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    line = {"kind": "step", "step": 3, "reward": 0.5, "parts": {"brief": 0.1}}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    said = json.loads(outside(*ETUDE, "runs", "export", "run", "--to", "table", "--json"))
    assert said["sent"] == {"step": 3} and Path(tmp_path, said["see"]).samefile(run / "figures.csv")
    assert (run / "figures.csv").read_text() == "3,step/reward,0.5\n3,step/parts/brief,0.1\n"


READ = """
import sys
from pathlib import Path
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig

for words in sys.argv[1:]:
    try:
        load_recipe(Path("recipe.toml"), RunConfig, [words])
        print("read")
    except ConfigError as error:
        print(str(error).replace("\\n", " "))
"""
ABSENT = (
    ("trainer.loss.formula", "nobody", "policy, reinforce"),
    ("trainer.loss.formula", "nobody:loss", "no module nobody"),
    ("trainer.loss.mask", "band", "no effect with formula = 'reinforce'"),
    ("trainer.advantages.baseline", "nobody", "leave_one_out, mean, median"),
    ("harness.tools", '["grep", "nobody"]', "grep, run_terminal_cmd, count_lines"),
    ("rewards.parts", "{ nobody = 1.0 }", "there is brief"),
    ("rollouts.family", "nobody", "ladder, sums, trail"),
    ("rollouts.family", "sums:sums", "is function, and must be Family"),
    ("rollouts.family", "sums:nothing", "sums:nothing cannot be imported"),
    ("engine.kind", "nobody", "etude"),
)


def test_a_name_that_is_not_there_is_refused_with_those_that_are(outside):
    lines = outside("-c", READ, *(f"{key}={value}" for key, value, _ in ABSENT)).splitlines()
    for (key, _, there), said in zip(ABSENT, lines, strict=True):
        assert key.rpartition(".")[0] in said and there in said


def test_an_installation_older_than_its_code_says_so():
    """As an editable one is, when entry points came with a pull: its metadata know no backend."""
    script = "import importlib.metadata as m; m.entry_points = lambda **_: m.EntryPoints()\n"
    script += "import etude.environments.backends"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "run `pip install -e .` again" in done.stderr.splitlines()[-1]
