"""Changes of a running job: which are taken, which are refused and how, and that a resumed run has them."""

import asyncio
import json
from pathlib import Path

import pytest

from etude.config import load_recipe, overridden
from etude.errors import ConfigError, EtudeError
from etude.rollouts.config import RunConfig
from etude.rollouts.live import LIVE, Changes, ControlSocket, ask
from etude.rollouts.run import Run

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes" / "quickstart.toml", RunConfig)
LOCKSTEP = [
    "rollouts.schedule=lockstep", "rollouts.by_difficulty=false", "groups.straggler_s=", "groups.window_share=",
]  # fmt: skip


def test_a_change_is_checked_kept_and_there_again_after_a_death(tmp_path):
    changes = Changes(RECIPE, tmp_path)
    changed = changes.set(["groups.max_staleness=2", "rollouts.rungs=[1, 3]"])
    assert (changed.groups.max_staleness, changed.rollouts.rungs) == (2, (1, 3))
    assert changed.groups.size == RECIPE.groups.size
    changes.set(["groups.max_staleness=1"])
    assert Changes(RECIPE, tmp_path).current == changes.current
    assert changes.current.groups.max_staleness == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.path=x", "model.path: cannot change while the run goes on; these can: groups"),
        ("groups.sise=3", "groups.sise: cannot change"),
        ("rollouts.concurrency=0", "rollouts.concurrency: Input should be greater"),
        ("groups.size=many", "groups.size: Input should be a valid integer"),
        ("groups.size", "not of the form"),
    ],
)
def test_what_cannot_change_is_refused_and_changes_nothing(tmp_path, change, said):
    changes = Changes(RECIPE, tmp_path)
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        changes.set(["groups.max_staleness=2", change])
    assert changes.current == RECIPE
    assert not changes.path.exists()


def test_lockstep_keeps_the_samples_it_began_with(tmp_path):
    lockstep = overridden(
        RECIPE,
        ["rollouts.schedule=lockstep", "groups.straggler_s=", "groups.window_share=", "rollouts.by_difficulty=false"],
    )
    changes = Changes(lockstep, tmp_path)
    for key in ("groups.size=4", "rollouts.rungs=[1]"):
        with pytest.raises(ConfigError, match="cannot change in lockstep"):
            changes.set([key])
    assert changes.set(["rollouts.concurrency=3"]).rollouts.concurrency == 3


def test_a_run_that_an_earlier_version_began_is_gone_on_with(tmp_path):
    """It took keys that change nothing in lockstep, from the recipe and from operators, and wrote them down."""
    lockstep = overridden(
        RECIPE,
        ["rollouts.schedule=lockstep", "groups.straggler_s=", "groups.window_share=", "rollouts.by_difficulty=false"],
    )
    written = lockstep.model_dump(mode="json")
    written["groups"] |= {"straggler_s": 5.0, "window_share": 1.0}
    written["trainer"]["router_replay"] = True  # before the model had a say in it
    (tmp_path / "recipe.json").write_text(json.dumps(written))
    changes = [["groups.max_staleness=2", "rollouts.concurrency=3"], ["groups.straggler_s = 4"]]
    (tmp_path / "changes.jsonl").write_text("".join(json.dumps({"set": each, "at": 1.0}) + "\n" for each in changes))
    current = Run(lockstep, tmp_path, resume=True).changes.current
    assert current.rollouts.concurrency == 3
    assert current.groups == lockstep.groups
    assert json.loads((tmp_path / "recipe.json").read_text()) == written


@pytest.mark.parametrize("change", ["seed=1", "rewards.effort.enabled=false", "rollouts.schedule=free"])
def test_a_run_is_not_gone_on_with_by_another_recipe(tmp_path, change):
    lockstep = overridden(
        RECIPE,
        ["rollouts.schedule=lockstep", "groups.straggler_s=", "groups.window_share=", "rollouts.by_difficulty=false"],
    )
    Run(lockstep, tmp_path, resume=False)
    (tmp_path / "metrics.jsonl").touch()
    Run(lockstep, tmp_path, resume=True)
    with pytest.raises(ConfigError, match="was started with another recipe"):
        Run(overridden(lockstep, [change]), tmp_path, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_start_that_came_to_nothing_keeps_no_directory_from_the_next(tmp_path, resume):
    other = overridden(RECIPE, ["seed=1"])
    Run(RECIPE, tmp_path, resume=False)
    (tmp_path / "weights/versions").mkdir(parents=True)
    (tmp_path / "trainer.lock").touch()
    Run(other, tmp_path, resume=resume)
    assert json.loads((tmp_path / "recipe.json").read_text())["seed"] == 1


@pytest.mark.parametrize("made", ["metrics.jsonl", "weights/versions/00000000/manifest", "evaluation-base.json"])
def test_a_directory_in_which_something_was_made_is_not_claimed_again(tmp_path, made):
    Run(RECIPE, tmp_path, resume=False)
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / made).touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        Run(RECIPE, tmp_path, resume=False)
    with pytest.raises(ConfigError, match="was started with another recipe"):
        Run(overridden(RECIPE, ["seed=1"]), tmp_path, resume=True)


def test_what_a_store_elsewhere_holds_is_not_lost_either(tmp_path):
    with_store = overridden(RECIPE, ["store=s3://bucket/runs"])
    Run(with_store, tmp_path, resume=False)
    (tmp_path / "trainer.lock").touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        Run(with_store, tmp_path, resume=False)


def test_every_live_key_is_one_of_a_recipe():
    for key in LIVE:
        table, name = key.split(".")
        assert name in type(getattr(RECIPE, table)).model_fields


def test_an_operator_is_answered_over_the_socket(tmp_path):
    deep = tmp_path.joinpath(*(["a-directory-with-a-long-name"] * 8))  # no path of a socket may be so long
    deep.mkdir(parents=True)
    (deep / "recipe.json").write_text("{}")

    async def answer(request):
        if request["command"] == "fail":
            raise EtudeError("it cannot be done")
        return json.dumps(request)

    async def served():
        async with ControlSocket(deep, answer):
            assert json.loads(await asyncio.to_thread(ask, deep, {"command": "set"})) == {"command": "set"}
            with pytest.raises(EtudeError, match="it cannot be done"):
                await asyncio.to_thread(ask, deep, {"command": "fail"})

    asyncio.run(served())
    with pytest.raises(EtudeError, match="does not go on now; start it with --resume"):
        ask(deep, {"command": "set"})
    with pytest.raises(ConfigError, match="no run here"):
        ask(tmp_path, {"command": "set"})
