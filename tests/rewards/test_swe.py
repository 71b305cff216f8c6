"""Instances as SWE-bench and SWE-smith publish them, of a repository made here, become tasks that are sound."""

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from offline_wheels import PYTEST, pack
from users_git import commit_leading_out, git

from etude.cli.main import main
from etude.errors import ConfigError, Exit
from etude.tasks.harbor import read_task, write_task
from etude.tasks.ladder import ladder_task
from etude.tasks.mined.history import History
from etude.tasks.swe import files_of, modules_of, read_instances
from etude.trainer.corpus.config import CorpusConfig
from etude.trainer.corpus.finding import find_repositories

CART = "def total(prices, discount=0):\n    return sum(prices) - discount\n"
MENDED = CART.replace("sum(prices) - discount", "max(0, sum(prices) - discount)")
TESTS = "from cart import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
MORE = TESTS + "\n\ndef test_never_negative():\n    assert total([1], 5) == 0\n"


EDIT = "@@ -1,2 +1,2 @@\n def total(prices, discount=0):\n-    return sum(prices) - discount\n+    return 0\n"
FIRST = "--- a/cart.py\n+++ b/cart.py\n" + EDIT


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """(a clone, an instance of SWE-bench's form, one of SWE-smith's)."""
    root = tmp_path_factory.mktemp("swe") / "shop"
    root.mkdir()
    git(root, "init", "-q")
    (root / "tests").mkdir()
    for cart, tests in ((CART, TESTS), (MENDED, MORE)):
        (root / "cart.py").write_text(cart)
        (root / "tests" / "test_cart.py").write_text(tests)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", "The cart")
    bench = {
        "instance_id": "acme__shop-12", "repo": "acme/shop", "base_commit": git(root, "rev-parse", "HEAD~").strip(),
        "patch": git(root, "diff", "HEAD~", "HEAD", "--", "cart.py"),
        "test_patch": git(root, "diff", "HEAD~", "HEAD", "--", "tests"),
        "problem_statement": "Totals fall below zero.", "hints_text": "", "version": "1.0",
        "created_at": "2026-05-01T00:00:00Z", "FAIL_TO_PASS": json.dumps(["tests/test_cart.py::test_never_negative"]),
        "PASS_TO_PASS": json.dumps(["tests/test_cart.py::test_total"]),
    }  # fmt: skip
    head = git(root, "rev-parse", "HEAD").strip()
    bug = git(root, "diff", "HEAD", "HEAD~", "--", "cart.py")
    smith = {
        "instance_id": "acme__shop.bug__1", "repo": f"swesmith/acme__shop.{head[:8]}", "patch": bug,
        "image_name": "x/y", "FAIL_TO_PASS": ["tests/test_cart.py::test_never_negative"],
        "PASS_TO_PASS": ["tests/test_cart.py::test_total"], "problem_statement": "A discount makes totals negative.",
    }  # fmt: skip
    return root, bench, smith


def write(path, *instances):
    path.write_text("".join(f"{json.dumps(instance)}\n" for instance in instances))
    return path


