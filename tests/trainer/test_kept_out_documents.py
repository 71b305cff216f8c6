"""What the base model reads holds nothing that real-code tasks are made of."""

import ast
import re
import sysconfig
from pathlib import Path, PurePath

import pytest

from etude.config import load_recipe
from etude.tasks.kept_out import Function, kept_out, print_of, prints_in
from etude.tasks.realcalls import call_records
from etude.tasks.realcode import real_records
from etude.trainer.base_model import BaseConfig
from etude.trainer.documents import _definitions, python_definitions, python_files


def test_no_document_is_of_a_package_or_module_that_real_tasks_are_made_of():
    tops = {f"/site-packages/{record.home}/" for record in call_records() if record.package != "stdlib"}
    tops |= {f"/site-packages/{record.package}/" for record in real_records()}
    stdlib = sysconfig.get_path("stdlib")
    modules = {f"{stdlib}/{record.home}{end}" for record in call_records() if record.package == "stdlib"
               for end in (".py", "/")}  # fmt: skip
    drawn = [path.as_posix() for path in python_files()]
    assert len(drawn) > 1000
    assert not [path for path in drawn if any(top in path for top in tops) or path.startswith(tuple(modules))]


@pytest.mark.proof(40)
def test_no_definition_of_the_base_model_is_a_copy_of_a_real_task():
    base = load_recipe(Path("recipes/base.toml"), BaseConfig)
    wanted = {found for records in (call_records(), real_records()) for _, found in prints_in(records)}
    drawn = python_definitions(base.seed, base.python_definitions)
    assert len(drawn) == base.python_definitions
    names = re.findall(r"def (\w+)", "\n".join(drawn))
    assert kept_out().names & set(names)  # of the same name, and another function
    assert not wanted & {print_of(node)[0] for text in drawn for node in ast.walk(ast.parse(text))
                         if isinstance(node, Function)}  # fmt: skip


def test_a_vendored_copy_is_left_out(tmp_path):
    record = next(record for record in call_records() if record.package == "stdlib")
    (tmp_path / "copy.py").write_text(record.files[record.path] + "\n\ndef of_its_own(a):\n    return a + 1\n")
    assert all(record.function not in text for text in _definitions(tmp_path / "copy.py", kept_out()))
    assert [*_definitions(tmp_path / "copy.py", kept_out())][-1] == "def of_its_own(a):\n    return a + 1\n"


def test_a_copy_that_a_package_carries_along_is_left_out():
    kept = kept_out()
    for path in ("setuptools/_distutils/util.py", "shop/_vendor/packaging/tags.py", "shop/_requests/api.py"):
        assert kept.place(PurePath(path), stdlib=False), path
    for path in ("shop/util.py", "shop/_private/util.py", "shop/email/util.py", "shop/_typing.py"):
        assert not kept.place(PurePath(path), stdlib=False), path
