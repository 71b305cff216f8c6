"""Every command of every page is played in a world that looks as the page presumes, or is listed with a reason."""

import ast
import re
import sys

import pytest
from page_commands import PAGES, ROOT, blocks, commands_of

sys.path += [
    str(ROOT / "tests" / each)
    for each in ("archive", "harness", "models", "product", "rewards", "weights", "environments/server")
]
from page_scenes import FIRST_HOUR, NOT_PLAYED, SCENES
from page_world import same, world

LINES = [(str(page.relative_to(ROOT)), line, shown) for page in PAGES for line, shown in commands_of(page)]


def lines_of(scene):
    """Its commands with what the page shows of them, in the order of the page."""
    return [
        (line, shown)
        for page, line, shown in LINES
        if page == scene.page and re.search(scene.lines, line) and line not in NOT_PLAYED.get(page, ())
    ]


def marks_of(scene):
    return [pytest.mark.timeout(900), *([] if scene.seconds is None else [pytest.mark.proof(scene.seconds)])]


@pytest.mark.parametrize("scene", [pytest.param(each, id=id, marks=marks_of(each)) for id, each in SCENES.items()])
def test_a_page_is_played(scene):
    if lacking := scene.needs():
        pytest.skip(lacking)
    with world(scene.smaller, *scene.prepare) as made:
        for line, shown in lines_of(scene):
            made.play(line, shown)


def test_every_command_is_played_in_one_world_or_listed():
    for page, line, _ in LINES:
        scenes = [name for name, scene in SCENES.items() if scene.page == page and re.search(scene.lines, line)]
        listed = line in NOT_PLAYED.get(page, ())
        assert page == FIRST_HOUR or listed or len(scenes) == 1, f"{page}: {line}: played in {scenes}"


def test_what_is_listed_is_there_and_so_is_the_test_that_runs_it():
    shown = {(page, line) for page, line, _ in LINES}
    for page, lines in NOT_PLAYED.items():
        for line, (why, test) in lines.items():
            assert (page, line) in shown and why, f"{page} has no {line}"
            file, _, function = test.partition("::")
            tree = ast.parse((ROOT / file).read_text() if test else "")
            assert not test or function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
    assert '"tools/first_hour.sh"' in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_stands_in_a_block_of_shell(page):
    """Else nobody would play it."""
    typed = re.compile(r"^(\$ |(\w+=\S+ )*(etude|pip|make|python3?|npm|cd|export|uv) )[\w.~-]")
    others = [text for language, text in blocks(page) if not language and page != ROOT / FIRST_HOUR]
    assert [line for text in others for line in text.splitlines() if typed.match(line)] == []


def test_numbers_may_differ_and_words_may_not():
    assert same("kept 2 of 9 …\nin 1.5 s\n", "kept 3 of 10 commits\nand more\nin 2 s\n")
    assert not same("kept 2 of 9\n", "dropped 2 of 9\n")