@pytest.mark.proof(13)
def test_both_forms_become_sound_tasks(shop, tmp_path, monkeypatch, capsys):
    root, bench, smith = shop
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(pack(tmp_path / "wheels", PYTEST)))
    nothing = {**bench, "instance_id": "no-difference", "FAIL_TO_PASS": ["tests/test_cart.py::test_total"]}
    elsewhere = {**bench, "instance_id": "elsewhere", "repo": "acme/other"}
    unlike = {**bench, "instance_id": "unlike", "FAIL_TO_PASS": []}
    path = write(tmp_path / "swe.jsonl", bench, smith, nothing, elsewhere, unlike)
    words = ["tasks", "import", str(path), "--clone", f"acme/shop={root}", "--out", str(tmp_path / "out"), "--json"]
    code = main([*words, "--environments", str(tmp_path / "env"), "--set", "eval_since=2026-04-01", "--set", "runs=1"])
    printed = capsys.readouterr()
    assert printed.err.count("installing what the tests need: ") == 1, "it takes minutes, and is said"
    said = json.loads(printed.out)
    assert code == 1 and [said[name]["sound"] for name in said] == [True, True, False, False, False], said
    assert "swe.jsonl:5: FAIL_TO_PASS: names no test" in said["unlike"]["problems"][0], "refused by itself"
    assert "doing nothing is passed" in said["no-difference"]["problems"][0]
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    only = ["--only", bench["instance_id"], "--environments", str(tmp_path / "env")]
    assert main([*words, *only]) == 0, "what is there is not made again"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == made
    capsys.readouterr()
    (tmp_path / "other" / bench["instance_id"]).mkdir(parents=True)
    assert main([*words[:-2], str(tmp_path / "other"), "--json", *only]) == 1, "a directory is no task"
    assert "is no task; remove it" in capsys.readouterr().out
    found = str(tmp_path / "out" / "acme__shop-12")
    assert main(["tasks", "validate", found, "--json", "--environments", str(tmp_path / "env")]) == 0
    counted = json.loads(capsys.readouterr().out)[found]
    assert counted["unseen"] > 3 and counted["unasked"] == 0
    assert main(["tasks", "validate", found, "--environments", str(tmp_path / "env")]) == 0
    assert capsys.readouterr().out.startswith("0 of 1 tasks with tests are judged by")
    assert "give --clone acme/other=DIR" in said["elsewhere"]["problems"][0]
    first, second = (read_task(tmp_path / "out" / name) for name in ("acme__shop-12", "acme__shop.bug__1"))
    for task in (first, second):
        assert task.files["cart.py"].decode() == CART and task.solution == {"cart.py": MENDED.encode()}
        assert task.provenance["unseen"] > 3
    assert (first.split, second.split) == ("eval", "train")
    assert b"negative" not in first.files["tests/test_cart.py"] and b"negative" in second.files["tests/test_cart.py"]
    assert first.instruction.startswith("Totals fall below zero.\n") and first.provenance["instance"] == {
        "version": "1.0"
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"patch": None}, r"x\.jsonl:1: patch: must be text, and is missing"),
        ({"FAIL_TO_PASS": "test_a"}, r"x\.jsonl:1: FAIL_TO_PASS: must be a list"),
        ({"FAIL_TO_PASS": []}, "names no test"),
        ({"base_commit": "main"}, "is no commit's id"),
        ({"problem_statement": " "}, "problem_statement"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(shop, tmp_path, change, says):
    wrong, right = read_instances(write(tmp_path / "x.jsonl", {**shop[1], **change}, shop[1]))
    assert re.search(says, wrong.refused) and not right.refused


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"base_commit": "0" * 40}, "give a clone of acme/shop"),
        ({"patch": "--- a/cart.py\n+++ b/cart.py\n@@ -1 +1 @@\n-no\n+yes\n"}, "patch does not apply"),
        ({"test_patch": "nonsense"}, "test_patch does not apply"),
        ({"patch": "diff --git a/cart.py b/cart.py\ndeleted file mode 100644\n--- a/cart.py\n+++ /dev/null\n"
          "@@ -1,2 +0,0 @@\n-def total(prices, discount=0):\n-    return sum(prices) - discount\n"}, "removes cart.py"),
    ],
)  # fmt: skip
def test_what_a_clone_cannot_give_is_said(shop, tmp_path, change, says):
    [instance] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], **change}))
    with pytest.raises(ConfigError, match=says):
        files_of(instance, History(shop[0]), 1 << 20)


def test_other_runners_and_other_files_are_refused(shop, tmp_path):
    [instance] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], "PASS_TO_PASS": ["test_a (tests.T)"]}))
    with pytest.raises(ConfigError, match="no other runner"):
        modules_of(instance)
    (tmp_path / "y.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match="an instance is an object"):
        read_instances(tmp_path / "y.jsonl")
    (tmp_path / "some.jsonl").write_text(f'[1]\nnull\n{{"a":\n"\\ud800"\n{json.dumps(shop[1])}\n')
    *wrong, right = read_instances(tmp_path / "some.jsonl")
    assert [bool(each.refused) for each in (*wrong, right)] == [True] * 4 + [False]
    assert all(f"some.jsonl:{at}: " in each.refused for at, each in enumerate(wrong, 1))
    (tmp_path / "z.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no instances"):
        read_instances(tmp_path / "z.jsonl")


def test_a_repository_writes_nothing_outside_the_task_it_is_read_into(shop, tmp_path, monkeypatch):
    """git takes a tree with `..` in it from anybody, and prints its paths as they are."""
    root = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--bare", str(shop[0]), str(root))
    commit = commit_leading_out(root, "../../outside.py", b"x = 1\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a" / "b"))
    patch = "--- a/../../outside.py\n+++ b/../../outside.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    [instance] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], "base_commit": commit, "patch": patch}))
    tree = History(root).tree(commit, 1 << 20)
    assert sorted(tree.files) == ["cart.py", "tests/test_cart.py"] and tree.left_out == ("../../outside.py",)
    with pytest.raises(ConfigError, match="patch does not apply"):
        files_of(instance, History(root), 1 << 20)
    assert not [*tmp_path.rglob("outside.py")]


