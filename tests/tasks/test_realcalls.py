"""The sets that calls judge: whole, apart from each other, licensed, and in no training data."""

import ast
import inspect
import lzma
from collections import Counter
from importlib.resources import files
from pathlib import Path, PurePath

import pytest

from etude.errors import ConfigError
from etude.tasks import realcalls
from etude.tasks.grammar import BUGS
from etude.tasks.kept_out import Function, kept_out, print_of, prints_in
from etude.tasks.mutate import mutations_of
from etude.tasks.real import real_tasks
from etude.tasks.realcalls import call_records, called_tasks, packed, task_of
from etude.tasks.realcode import real_records, suite_tasks
from etude.tasks.verifiers import calls_of

SETS = {split: [record for record in call_records() if record.split == split] for split in ("eval", "exam")}


def test_the_sets_are_large_and_spread():
    assert len(SETS["exam"]) == 300
    assert len(SETS["eval"]) == 60
    kinds = {bug for record in call_records() for bug in [record.bug]}
    for records in SETS.values():
        assert len({record.module for record in records}) >= min(60, len(records) * 3 // 4)
        assert {record.bug for record in records} == kinds
    assert kinds == {bug for bug in BUGS if bug in kinds} and len(kinds) == 15
    assert max(Counter(record.home for record in SETS["exam"]).values()) <= 40
    assert len({task.id for split in ("eval", "exam") for task in real_tasks(split)}) == 400


def test_no_module_and_no_function_is_in_both_sets():
    one, other = SETS["eval"], SETS["exam"]
    assert not {record.module for record in one} & {record.module for record in other}
    names = {record.function for record in one} | {record.function for record in real_records()}
    assert not names & {record.function for record in other}
    assert len({(record.module, record.function) for record in other}) == len(other)
    targets = [{print_of(node)[0] for node in map(target, records)} for records in SETS.values()]
    assert [len(each) for each in targets] == [60, 300]
    assert not targets[0] & targets[1]


def target(record):
    body = ast.parse(record.files[record.path]).body
    return next(node for node in body if isinstance(node, Function) and node.name == record.function)


def test_a_task_holds_its_bug_once_and_hides_what_judges_it():
    for record in call_records():
        task = task_of(record)
        path, old, new = (task.provenance[key] for key in ("path", "old", "new"))
        broken, right = task.files[path].decode(), task.solution[path].decode()
        assert broken.count(old) == 1
        assert broken.replace(old, new) == right
        found = mutations_of(right, record.function)
        assert (record.bug, record.line, record.right, record.wrong) in {
            (m.bug, m.line, m.right, m.wrong) for m in found
        }
        hidden = {repr(list(arguments)) for *_, arguments, _ in calls_of(task.verifier)}
        assert len(hidden) >= 6
        assert not hidden & {arguments for arguments, _ in record.shown}
        assert 2 <= len(record.shown) <= 4
        assert (task.split, task.provenance["set"]) == ("real", record.split)
        assert target(record).end_lineno - target(record).lineno < 40
        assert sum(map(len, record.files.values())) <= 2500


def test_licences_are_shipped_and_the_card_names_all():
    data = files("etude.tasks") / "data"
    card = (data / "realcalls.md").read_text()
    for record in {record.package: record for record in call_records()}.values():
        assert f"| {record.package} | {record.version} | {record.licence} |" in card
        text = (data / "licenses" / f"{record.package}.txt").read_text().lower()
        assert "as is" in text or "apache license" in text
        assert not {"gpl", "mpl", "mozilla"} & set(record.licence.lower().split())


def test_packages_are_those_that_are_pinned():
    pins = dict(line.split("==") for line in Path("constraints.txt").read_text().split())
    assert {record.package for record in call_records()} <= {*pins, "stdlib"}


def test_a_file_that_was_changed_is_refused(tmp_path, monkeypatch):
    whole = packed(call_records())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / realcalls.DATA).write_bytes(lzma.compress(whole.replace(b"eval", b"exam", 1)))
    monkeypatch.setattr(realcalls, "files", lambda package: tmp_path)
    call_records.cache_clear()
    with pytest.raises(ConfigError, match="SHA256"):
        call_records()
    call_records.cache_clear()


def test_the_evaluation_has_the_development_set_and_never_the_exam():
    from etude.bench.config import TaskSetConfig
    from etude.bench.tasks import load_tasks

    assert real_tasks() == real_tasks("eval") == [*suite_tasks(), *called_tasks("eval")]
    exam = {task.id for task in real_tasks("exam")}
    assert not exam & {task.id for task in load_tasks(TaskSetConfig(real="eval"))}


def test_places_are_kept_out_wherever_they_are_copied_to():
    kept = kept_out()
    assert {"more_itertools", "toolz", "boltons"} < kept.packages
    for record in call_records():
        assert record.home in (kept.stdlib if record.package == "stdlib" else kept.packages)
    package, module = sorted(kept.packages)[0], sorted(kept.stdlib)[0]
    assert kept.place(PurePath(package, "a.py"), stdlib=False)
    assert kept.place(PurePath("pip/_vendor", package, "deep/a.py"), stdlib=False)
    assert kept.place(PurePath("site-packages", package, "a.py"), stdlib=True)
    assert kept.place(PurePath(f"{module}.py"), stdlib=True)
    assert not kept.place(PurePath("torch", f"{module}.py"), stdlib=False)


def test_a_copy_is_known_by_its_body_whatever_it_is_called():
    kept, record = kept_out(), SETS["exam"][0]
    node = target(record)
    assert kept.content(ast.unparse(node))
    node.body.insert(0, ast.parse('"""Other words."""').body[0])
    node.returns = ast.Name("Any")
    assert kept.content("# layout\n" + ast.unparse(node))
    holder = ast.parse("class Holder:\n    pass\n")
    holder.body[0].body.append(node)
    assert kept.content(ast.unparse(holder))
    node.name = f"{node.name}_"
    assert kept.content(ast.unparse(holder))
    node.body.append(ast.parse("return None").body[0])
    assert not kept.content(ast.unparse(holder))
    assert {found for _, found in prints_in(call_records())} <= kept.prints


ONE = """
def one(a, *, b=1):
    c = a.c(b)
    for d in c:
        yield d, one(b), sorted(c, key=len)
"""
COPY = """
def copy(x: int, *, y=2):
    'Words.'
    z = x.c(y)
    for each in z:
        yield each, copy(y), sorted(z, key=len)
"""


def test_a_copy_is_known_whatever_its_variables_are_called():
    one, copy, other = (print_of(ast.parse(text).body[0]) for text in (ONE, COPY, ONE.replace("a.c(b)", "b.c(a)")))
    assert one[0] == copy[0] != other[0]


def test_a_package_that_practice_is_made_of_holds_no_twin_of_an_exam_task():
    """torch has this function of pytest's under another name."""
    import torch._dynamo.utils

    [record] = [each for each in SETS["exam"] if each.function == "_byte_offset_to_character_offset"]
    copy = inspect.getsource(torch._dynamo.utils._fix_offset)
    assert print_of(ast.parse(copy).body[0])[0] == print_of(target(record))[0]
    assert kept_out().content(copy)
