"""Files of a repository or a task with brackets in brackets: refused like any other that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.config import read_toml
from etude.environments.images.dockerfile import parse_dockerfile
from etude.errors import ConfigError
from etude.harness.mcp import load_servers
from etude.tasks import harbor
from etude.tasks.json_lines import read_objects
from etude.tasks.mined.environment import requirements_of

BRACKETS = "[" * 100_000
DOTS = "a." * 20_000 + "a = 1"


@pytest.mark.parametrize("text", [f"a = {BRACKETS}", DOTS])
@pytest.mark.parametrize("read", [read_toml, harbor.read_toml])
def test_toml(tmp_path: Path, read, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.toml: not valid TOML: more than"):
        read(tmp_path / "a.toml")
    assert requirements_of({"pyproject.toml": text.encode()}).needed == ()


def test_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(BRACKETS)
    with pytest.raises(ConfigError, match=r"a\.json"):
        load_servers(tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"a\.json:1"):
        list(read_objects(tmp_path / "a.json", "an object"))
    assert parse_dockerfile(f"FROM a\nRUN {BRACKETS}\n").stages