@pytest.mark.parametrize("path", ["cart.py/inner.py", "x" * 300], ids=["below a file", "long"])
def test_what_no_directory_can_hold_is_left_out(shop, tmp_path, path):
    git(tmp_path, "clone", "-q", "--bare", str(shop[0]), "clone")
    tree = History(tmp_path / "clone").tree(commit_leading_out(tmp_path / "clone", path, b"x"), 1 << 20)
    assert sorted(tree.files) == ["cart.py", "tests/test_cart.py"] and tree.left_out == (path,)


def test_a_commit_of_a_year_that_there_is_not_has_a_date_all_the_same(shop, tmp_path, monkeypatch):
    git(tmp_path, "clone", "-q", str(shop[0]), "clone")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "@999999999999 +0000")
    git(tmp_path / "clone", "commit", "-q", "--allow-empty", "-m", "Later")
    [latest, *_] = History(tmp_path / "clone").commits("HEAD", 5)
    assert datetime.fromtimestamp(latest.when, UTC).year == 9999


def test_a_clone_without_contents_is_named(shop, tmp_path):
    git(tmp_path, "clone", "-q", "--bare", str(shop[0]), "whole")
    git(tmp_path / "whole", "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{tmp_path}/whole", "clone")
    history = History(tmp_path / "clone")
    with pytest.raises(
        ConfigError, match="clone: files have no contents there, as in a clone that was made with --filter"
    ):
        history.tree(history.head("HEAD"), 1 << 20)
    with pytest.raises(ConfigError, match="clone it whole"):
        find_repositories(CorpusConfig(directories=(tmp_path / "clone",)))


def test_a_patch_takes_no_file_of_the_users_into_a_task(shop, tmp_path):
    (tmp_path / "private").write_text("the user's own\n")
    link = (
        "diff --git a/notes b/notes\nnew file mode 120000\n--- /dev/null\n+++ b/notes\n@@ -0,0 +1 @@\n"
        f"+{tmp_path}/private\n\\ No newline at end of file\n"
    )
    for name in ("patch", "test_patch"):
        [instance] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], name: shop[1][name] + link}))
        with pytest.raises(ConfigError, match=f"{name} makes notes a link; a task holds plain files"):
            files_of(instance, History(shop[0]), 1 << 20)


def test_a_line_that_would_be_another_lines_task_is_refused_by_itself(shop, tmp_path, capsys):
    """The second was lost, with a ✓; and one of the same id hid why the first was refused."""
    gone = {**shop[1], "base_commit": "f" * 40, "PASS_TO_PASS": []}
    lines = [{**gone, "instance_id": each} for each in ("a b", "a/b", "same", "same")]
    path = write(tmp_path / "x.jsonl", *lines, {**shop[1], "instance_id": "same", "patch": None})
    words = ["tasks", "import", str(path), "--clone", f"acme/shop={shop[0]}", "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 1
    said = {name: one["problems"][0] for name, one in json.loads(capsys.readouterr().out).items()}
    where = [f"{path}:{number}" for number in range(6)]
    assert list(said) == ["a b", "a/b", "same", f"same ({where[4]})", f"same ({where[5]})"]
    assert "has no commit ffff" in said["a b"] and "has no commit ffff" in said["same"]
    assert said["a/b"].startswith(f"{where[2]}: instance_id: its task would be a-b, as that of 'a b' ({where[1]})")
    assert f"its task would be same, as that of 'same' ({where[3]})" in said[f"same ({where[4]})"]
    assert f"{where[5]}: patch: must be text" in said[f"same ({where[5]})"]
    assert main([*words, "--only", "a c"]) == Exit.BAD_INPUT and "has no such instance" in capsys.readouterr().err


def test_a_task_that_is_there_is_an_instances_own(shop, tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", {**shop[1], "instance_id": "a/b"})
    words = ["tasks", "import", str(path), "--out", str(tmp_path / "out"), "--json"]
    for task_id, of, said in (("a-b", "a/b", ""), ("a-b", "a b", "a task of 'a b'"), ("other", "a/b", "of 'other'")):
        task = ladder_task(1, "train", 0)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        write_task(
            replace(task, id=task_id, provenance={**task.provenance, "instance_id": of}), tmp_path / "out" / "a-b"
        )
        assert main(words) == bool(said)
        [found] = json.loads(capsys.readouterr().out).values()
        assert said in "".join(found["problems"]) and found["sound"] is not bool(said)


@pytest.mark.parametrize("name", ["..", ".", ".git", "a" * 300, "ü/../" * 99])
def test_an_id_that_can_name_no_task_is_refused_and_the_next_line_is_read(shop, tmp_path, capsys, name):
    """It ended the whole import."""
    good = {**shop[1], "base_commit": "f" * 40}
    path = write(tmp_path / "x.jsonl", {**good, "instance_id": name}, good)
    words = ["tasks", "import", str(path), "--clone", f"acme/shop={shop[0]}", "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 1
    odd, next_one = json.loads(capsys.readouterr().out).values()
    assert "can name no task: an id is visible text" in odd["problems"][0]
    assert "has no commit ffff" in next_one["problems"][0]


def packed(size):
    """A binary file of zeros, as git writes it in a patch."""
    data = zlib.compress(bytes(size), 9)
    rows = (data[at : at + 52] for at in range(0, len(data), 52))
    told = ((chr(len(row) + (64 if len(row) <= 26 else 70)), base64.b85encode(row, pad=True).decode()) for row in rows)
    body = "".join(f"{length}{letters}\n" for length, letters in told)
    name = hashlib.sha1(b"blob %d\0" % size + bytes(size)).hexdigest()
    head = f"diff --git a/zeros b/zeros\nnew file mode 100644\nindex {'0' * 40}..{name}\nGIT binary patch\n"
    return f"{head}literal {size}\n{body}\nliteral 0\nHcmV?d00001\n\n"


COPIES = "".join(f"diff --git a/cart.py b/c{n}\ncopy from cart.py\ncopy to c{n}\n" for n in range(20))


def test_what_a_patch_makes_is_counted_against_the_workspace(shop, tmp_path):
    """A packed file and copies of one were made, in memory, however large."""

    def answer(patch, most):
        [instance] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], "patch": patch, "test_patch": ""}))
        return files_of(instance, History(shop[0]), most).answer

    assert answer(packed(5000) + FIRST, 6000)["zeros"] == bytes(5000)
    assert len(answer(COPIES, 6000)) == 20
    grown = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+" + "x" * 900 + "\n"
    for patch, most in ((packed(4 << 20), 1 << 20), (COPIES, 1000), (grown, 1000)):
        with pytest.raises(ConfigError, match="patch makes a workspace that is larger than"):
            answer(patch, most)
    delta = "diff --git a/cart.py b/cart.py\nGIT binary patch\ndelta 9\nQcmZo\n\n"
    with pytest.raises(ConfigError, match="by a delta, whose size only git can tell"):
        answer(delta, 1 << 20)


