"""docs/tutorial.md is played: its commands, in order, in one directory; what they print is what the page shows.

`…` on the page stands for anything, and a number for any number: times and what a sampled model does differ from run to
run. Packages come from those of this environment, packed as wheels, so that no network is needed.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_commands import ROOT, blocks, sessions

sys.path.insert(0, str(ROOT / "tests/rewards"))
from offline_wheels import PYTEST, pack
from test_mining import CART, MENDED, TESTS

TUTORIAL = ROOT / "docs/tutorial.md"
BELOW_ZERO = "\n\ndef test_the_total_is_never_negative():\n    assert total([1], discount=5) == 0\n"
PARCEL = "def weight_of(items):\n    grams_each = 250\n    return len(items) * grams_each\n"
WEIGHT_TEST = "from shop.parcel import weight_of\n\n\ndef test_weight():\n    assert weight_of([1, 2]) == 500\n"
COMMITS = [
    ("A shop", {"shop/__init__.py": "", "shop/cart.py": CART, "tests/test_cart.py": TESTS}),
    ("Totals must not fall below zero, even where a discount is larger than the price.",
     {"shop/cart.py": MENDED, "tests/test_cart.py": TESTS + BELOW_ZERO}),
    ("Parcels have a weight: 250 grams for each of their items.",
     {"shop/parcel.py": PARCEL, "tests/test_parcel.py": WEIGHT_TEST}),
]  # fmt: skip
_SAME = doctest.OutputChecker()


@pytest.fixture
def shop(tmp_path):
    """A directory with the repository, the model, and the files that the page says to write."""
    repository = tmp_path / "shop"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    when = {f"GIT_{whose}_DATE": "2026-01-01T00:00:00Z" for whose in ("AUTHOR", "COMMITTER")}  # the ids stay the same
    for message, files in COMMITS:
        for path, text in files.items():
            (repository / path).parent.mkdir(exist_ok=True)
            (repository / path).write_text(text)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", message], check=True, env={**os.environ, **when})
    (tmp_path / "models").symlink_to(ROOT / "models")
    for language, text in blocks(TUTORIAL):
        if language == "toml":
            name, _, _ = text.removeprefix("# ").partition("\n")
            (tmp_path / name).write_text(text)
    return tmp_path


def plain(text: str) -> str:
    """With every number the same, and spaces as one."""
    return re.sub(r"[-+]?\d+(\.\d+)?", "0", re.sub(r"[ \t]+", " ", text)).strip() + "\n"


def same(shown: str, printed: str) -> bool:
    return _SAME.check_output(plain(shown.replace("…", "...")), plain(printed.replace("…", "...")), doctest.ELLIPSIS)


@pytest.mark.proof(75)
@pytest.mark.timeout(900)
def test_the_page_is_played(shop, tmp_path_factory):
    (wheels := tmp_path_factory.mktemp("wheels")).mkdir(exist_ok=True)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(pack(wheels, (*PYTEST, "ruff", "ty")))}
    env = {**os.environ, **offline, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    env["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    played = sessions(TUTORIAL)
    assert len(played) >= 7
    for line, shown in played:
        done = subprocess.run(["bash", "-c", line], cwd=shop, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert same(shown, done.stdout), f"{line}\n{done.stdout}"


def test_numbers_may_differ_and_words_may_not():
    assert same("kept 2 of 9 …\nin 1.5 s\n", "kept 3 of 10 commits\nand more\nin 2 s\n")
    assert not same("kept 2 of 9\n", "dropped 2 of 9\n")
