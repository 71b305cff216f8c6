"""What is wrong with a recipe is said in our words, with the key's path and what to do."""

from pathlib import Path

import pytest

from etude.config import load_part, load_recipe
from etude.errors import ConfigError
from etude.explain import keys_of
from etude.product.config import AgentConfig
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import Supervised

QUICKSTART = Path(__file__).parents[1] / "recipes/quickstart.toml"
PYDANTIC = ("Value error", "default factory", "Input tag", "_kind()", "Field required")


def refused(*sets, recipe=QUICKSTART, schema=RunConfig):
    with pytest.raises(ConfigError) as error:
        load_recipe(recipe, schema, sets)
    assert not [words for words in PYDANTIC if words in str(error.value)]
    return str(error.value).removeprefix(f"{recipe}: ").removeprefix("--set ")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("groups.sise=", "groups.sise: unknown key (did you mean size?); known here: "),
        ("grops=", "grops: unknown key (did you mean groups?)"),
        ("grops.size=", "grops: unknown key"),
        ("seed.x=", "override 'seed.x=': seed is a value, not a table"),
        ("store.x=", "store: Input should be a valid string"),
        ("environment.image=", "environment.image: unknown key"),
        ("rollouts.sample_deadline_s=", "rollouts: key sample_deadline_s is gone: it is now fixed at 180 s"),
        ("harness.delay.median_s=", "harness: key delay.median_s is gone: write delay = [MEDIAN, P99]"),
        ("rewards.parts.nobody=", "rewards.parts.nobody: 'nobody' is not known"),
    ],
)
def test_a_key_to_be_left_out_is_one_there_could_be(override, said):
    assert refused(override).startswith(said)


@pytest.mark.parametrize(
    "override",
    [
        "groups.size=",
        "groups=",
        "trainer.loss.gate.band=",
        "environment.kind=",
        "store=",
        "rewards.judge.endpoint.model=",
        "harness.delay=",
    ],
)
def test_a_key_that_could_be_there_may_be_left_out_where_it_is_not(override):
    load_recipe(QUICKSTART, RunConfig, [override])


def test_a_key_of_one_kind_of_table_may_be_left_out_of_that_kind():
    load_recipe(QUICKSTART, RunConfig, ["environment.kind=docker", "environment.image="])
    load_part(QUICKSTART, Supervised, ["groups.size="])  # of a part, what else the recipe has is not known


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["harness.toolset=big"], "harness.toolset: Input should be 'small' or 'agent'"),
        (["engine.kind=nobody"], "engine.kind: 'nobody' is not known; there is etude, sglang, vllm"),
        (["environment=3"], "environment: must be a table"),
        (["rollouts.tasks=nope"], 'rollouts.tasks: must be a list, like ["nope"]'),
        (["rollouts.rungs=3"], "rollouts.rungs: must be a list, like [3]"),
        (["rewards.effort.enabled=false", "rewards.effort.scale=1"],
         "rewards.effort.scale: has no effect with enabled = false; leave it out"),
        (["rollouts.rungs=[9]"], "rollouts.rungs: no rung 9 in the ladder; there are (1, 2, 3, 4, 5, 6, 7, 8)"),
        (["name="], "name: must be given"),
        (["trainer.loss.band=[1, 2, 3]", "trainer.loss.mask=band"], "trainer.loss.band: "),
        (["faults.restart=1"], "faults.restart: unknown key (did you mean restarts?); known here: "),
        (["environment.kind=qemu", "environment.imgae=x"], "environment.imgae: unknown key (did you mean image?)"),
        (["trainer.credit.feedback.wieght=1"],
         "trainer.credit.feedback.wieght: unknown key (did you mean weight?)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_our_words(sets, said):
    found = refused(*sets)
    assert found.startswith(said)
    assert "harness.tools:" not in found  # what only follows from another error is none


def test_the_key_of_one_entry_of_many_is_named():
    sets = ["endpoint.url=http://a/v1", "endpoint.model=m", "prices.m.inputs=1"]
    assert "prices.m.inputs: unknown key (did you mean input?)" in refused(*sets, recipe=None, schema=AgentConfig)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: path.mkdir(), "is a directory; name the TOML file"),
        (lambda path: path.write_bytes(b"name = '\xff'"), "not UTF-8 at byte 8; save it as UTF-8"),
        (lambda path: path.write_text("name ="), "not valid TOML"),
        (lambda path: None, "no such file"),
    ],
)
def test_a_file_that_is_no_recipe_is_one_sentence(tmp_path, made, said):
    made(tmp_path / "a.toml")
    assert refused(recipe=tmp_path / "a.toml").startswith(said)


def test_a_recipe_that_names_no_model_finds_the_shipped_one_in_any_directory(tmp_path, monkeypatch):
    """Before, it was looked for below the directory that the command is run in."""
    recipe = tmp_path / "first.toml"
    recipe.write_text('name = "first"')
    monkeypatch.chdir(tmp_path)
    model = load_recipe(recipe, RunConfig, ()).model.path
    assert (model / "model.safetensors").is_file()
    [key] = [key for key in keys_of(RunConfig) if key.path == "model.path"]
    assert key.usual == '"…/etude-tiny"', "a page says nothing of this machine"


def test_an_error_is_blamed_on_what_has_set_the_key(tmp_path):
    """The file is right, and whoever looks there finds nothing."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "x"\nseeds = 1\n[trainer.loss]\nmask = "tv"\n')
    with pytest.raises(ConfigError) as error:
        load_recipe(recipe, RunConfig, ["trainer.ranks=0", "groups.sizes=4", "trainer.loss.band=3"])
    said = str(error.value)
    for words in ("--set trainer.ranks: ", "--set groups.sizes: unknown key", "--set trainer.loss.band = 3.0: "):
        assert words in said
    assert f"; {recipe}: seeds: unknown key" in said and said.count("--set") == 3
    recipe.write_text('name = "x"\n')
    with pytest.raises(ConfigError, match=r"^--set trainer\.ranks: "):
        load_recipe(recipe, RunConfig, ["trainer={ranks=0}"])
