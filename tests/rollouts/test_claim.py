"""Whose a run directory is: a second start is kept out of it, and nobody's file is written over."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from etude.cli.main import main
from etude.config import load_recipe, overridden
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig
from etude.rollouts.run import Run

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.toml"
RECIPE = load_recipe(QUICKSTART, RunConfig)
OTHER = overridden(RECIPE, ["seed=7"])
STARTS = """
import sys
from pathlib import Path
from etude.config import load_recipe
from etude.rollouts.config import RunConfig
from etude.rollouts.run import Run
run = Run(load_recipe(Path(sys.argv[1]), RunConfig), Path(sys.argv[2]), resume=False)
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def starting(tmp_path):
    """Another process's run in `tmp_path`, which has made nothing yet."""
    command = [sys.executable, "-c", STARTS, str(QUICKSTART), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"claimed\n"
            yield process
        finally:
            process.kill()


def test_a_run_that_still_starts_has_its_directory(tmp_path, starting):
    before = (tmp_path / "recipe.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(ConfigError, match=rf"a run is under way there \(process {starting.pid}\); stop it first"):
            Run(OTHER, tmp_path, resume)
    assert (tmp_path / "recipe.json").read_bytes() == before


def test_a_run_that_is_killed_leaves_it_to_the_next(tmp_path, starting):
    os.kill(starting.pid, signal.SIGKILL)
    Run(OTHER, tmp_path, resume=True)
    assert json.loads((tmp_path / "recipe.json").read_text())["seed"] == 7


@pytest.mark.parametrize("to", ["elsewhere", "nowhere", "deep"])
def test_what_is_behind_a_link_was_made_there_too(tmp_path, to):
    run = tmp_path / "run"
    Run(RECIPE, run, resume=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "manifest").touch()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "versions").symlink_to(tmp_path / "elsewhere")
    (run / "weights").symlink_to(tmp_path / to)
    with pytest.raises(ConfigError, match="holds a run already"):
        Run(OTHER, run, resume=False)


def test_links_to_what_is_empty_or_to_the_run_itself_are_nothing_made(tmp_path):
    run = tmp_path / "run"
    Run(RECIPE, run, resume=False)
    (tmp_path / "empty").mkdir()
    (run / "weights").symlink_to(tmp_path / "empty")
    (run / "self").symlink_to(run)
    Run(OTHER, run, resume=False)
    assert json.loads((run / "recipe.json").read_text())["seed"] == 7


def test_what_a_start_that_came_to_nothing_leaves_is_nothing_made(tmp_path):
    Run(RECIPE, tmp_path, resume=False)
    for name in ("ray.token", "control.sock", "trainer.lock"):
        (tmp_path / name).touch()
    Run(OTHER, tmp_path, resume=False)
    assert json.loads((tmp_path / "recipe.json").read_text())["seed"] == 7


@pytest.mark.parametrize("flags", [[], ["--resume"]], ids=["new", "resumed"])
@pytest.mark.parametrize(
    "written", [b"[]", b"", b'{"name": "my cake"}', b"\xff", b"[" * 200_000, b"null"], ids=lambda each: repr(each[:9])
)
def test_what_is_no_runs_recipe_is_never_written_over(tmp_path, capsys, written, flags):
    (tmp_path / "recipe.json").write_bytes(written)
    assert main(["train", str(QUICKSTART), "--out", str(tmp_path), "--unsupervised", *flags]) == 42
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "recipe.json: is no recipe that this version has written; choose another --out" in line
    assert [each.name for each in tmp_path.iterdir()] == ["recipe.json"]
    assert (tmp_path / "recipe.json").read_bytes() == written


@pytest.mark.parametrize("name", ["quickstart", "longhorizon"])
def test_a_recipe_that_was_written_down_is_known_for_one(tmp_path, name):
    recipe = load_recipe(ROOT / "recipes" / f"{name}.toml", RunConfig)
    Run(overridden(recipe, ["seed=1"]), tmp_path, resume=False)
    Run(recipe, tmp_path, resume=False)
    assert json.loads((tmp_path / "recipe.json").read_text())["seed"] == recipe.seed


def test_a_run_of_a_mesh_goes_on_with_another_mesh_and_nothing_else_of_another(tmp_path):
    recipe = load_recipe(ROOT / "recipes" / "mesh.toml", RunConfig)
    Run(recipe, tmp_path, resume=False)
    (tmp_path / "metrics.jsonl").touch()
    smaller = overridden(recipe, ["trainer.ranks={fsdp=1}"])
    run = Run(smaller, tmp_path, resume=True)
    assert json.loads((tmp_path / "recipe.json").read_text())["trainer"]["ranks"] == {"fsdp": 2, "ep": 2}
    run.claimed.write_recipe()  # its ranks have met
    del run
    assert json.loads((tmp_path / "recipe.json").read_text())["trainer"]["ranks"] == {"fsdp": 1}
    for other, said in (
        ("seed=7", r"\(seed was 0, and is 7 now\); go on with its own, `etude train .*recipe.json --resume`"),
        ("trainer.ranks=2", 'trainer.ranks was "mesh", and is 2 now'),
    ):
        with pytest.raises(ConfigError, match=f"was started with another recipe .*{said}"):
            Run(overridden(smaller, [other]), tmp_path, resume=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        Run(recipe, tmp_path, resume=False)


def test_a_mesh_that_the_model_cannot_have_leaves_the_runs_recipe(tmp_path, capfd):
    recipe = load_recipe(ROOT / "recipes" / "mesh.toml", RunConfig, [f"model.path={ROOT}/models/etude-tiny"])
    Run(recipe, tmp_path, resume=False)
    (tmp_path / "metrics.jsonl").touch()
    before = (tmp_path / "recipe.json").read_bytes()
    words = ["train", str(tmp_path / "recipe.json"), "--resume", "--set", "trainer.ranks={ep=3}", "--unsupervised"]
    assert main(words) == 42
    assert "ep = 3 does not divide the model's 8 experts" in capfd.readouterr().err
    assert (tmp_path / "recipe.json").read_bytes() == before


@pytest.mark.parametrize(
    "sets", [[], ["groups.overlong=drop", "rewards.unfinished_penalty="], ["trainer.ranks={fsdp=2}"]], ids=str
)
def test_what_a_run_has_written_down_is_read_as_its_recipe(tmp_path, sets):
    """Also with keys that change nothing in it, which no user may give."""
    recipe = load_recipe(ROOT / "recipes" / "quickstart.toml", RunConfig, sets)
    Run(recipe, tmp_path, resume=False)
    (tmp_path / "metrics.jsonl").touch()
    read = load_recipe(tmp_path / "recipe.json", RunConfig)
    assert read.model_dump(mode="json") == recipe.model_dump(mode="json")
    Run(read, tmp_path, resume=True)
    with pytest.raises(ConfigError, match=r"another recipe \(seed was 0, and is 7 now\)"):
        Run(load_recipe(tmp_path / "recipe.json", RunConfig, ["seed=7"]), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("written", "said"), [(b"[]", "is no recipe that a run"), (b"\xff", "not valid JSON")], ids=str
)
def test_a_file_that_is_no_runs_recipe_is_not_read_as_one(tmp_path, written, said):
    (tmp_path / "recipe.json").write_bytes(written)
    with pytest.raises(ConfigError, match=rf"recipe.json: {said}"):
        load_recipe(tmp_path / "recipe.json", RunConfig)
