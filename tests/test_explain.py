"""What is said of a recipe's keys: of each by its docstring, with its source, and of a whole recipe as TOML again."""

import json
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import pytest

from etude.cli.main import FILES, main
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.explain import Explained, Key, keys_of
from etude.harness.config import HarnessConfig
from etude.harness.tools import AGENT_ONLY
from etude.product.config import AgentConfig
from etude.rollouts.config import RunConfig

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import pages

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "recipes/quickstart.toml"
TRAINING = [path for path in sorted((ROOT / "recipes").glob("*.toml")) if "[rollouts]" in path.read_text()]
SETS = {
    "judged": ['rewards.judge={endpoint={url="http://127.0.0.1:1/v1", model="m", body={top_p=0.9}}}'],
    "remote": ['environment={kind="remote", url="http://127.0.0.1:1"}'],
    "cluster": [
        'environment={kind="cluster"}',
        "cluster={cpus=2.5, weights={a=2.0}}",
        "trainer.loss.importance_cap=inf",
    ],
    "places": ['environment={kind="routed", places=[{kind="remote", url="http://127.0.0.1:1"}]}'],
    "idle": [
        "rollouts.schedule=lockstep",
        "rollouts.by_difficulty=false",
        "groups.straggler_s=",
        "groups.window_share=",
        "trainer.optimizer.name=adamw",
        "trainer.optimizer.momentum=",
        "trainer.optimizer.scalar_lr=",
        "rewards.effort.enabled=false",
        "trainer.parity_tokens=",
    ],
    "words": ['harness.summary={trigger_tokens=100, request="say \\"so\\"\\n\\tand #stop"}'],
}


@pytest.mark.parametrize("sets", [[], *SETS.values()], ids=["as it is", *SETS])
@pytest.mark.parametrize("recipe", TRAINING, ids=lambda path: path.stem)
def test_a_whole_recipe_is_one_that_loads_and_is_the_same(tmp_path, recipe, sets):
    again = tmp_path / "again.toml"
    again.write_text(Explained(recipe, RunConfig, sets).toml())
    assert load_recipe(again, RunConfig) == load_recipe(recipe, RunConfig, sets)
    assert Explained(again, RunConfig).config == load_recipe(recipe, RunConfig, sets)


def test_tasks_of_ones_own_go_with_the_rungs_that_are_nobodys(tmp_path):
    again, sets = tmp_path / "again.toml", ['rollouts.tasks=["a", "b"]']
    again.write_text(Explained(QUICKSTART, RunConfig, sets).toml())
    assert load_recipe(again, RunConfig) == load_recipe(QUICKSTART, RunConfig, sets)


def test_what_differs_from_the_defaults_is_marked_with_the_line_that_sets_it():
    explained = Explained(QUICKSTART, RunConfig, ["groups.size=4"])
    marked = dict(re.findall(r"^(\w+) = .*?  # (.*)$", explained.toml(), re.MULTILINE))
    lines = QUICKSTART.read_text().splitlines()
    assert marked["size"] == "--set groups.size=4; default: 8"
    where = re.fullmatch(rf"{re.escape(str(QUICKSTART))} line (\d+); default: 20.0", marked["straggler_s"])
    assert where and lines[int(where[1]) - 1].startswith("straggler_s")
    wanted = {key for table in tomllib.loads(QUICKSTART.read_text()).values() for key in _leaves(table)}
    assert (
        marked.keys() - {"size"} <= wanted and {"scalar_lr", "window_share", "max_observation_bytes"} <= marked.keys()
    )
    assert "concurrency" not in marked  # it is set, to what it would be anyway


def test_what_changes_nothing_is_not_said_to_be_in_effect():
    said = {each.key.path for each in Explained(QUICKSTART, RunConfig).values()}
    assert "harness.tool.command_timeout_s" in said
    assert not said & {f"harness.tool.{key}" for key in AGENT_ONLY}
    assert {f"harness.tool.{key}" for key in AGENT_ONLY} <= {
        each.key.path for each in Explained(QUICKSTART, RunConfig, ["harness.toolset=agent"]).values()
    }


def _leaves(table):
    for key, value in table.items() if isinstance(table, dict) else [("name", table)]:
        yield from _leaves(value) if isinstance(value, dict) else [key]


def test_every_key_of_a_recipe_says_what_it_changes():
    assert [key.path for key in keys_of(RunConfig) if not key.doc and key.name not in ("kind", "isolation")] == []


