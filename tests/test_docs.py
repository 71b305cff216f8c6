"""The pages: links lead somewhere, `etude` command lines parse, config keys exist, and the index names every page.

And lists are whole: rooms, seams, switches."""

import argparse
import ast
import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from etude.bench.config import BenchConfig
from etude.cli.main import COMMANDS
from etude.engine.server.app import ServeConfig
from etude.explain import toml_of
from etude.product.config import AgentConfig
from etude.rewards import effort, reward
from etude.rewards.mining.mine import MineConfig
from etude.rollouts.config import RunConfig
from etude.trainer.config import AdvantageConfig, CreditConfig, LossConfig, TrainerConfig

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCED = re.compile(r"^```[^\n]*\n.*?^```$", re.M | re.S)
COMMAND = re.compile(r"^ *(?:\$ )?((?:\w+=\S+ )*etude (?!\w+: ).*)$", re.M)  # `etude serve: …` is what one said

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


def typed(page: Path) -> list[str]:
    """The command lines that a page shows in its code blocks, to be typed as they stand."""
    blocks = "\n".join(FENCED.findall(page.read_text())).replace("\\\n", " ")
    return [re.split(r"\s(?:# |\|)", line)[0].strip() for line in COMMAND.findall(blocks)]


def mentioned(page: Path) -> list[str]:
    """The commands that a page's text speaks of, whole or in part."""
    return re.findall(r"`((?:\w+=\S+ )*etude [^`]+)`", FENCED.sub("", page.read_text()))


def parser_of(words: list[str]) -> argparse.ArgumentParser:
    """The parser of the command that begins with these words; raises ValueError where there is none."""
    if words[0] not in COMMANDS:
        raise ValueError(f"there is no command {words[0]}")
    parser = argparse.ArgumentParser(prog=f"etude {words[0]}", exit_on_error=False)
    importlib.import_module(f"etude.cli.{words[0]}").add_arguments(parser)
    return parser


def check_typed(line: str) -> None:
    """Give a command line to its command's parser; raises ValueError where that refuses it."""
    words = shlex.split(line)
    words = words[words.index("etude") + 1 :]
    try:
        parser_of(words).parse_args(words[1:])
    except (SystemExit, argparse.ArgumentError) as error:
        raise ValueError(f"{line}: refused ({error})") from error


def check_mentioned(line: str) -> None:
    """Look up a command, its action and its options; raises ValueError for one that is not there."""
    words = shlex.split(line)
    words = words[words.index("etude") + 1 :]
    if words[0].startswith("-") or words[0] == "COMMAND":
        return
    parser = parser_of(words)
    [*actions] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if actions and len(words) > 1:
        if not set(words[1].split("|")) <= set(actions[0].choices):
            raise ValueError(f"{line}: there is no {words[1]}")
        parser = actions[0].choices[words[1].split("|")[0]]
    unknown = [
        word
        for word in words
        if re.match(r"--?[a-z]", word) and word.split("=")[0] not in parser._option_string_actions
    ]
    if unknown:
        raise ValueError(f"{line}: no option {unknown}")


@each_page
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


@each_page
def test_every_command_line_parses(page):
    for line in typed(page):
        check_typed(line)
    for line in mentioned(page):
        check_mentioned(line)


def test_the_checks_find_what_is_wrong(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b\n[x](gone.md) [y](#no) [z](#a-b) [w](page.md#c)\n```\netude trian recipes/x.toml\n```\n"
        "`etude agent --lsit`, `etude bench plot`, `etude studio`\n"
    )
    assert broken(page) == ["gone.md", "#no", "page.md#c"]
    checks = [(check_typed, line) for line in typed(page)] + [(check_mentioned, line) for line in mentioned(page)]
    assert len(checks) == 4
    for check, line in checks:
        with pytest.raises(ValueError):
            check(line)


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
