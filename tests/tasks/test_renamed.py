"""A task under another package's name: nothing of the old one is left, and what it asks is the same."""

import random
import re
import subprocess
import sys

from etude.tasks.check import CHECK
from etude.tasks.realcalls import call_records, task_of
from etude.tasks.renamed import FRAME, made_up, renamed

SOME = [each for each in call_records() if each.split == "eval" and "/" in each.path][:12]


def test_the_old_name_is_gone_from_paths_texts_and_calls():
    for record in SOME:
        old, task = record.path.split("/")[0], task_of(renamed(record))
        said = [task.instruction, *task.files, *(text.decode() for text in task.files.values())]
        assert not any(re.search(rf"\b{old}\b", each) for each in said), old
        assert task.provenance["package"] == record.package, "whose code it is stays known"
    assert len({renamed(each).path.split("/")[0] for each in SOME}) == len(SOME), "each has its own"
    assert [*map(renamed, SOME)] == [*map(renamed, SOME)]


def test_the_check_fails_as_before_and_passes_with_the_mend(tmp_path):
    for record in SOME:
        task = task_of(renamed(record))
        place = tmp_path / task.id
        for files, passes in ((task.files, False), ({**task.files, **task.solution}, True)):
            for path, data in files.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_bytes(data)
            ran = subprocess.run(
                [sys.executable, "-B", CHECK], cwd=place, capture_output=True, text=True, timeout=60, check=False
            )
            assert ran.stdout.endswith("passed\n" if passes else "failed\n"), (task.id, ran)


def test_a_name_is_one_that_python_can_import_and_does_not_know():
    rng = random.Random(0)
    names = [made_up(rng) for _ in range(2000)]
    assert all(name.isidentifier() and name not in sys.stdlib_module_names for name in names)
    assert len(set(names)) > 1500
    assert 0.15 < sum(name.startswith(FRAME) for name in names) / len(names) < 0.25
