"""The pages: links lead somewhere, command lines parse, config keys exist, and the index names every page.

And lists are whole: rooms, seams, switches."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from page_commands import FENCED, PAGES, ROOT, blocks, check, is_shell, mentioned, typed

from etude.bench.config import BenchConfig
from etude.engine.server.app import ServeConfig
from etude.explain import toml_of
from etude.product.config import AgentConfig
from etude.rewards import effort, reward
from etude.rewards.mining.mine import MineConfig
from etude.rollouts.config import RunConfig
from etude.trainer.config import AdvantageConfig, CreditConfig, LossConfig, TrainerConfig

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    targets = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text()))
    lost = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        there = "://" in target or (file.exists() and (not anchor or file.suffix != ".md" or anchor in anchors(file)))
        lost += [] if there else [target]
    return lost


@each_page
def test_every_file_that_is_named_is_there(page):
    named = re.findall(r"(?<![\w/.~-])((?:etude|benchmarks|recipes|tools|docs)/[\w./-]*\w)", page.read_text())
    files = [name for name in named if "." in name.rpartition("/")[2]]
    assert [name for name in files if not (ROOT / name).exists()] == []


@each_page
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


@each_page
def test_every_command_line_parses(page):
    for line in typed(page):
        check(line, whole=True)
    for line in mentioned(page):
        check(line, whole=False)
    for language, text in blocks(page):
        assert language not in ("sh", "bash") or is_shell(text), text


def test_the_checks_find_what_is_wrong(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b\n[x](gone.md) [y](#no) [z](#a-b) [w](page.md#c)\n```\netude trian recipes/x.toml\nmake quikstart\n"
        "pip install '.[tain]'\nA=1 python tools/house.py --wriet\ncd x && etude config\n```\n"
        "`etude agent --lsit`, `etude bench plot`, `etude release`, `python benchmarks/gone.py`\n"
    )
    assert broken(page) == ["gone.md", "#no", "page.md#c"]
    checks = [(line, True) for line in typed(page)] + [(line, False) for line in mentioned(page)]
    assert len(checks) == 8
    for line, whole in checks:
        with pytest.raises(ValueError):
            check(line, whole)
    assert not is_shell("if true; echo")


def schema_paths(schema: dict, known: dict, path: str = "") -> set[str]:
    """Every dotted path of a config's schema, tables and keys."""
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    found = {path}
    for name, each in schema.get("properties", {}).items():
        found |= schema_paths(each, known, f"{path}.{name}".lstrip("."))
    for each in (each for name in ("anyOf", "oneOf", "allOf") for each in schema.get(name, ())):
        found |= schema_paths(each, known, path)
    return found


@pytest.fixture(scope="module")
def keys():
    schemas = [each.model_json_schema() for each in (RunConfig, AgentConfig, BenchConfig, MineConfig, ServeConfig)]
    return set().union(*(schema_paths(schema, schema.get("$defs", {})) for schema in schemas))


def flat(table: dict, path: str = "") -> list[str]:
    """The dotted paths of a TOML file's keys."""
    paths = []
    for name, each in table.items():
        inner = f"{path}.{name}".lstrip(".")
        paths += flat(each, inner) if isinstance(each, dict) else [inner]
    return paths


def unknown_keys(text: str, keys: set[str]) -> list[str]:
    """The keys in a page's text and TOML blocks that begin like a table of ours, and that no config has."""
    tables = {path.partition(".")[0] for path in keys if "." in path}
    named = re.findall(r"`(?:--set )?'?([a-z_]+(?:\.[a-z_0-9]+)+)[`=]", text)
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S):
        named += flat(tomllib.loads(block))
    files = {"safetensors", "json", "jsonl", "toml", "py", "html", "md", "txt", "sock"}
    ours = [name for name in named if name.partition(".")[0] in tables and name.rpartition(".")[2] not in files]
    free = {
        path for path in keys if not any(each.startswith(f"{path}.") for each in keys)
    }  # such a key may hold a dict
    return [name for name in ours if name not in keys and not any(name.startswith(f"{path}.") for path in free)]


@pytest.mark.parametrize("page", [each for each in PAGES if each.name != "extending.md"], ids=lambda path: path.name)
def test_every_key_is_there(page, keys):
    """tests/test_extending.py runs what docs/extending.md adds."""
    assert unknown_keys(page.read_text(), keys) == []


def test_a_key_that_is_not_there_is_found(keys):
    text = "`trainer.loss.mask` `trainer.loss.msk`\n```toml\n[groups]\nsize = 8\nsiez = 8\n```\n"
    assert unknown_keys(text, keys) == ["trainer.loss.msk", "groups.siez"]


def test_every_page_is_in_the_index():
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs/index.md").read_text()))
    assert {page.name for page in ROOT.glob("docs/*.md")} - linked - {"index.md"} == set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.name)
def test_every_page_says_at_its_beginning_what_it_covers(page):
    title, said = [each for each in page.read_text().split("\n") if each][:2]
    assert title.startswith("# ") and re.match(r"[*`\[]*[A-Za-zÉ]", said) and len(said) > 40