@pytest.mark.parametrize(
    ("key", "sets", "said"),
    [
        ("groups.straggler_s", [], {"value": 5.0, "default": 20.0, "type": "number"}),
        ("groups.when_stale", [], {"value": "wait", "source": "default", "type": '"wait" or "drop"'}),
        ("trainer.divergence_target", ["trainer.divergence_target=0.5"],
         {"value": 0.5, "default": None, "source": "--set trainer.divergence_target=0.5"}),
        ("name", [], {"value": "quickstart", "required": True}),
        ("environment.accel", [], {"value": None, "kinds": ["qemu"]}),
        ("harness.summary", [], {"type": "table", "set": False}),
    ],
)  # fmt: skip
def test_a_key_is_explained(key, sets, said):
    found = Explained(QUICKSTART, RunConfig, sets).explain(key)
    assert said.items() <= found.items() and len(found["doc"]) > 20


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("groups.sise", r"groups.sise: unknown key \(did you mean size\?\); known here: drop_zero"),
        ("straggler_s", "straggler_s: unknown key"),
        ("trainer.straggler_s", r"trainer\.straggler_s: unknown key"),
        ("rollouts.sample_deadline_s", r"key sample_deadline_s is gone: it is now fixed at 180 s"),
        ("nowhere.straggler_s", r"no such key; did you mean groups\.straggler_s\?"),
    ],
)
def test_a_key_that_is_not_there_is_refused_as_a_recipe_would_refuse_it(key, said):
    with pytest.raises(ConfigError, match=said):
        Explained(QUICKSTART, RunConfig).explain(key)


def test_the_commands_print_what_was_found(capsys):
    assert main(["train", str(QUICKSTART), "--explain", "groups.straggler_s"]) == 0
    text = capsys.readouterr().out
    assert "three quarters" in text and "line 1" in text and "default: 20.0" in text
    assert main(["train", str(QUICKSTART), "--explain", "groups.straggler_s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == 5.0
    assert main(["config", str(QUICKSTART), "--set", "groups.size=4"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["groups"]["size"] == 4
    assert main(["config", str(QUICKSTART), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert values["trainer.optimizer.scalar_lr"]["differs"] and not values["rollouts.concurrency"]["differs"]
    assert main(["train", str(QUICKSTART), "--explain", "groups.sise"]) == 42


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_that_is_made_of_the_code_is_as_the_code(name):
    assert pages.PAGES[name]() == (ROOT / "docs" / name).read_text(), "run python tools/pages.py"


def test_every_key_of_every_file_says_what_it_changes():
    """The page of configuration has them all: in its own tables, or in those of recipes."""
    files = {line: configs for line, configs in FILES.items() if line not in ("train", "pretrain")}
    for config in (pkgutil.resolve_name(name) for configs in files.values() for name in configs):
        silent = [key.path for key in keys_of(config) if not key.doc and key.name not in ("kind", "isolation")]
        assert silent == [], config


def test_the_default_of_a_table_that_has_its_own_is_that_one():
    found = {key.path: key.default for key in keys_of(AgentConfig)}
    assert (
        found["harness.toolset"] == "agent"
        and {key.path: key for key in keys_of(HarnessConfig)}["toolset"].default == "small"
    )
    assert '`toolset = "agent"`' in (ROOT / "docs/configuration.md").read_text()


def tables(config, above=""):
    """Every config below one, with the path of its table."""
    yield above, config
    for name, field in config.model_fields.items():
        key = Key(f"{above}{name}", config, field)
        for table in key.tables:
            yield from tables(table, f"{key.path}.")


def test_a_key_of_several_kinds_is_explained_as_each_of_them_has_it():
    rows = {(key.path, kind): key for key in keys_of(RunConfig) for kind in key.kinds or ("any",)}
    page = (ROOT / "docs/recipes.md").read_text()
    differs = 0
    for above, table in tables(RunConfig):
        kind = table.model_fields["kind"].default if "kind" in table.model_fields else "any"
        for name, field in table.model_fields.items():
            own = Key(f"{above}{name}", table, field)
            if own.tables or name == "kind":
                continue
            row = rows.get((own.path, kind)) or next(key for (path, _), key in rows.items() if path == own.path)
            assert row.said == own.said, own.path
            assert own.doc.replace("|", "\\|") in page
            differs += row.kinds == (kind,)
    assert differs > 10


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([], {"type": '"cgroup" or "rlimit"', "value": "cgroup", "here": True}),
        (['environment={kind="docker", image="a"}'],
         {"type": 'firecracker or qemu: "cgroup" or "machine" namespace: "cgroup" or "rlimit"', "here": False}),
    ],
)  # fmt: skip
def test_a_key_of_several_kinds_is_explained_by_the_one_the_recipe_has(sets, said):
    assert said.items() <= Explained(QUICKSTART, RunConfig, sets).explain("environment.limits").items()


def test_a_table_is_explained_with_what_its_own_kind_says_of_its_keys():
    keys = Explained(QUICKSTART, RunConfig, []).explain("environment")["keys"]
    assert "`rlimit`" in keys["environment.limits"] and "tasks' files" in keys["environment.state_dir"]
