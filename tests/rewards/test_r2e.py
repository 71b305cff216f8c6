"""Rows as R2E-Gym publishes them, of a repository made here; what of an instance is not taken; what is no instance."""

import json
import re

import pytest
from offline_wheels import PYTEST, pack
from test_swe import CART, MENDED, shop, write  # noqa: F401  the fixture

from etude.cli.main import main
from etude.errors import ConfigError, Exit
from etude.tasks.harbor import read_task
from etude.tasks.mined.history import History
from etude.tasks.swe import files_of, read_instances

HIDDEN = (
    "import unittest\n\nfrom cart import total\n\n\ndef test_sums():\n    assert total([1, 2]) == 3\n\n\n"
    "class NeverNegative(unittest.TestCase):\n    def test_below(self):\n        self.assertEqual(total([1], 5), 0)\n\n"
    "    @unittest.skip('later')\n    def test_later(self):\n        self.assertEqual(total([], 1), 7)\n"
)
BEFORE = """
=========================== short test summary info ============================
\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mtest_sums\x1b[0m
FAILED r2e_tests/test_1.py::NeverNegative::test_below - AssertionError: -4 != 0
SKIPPED [1] r2e_tests/test_1.py:12: later
"""
AFTER = """
=========================== short test summary info ============================
PASSED r2e_tests/test_1.py::test_sums
PASSED r2e_tests/test_1.py::NeverNegative::test_below
SKIPPED [1] r2e_tests/test_1.py:12: later
"""


@pytest.fixture
def row(shop):  # noqa: F811
    """All fields that a published row has."""
    head = History(shop[0]).head("HEAD")
    execution = {
        "repo_name": "shop", "new_commit_hash": head, "test_file_codes": [HIDDEN], "test_file_names": ["test_1.py"],
        "setup_res_code": 0, "setup_res_stdout": "", "setup_res_stderr": "",
        "old_commit_res_code": 1, "old_commit_res_stdout": BEFORE, "old_commit_res_stderr": "",
        "new_commit_res_code": 0, "new_commit_res_stdout": AFTER, "new_commit_res_stderr": "",
    }  # fmt: skip
    expected = {"test_sums": "PASSED", "NeverNegative.test_below": "PASSED", "NeverNegative.test_later": "SKIPPED"}
    commit = {"file_diffs": [], "old_commit_hash": f"{head}^", "new_commit_hash": head, "commit_message": "The cart"}
    return {
        "repo_name": "shop", "docker_image": f"namanjain12/shop_final:{head}", "commit_hash": head,
        "parsed_commit_content": json.dumps(commit), "execution_result_content": json.dumps(execution),
        "modified_files": ["cart.py"], "modified_entity_summaries": [], "relevant_files": ["cart.py"],
        "num_non_test_files": 1, "num_non_test_func_methods": 1, "num_non_test_lines": 2, "prompt": "Write an issue.",
        "problem_statement": "Totals fall below zero.", "expected_output_json": json.dumps(expected),
    }  # fmt: skip


def test_a_row_names_its_tests_its_files_and_what_is_not_taken(shop, row, tmp_path):  # noqa: F811
    [found] = read_instances(write(tmp_path / "r2e.jsonl", row))
    assert found.id == f"shop-{row['commit_hash'][:12]}" and found.repository == "shop"
    assert found.fail_to_pass == ("r2e_tests/test_1.py::NeverNegative::test_below",)
    assert found.pass_to_pass == ("r2e_tests/test_1.py::test_sums",)
    said = "\n".join(found.not_taken)
    assert "docker_image: not used" in said and "prompt: not used" in said
    assert "1 tests are not asked, as they do not pass even when solved: NeverNegative.test_later" in said
    files = files_of(found, History(shop[0]), 1 << 20)
    assert files.given.files["cart.py"].decode() == CART and "r2e_tests/test_1.py" not in files.given.files
    assert files.answer["cart.py"].decode() == MENDED and files.after["r2e_tests/test_1.py"].decode() == HIDDEN


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"new_commit_res_stdout": "test_sums (test_1.T) ... ok"}, "no other runner is supported"),
        ({"old_commit_res_stdout": AFTER}, "every test passed before its solution too"),
    ],
)
def test_a_row_that_can_be_no_task_is_refused_alone(shop, row, tmp_path, change, says):  # noqa: F811
    other = {**row, "execution_result_content": json.dumps({**json.loads(row["execution_result_content"]), **change})}
    first, second = read_instances(write(tmp_path / "r2e.jsonl", other, row))
    with pytest.raises(ConfigError, match=says):
        files_of(first, History(shop[0]), 1 << 20)
    assert files_of(second, History(shop[0]), 1 << 20).answer


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"expected_output_json": "[]"}, r"r2e\.jsonl:1: expected_output_json: must be an object"),
        ({"execution_result_content": "{}"}, "test_file_names and as many test_file_codes"),
        ({"commit_hash": "main"}, "commit_hash: 'main' is no commit's id"),
        ({"problem_statement": None}, "problem_statement: must be text, and is missing"),
    ],
)
def test_a_wrong_field_of_a_row_is_named(row, tmp_path, change, says):
    [instance] = read_instances(write(tmp_path / "r2e.jsonl", {**row, **change}))
    assert re.search(says, instance.refused)


