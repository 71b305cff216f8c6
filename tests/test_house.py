"""The size of the house: its table in docs/design.md, limits that hold, and imports without circles."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import house

DRIFT = 0.01
"""By how much lines may differ from the table before somebody has to look at it: `python tools/house.py --write`."""


@pytest.fixture(scope="module")
def found():
    return house.measured(house.ROOT)


@pytest.fixture(scope="module")
def told():
    page = (house.ROOT / "docs/design.md").read_text()
    cells = {name: row[1] for name, row in house.rows(house.TABLE.search(page)[2]).items()}
    return {name: int(cell.replace(",", "")) for name, cell in cells.items() if cell}


def test_the_table_says_how_large_the_house_is(found, told):
    assert told.keys() == found.keys()
    apart = {
        name: (told[name], found[name]) for name in found if abs(found[name] - told[name]) > DRIFT * told[name] + 5
    }
    assert not apart, "look at what grew, then: python tools/house.py --write"


def test_nothing_that_was_reached_is_lost(found):
    assert found["circles"] == 0
    assert found["median function"] <= 6 and found["longest function"] < 60
    assert found["comment and docstring lines in 100"] >= 13


def test_a_circle_is_found_however_it_is_closed(tmp_path):
    package = tmp_path / "etude"
    package.mkdir()
    texts = {
        "a": "from etude import b",
        "b": "def late():\n    from etude.c import x",
        "c": "import etude.a\nx = 1",
        "d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import etude.e",
        "e": "import etude.d",
    }
    trees = {package / f"{name}.py": ast.parse(text) for name, text in texts.items()}
    assert house.circles(trees, package) == [["etude.a", "etude.b", "etude.c"]]
