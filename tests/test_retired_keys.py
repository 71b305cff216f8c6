"""Keys that are gone are refused by name, wherever a recipe has their table."""

import importlib
import re
from pathlib import Path

import pytest

from etude.config import Config, load_recipe, parse
from etude.errors import ConfigError
from etude.retired import RETIRED
from etude.rollouts.config import RunConfig

ROOT = Path(__file__).parents[1]
GONE = [(table, key) for table, keys in RETIRED.items() for key in keys]


def configs(of=Config):
    """All configs there are, by name; several may have one name."""
    for each in of.__subclasses__():
        yield each
        yield from configs(each)


@pytest.fixture(scope="module")
def known():
    for module in ("cluster.config", "docker.config", "firecracker.config", "qemu.config", "remote", "cluster.routed"):
        importlib.import_module(f"etude.environments.{module}")
    importlib.import_module("etude.bench.config")
    importlib.import_module("etude.trainer.warm_start")
    return [each for each in configs() if each.__module__.startswith("etude.")]


@pytest.mark.parametrize(("table", "key"), GONE, ids=[".".join(each) for each in GONE])
def test_a_key_that_is_gone_is_refused_with_what_became_of_it(known, table, key):
    having = [each for each in known if each.__name__ == table and key not in each.model_fields]
    assert having, f"no config is called {table}, or all of that name have {key}"
    path, _, value = key.partition("=")
    table, _, inner = path.rpartition(".")
    was = {"true": True, "false": False, "": 1}.get(value, value)
    with pytest.raises(ConfigError, match=rf"key {key} is gone: (it is now fixed at .* because|write )"):
        parse({table: {inner: was}} if table else {inner: was}, having[0], "test")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollouts.sample_deadline_s=5", r"rollouts: key sample_deadline_s is gone: .*180 s.*\[deadlines\] scale = 2"),
        ("environment.start_timeout_s=5", r"environment: key start_timeout_s is gone: it is now fixed at 30 s"),
        ('environment={kind="qemu", copy_timeout_s=5}', "environment: key copy_timeout_s is gone"),
        ("trainer.optimizer.weight_decay=0.1", r"trainer\.optimizer: key weight_decay is gone: it is now fixed at 0"),
        ("fleet.stall_s=5", "fleet: key stall_s is gone"),
        ("harness.delay.median_s=5", r"harness: key delay\.median_s is gone: write delay = \[MEDIAN, P99\]"),
        ("groups.drop_zero_variance=true", 'key drop_zero_variance=true is gone: write "verdict", .* "reward" for'),
        ("groups.drop_zero_variance=false", 'key drop_zero_variance=false is gone: write "never"'),
        ("environment.kind=kata", r"environment\.kind: 'kata' is gone: .* qemu .*; there is cluster, docker"),
    ],
)
def test_the_path_of_its_table_is_named(override, said):
    with pytest.raises(ConfigError, match=said):
        load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, [override])


def test_no_page_and_no_recipe_has_one_left():
    """By its dotted name; what is only called alike is told apart by its table."""
    tables = {
        "fleet",
        "faults",
        "rollouts",
        "groups",
        "publisher",
        "trainer",
        "control",
        "engine",
        "harness",
        "trainer.advantages",
    }
    dotted = re.compile(rf"`(?:{'|'.join(tables)})\.({'|'.join({re.escape(key) for _, key in GONE})})`")
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    found = [(page.name, each[0]) for page in pages for each in dotted.finditer(page.read_text())]
    assert found == []