def test_what_swe_bench_and_swe_gym_say_and_a_task_has_nothing_of(shop, tmp_path):  # noqa: F811
    _, bench, smith = shop
    gym = {**bench, "FAIL_TO_PASS": ["tests/test_cart.py::test_never_negative"], "PASS_TO_PASS": [], "version": "1.9"}
    gym |= {"hints_text": "It must not be below zero.", "created_at": "2019-05-13T17:08:33Z"}
    first, second = read_instances(write(tmp_path / "x.jsonl", gym, smith))
    assert first.fail_to_pass == ("tests/test_cart.py::test_never_negative",) and first.pass_to_pass == ()
    assert [each.partition(":")[0] for each in (*first.not_taken, *second.not_taken)] == ["hints_text", "image_name"]


def test_directories_are_told_what_to_do_with(tmp_path, capsys):
    (tmp_path / "harbor" / "one").mkdir(parents=True)
    (tmp_path / "harbor" / "one" / "task.toml").write_text("")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "wordle.py").write_text("def load_environment():\n    return None\n")
    (tmp_path / "other").mkdir()
    for name, says in (("harbor", "etude tasks adopt"), ("env", "its rubric is functions"), ("other", "name a JSONL")):
        with pytest.raises(ConfigError, match=says):
            read_instances(tmp_path / name)
        assert main(["tasks", "import", str(tmp_path / name), "--out", str(tmp_path / "out")]) == Exit.BAD_INPUT
        assert says in capsys.readouterr().err, "whoever has a directory has no --clone to give"


@pytest.mark.proof(13)
def test_a_row_becomes_a_sound_task(shop, row, tmp_path, monkeypatch, capsys):  # noqa: F811
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(pack(tmp_path / "wheels", PYTEST)))
    path = write(tmp_path / "r2e.jsonl", row)
    words = ["tasks", "import", str(path), "--clone", f"shop={shop[0]}", "--out", str(tmp_path / "out"), "--json"]
    code = main([*words, "--environments", str(tmp_path / "env"), "--set", "runs=1"])
    [(name, said)] = json.loads(capsys.readouterr().out).items()
    assert code == 0 and said["sound"] and len(said["not_taken"]) == 3, said
    task = read_task(tmp_path / "out" / name)
    assert task.files["cart.py"].decode() == CART and task.solution == {"cart.py": MENDED.encode()}


def with_execution(row, **changes):
    return {**row, "execution_result_content": json.dumps({**json.loads(row["execution_result_content"]), **changes})}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda row: with_execution(row, test_file_names=["../../outside.py"]),
            r"'\.\./\.\./outside\.py' in test_file",
        ),
        (lambda row: with_execution(row, test_file_codes=["\ud800"]), "execution_result_content: must be an object"),
        (lambda row: {**row, "execution_result_content": "[" * 100_000}, "execution_result_content: must be an object"),
    ],
    ids=["leads out", "half a character", "deep"],
)
def test_a_row_that_no_files_can_be_made_of_is_named(row, tmp_path, change, says):
    [instance] = read_instances(write(tmp_path / "r2e.jsonl", change(row)))
    assert re.search(says, instance.refused)
