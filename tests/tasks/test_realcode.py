"""The real-code records: whole, licensed, and what their provenance says."""

from collections import Counter
from importlib.resources import files

from etude.tasks.holdout import is_held_out
from etude.tasks.realcode import real_records, suite_tasks


def test_the_set_is_spread_over_packages_and_templates():
    records = real_records()
    assert len(records) == len({record.id for record in records}) == 40
    assert len({(record.package, record.function) for record in records}) == 40
    assert min(Counter(record.package for record in records).values()) >= 8
    assert len({record.bug for record in records}) >= 12
    assert all(record.fail_to_pass and set(record.fail_to_pass) <= set(record.tests) for record in records)


def test_licences_are_shipped():
    for package in {record.package for record in real_records()}:
        text = (files("etude.tasks") / "data" / "licenses" / f"{package}.txt").read_text()
        assert "Copyright" in text
        assert "AS IS" in text


def test_a_task_holds_the_bug_once_and_its_solution_removes_it():
    for task in suite_tasks():
        path, old, new = (task.provenance[key] for key in ("path", "old", "new"))
        broken, right = task.files[path].decode(), task.solution[path].decode()
        assert broken.count(old) == 1
        assert broken.replace(old, new) == right
        assert task.split == "real"
        assert task.provenance["bug_held_out"] == is_held_out("bug", task.provenance["bug"])
        assert set(task.provenance["protected"]) <= set(task.files)
        assert path in task.instruction