def test_the_design_lists_every_room():
    listed = re.findall(r"^  (\w+)(?:/|\.py) ", (ROOT / "docs/design.md").read_text(), re.M)
    rooms = {path.name.removesuffix(".py") for path in (ROOT / "etude").iterdir() if not path.name.startswith("_")}
    assert sorted(listed) == sorted(rooms - {"retired"}) and "(retired.py)" in (ROOT / "docs/design.md").read_text()


def test_the_glossary_lists_every_seam():
    heads = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in (ROOT / "etude").rglob("*.py")]
    owned = {found.lower() for head in heads for found in re.findall(r"(?:^The|Owns the) `?([\w ]+?)`? seam", head)}
    [said] = re.findall(r"^\| \*\*seam\*\* \| .*: (.*?) \|", (ROOT / "docs/glossary.md").read_text(), re.M)
    assert owned == set(said.split(", ")) == {"engine", "sandbox", "object store", "dialogue"}


def compared() -> list[list[str]]:
    """The cells of the agent's table beside other agents, a row a capability."""
    [section] = re.findall(
        r"^## Beside other agents\n(.*?)(?=^## |\Z)", (ROOT / "docs/agent.md").read_text(), re.M | re.S
    )
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_agent_is_compared_and_each_yes_has_its_test():
    """And each no its reason. A test that is named is one that pytest would find there."""
    head, *rows = compared()
    assert head == ["", "Etude", "Claude Code", "Codex", "opencode", "aider", "test"] and len(rows) >= 40
    assert len({row[0] for row in rows}) == len(rows)
    for name, ours, *peers, test in rows:
        assert len(peers) == 4, name
        if re.match(r"no\b", ours):
            assert re.match(r"no(, |: )\S", ours) and not test, f"{name}: say why not"
            continue
        assert re.match(r"yes\b", ours), name
        file, _, function = test.strip("`").partition("::")
        tree = ast.parse((ROOT / file).read_text())
        found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function.startswith("test_") and function in found, (name, test)


def switches():
    """Every key of the algorithm, as a recipe has it, with its config and field."""
    tables = {"loss": LossConfig, "advantages": AdvantageConfig, "credit": CreditConfig}
    for table, config in tables.items():
        yield from ((f"trainer.{table}.{name}", field) for name, field in config.model_fields.items())
    for name in ("router_replay", "replay_margin", "divergence_target"):
        yield f"trainer.{name}", TrainerConfig.model_fields[name]


def test_the_algorithm_has_every_switch_with_its_default_first():
    said = {}
    for keys, values in re.findall(r"^\| (`.+?) \| (.+?) \|", (ROOT / "docs/algorithm.md").read_text(), re.M):
        first, *more = re.findall(r"`([\w.]+)`", keys)
        names = [first, *(f"{first.rpartition('.')[0]}.{name.rpartition('.')[2]}" for name in more)]
        said |= zip(names, [each.strip(" `") for each in re.split("[,;]", values)], strict=False)
    for key, field in switches():
        default = toml_of(field.default).strip('"').removesuffix(".0") if field.default not in (None, {}) else "none"
        default = "by mask: 0.2" if key == "trainer.loss.band" else default
        assert said[key] == default, key


@pytest.mark.parametrize("place", ["docs/algorithm.md", "etude/trainer/losses.py"])
def test_every_mask_is_said_with_its_default_band(place):
    masks = [LossConfig(mask=mask) for mask in ("tv", "kl", "ratio", "band")]
    bands = [each.limit if each.mask in ("tv", "kl") else (each.lowest, each.highest) for each in masks]
    said = (ROOT / place).read_text().replace("`", "")
    for mask, band in zip(masks, bands, strict=True):
        text = f"{band:g}" if isinstance(band, float) else "[{:g}, {:g}".format(*band)
        assert text in said, mask.mask


def test_the_reward_says_its_whole_formula():
    assert "C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q))" in (reward.__doc__ or "")
    shown = re.findall(r"^    C\(x\) = (\S.*?),", effort.__doc__ or "", re.M)
    assert shown == ["((1 + k x)^(1 - q) - 1) / (k (1 - q))"]


WALK = {
    "etude/trainer/losses.py": "def policy_loss(",
    "etude/rollouts/loop.py": "def learn(",
    "etude/trainer/step.py": "def step(",
    "etude/harness/sampler.py": "class SampleRequest:",
    "docs/serving.md": "](../etude/engine/server/generate.py)",
    "etude/harness/protocol.py": "def parse_message(",
    "etude/rewards/reward.py": "reward = tests",
    "docs/weights.md": "## A manifest",
    "docs/extending.md": "## A sandbox backend",
}


@pytest.mark.parametrize("place", WALK)
def test_a_newcomer_finds_it_one_file_after_the_readme(place):
    assert f"]({place})" in (ROOT / "README.md").read_text()
    assert WALK[place] in (ROOT / place).read_text()


def test_the_readme_is_a_screen_and_a_half():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