def test_a_patch_names_files_as_git_does(shop, tmp_path):
    """In quotes where a name is not plain; and for a new mode, or a file that is moved as it is, in no other line."""
    git(tmp_path, "clone", "-q", str(shop[0]), "clone")
    root = tmp_path / "clone"
    git(root, "checkout", "-q", "HEAD~")
    for name in ("café.py", 'tab\t"x".py', "moved é.py", "plain.py"):
        (root / name).write_text(CART)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "More")
    (root / "café.py").write_text(MENDED)
    (root / 'tab\t"x".py').write_text(MENDED)
    (root / "moved é.py").rename(root / "there é.py")
    (root / "plain.py").chmod(0o755)
    git(root, "add", "-A")
    change = {"base_commit": git(root, "rev-parse", "HEAD").strip(), "test_patch": ""}
    patch = git(root, "-c", "core.quotePath=true", "diff", "--cached", "-M")
    assert '"a/caf\\303\\251.py"' in patch and "old mode 100644" in patch and "rename from" in patch
    [instance] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], **change, "patch": patch}))
    with pytest.raises(ConfigError, match=r"its solution removes moved é\.py"):
        files_of(instance, History(root), 1 << 20)
    patch = git(root, "-c", "core.quotePath=true", "diff", "--cached", "--no-renames", "--diff-filter=d")
    [instance] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], **change, "patch": patch}))
    answer = files_of(instance, History(root), 1 << 20).answer
    assert answer.keys() == {"café.py", 'tab\t"x".py', "there é.py"} and answer["café.py"] == MENDED.encode()


def test_what_is_no_file_of_lines_is_refused_at_once(shop, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: not a regular file"):
        read_instances(tmp_path / "pipe")
    (tmp_path / "large.py").touch()
    os.truncate(tmp_path / "large.py", 40 << 30)
    with pytest.raises(ConfigError, match="a directory; name a JSONL file of instances"):
        read_instances(tmp_path)


def test_a_line_is_one_by_its_end_and_holds_whole_characters(shop, tmp_path):
    [found] = read_instances(write(tmp_path / "x.jsonl", {**shop[1], "problem_statement": "One\u2028line"}))
    (tmp_path / "y.jsonl").write_text(json.dumps({**shop[1], "problem_statement": "One\u2028line"}, ensure_ascii=False))
    assert read_instances(tmp_path / "y.jsonl") == [found] and found.statement == "One\u2028line"
    with pytest.raises(ConfigError, match=r"x\.jsonl:1: not JSON: .* surrogates not allowed"):
        read_instances(write(tmp_path / "x.jsonl", {**shop[1], "patch": "\ud800"}))
