"""`etude` after `pip install .` alone: what needs no extra works, and the rest says in one line what to install."""

import json
import shutil

import light
import pytest
from light import ROOT

MODEL, QUICKSTART = ROOT / "models/etude-tiny", ROOT / "recipes/quickstart.toml"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return light.light_environment(tmp_path_factory.mktemp("light") / "venv")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", MODEL], "train"),
        (["train", QUICKSTART], "train"),
        (["plan", QUICKSTART], "train"),
        (["play"], "train"),
        (["pretrain", ROOT / "recipes/base.toml"], "train"),
        (["weights", "log", "x"], "train"),
        (["bench", "run", "--ladder", 1, "--checkpoint", MODEL, "--out", "b"], "train"),
        (["environments", "serve"], "environments"),
        (["sessions", "serve"], "environments"),
        (["acp"], "acp"),
        (["completion", "bash"], "completion"),
        (["runs", "export", "runs/x", "--to", "wandb"], "wandb"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_that_needs_an_extra_names_it_in_one_line(python, tmp_path, arguments, extra):
    done = light.run(python, *arguments, cwd=tmp_path)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert line.startswith(f"etude {arguments[0]}: ") and " is not installed: pip install " in line
    assert line.endswith(f"-e '{ROOT}[{extra}]'")


def test_what_needs_no_extra_works_without_one(python, tmp_path):
    made = light.run(python, "tasks", "generate", "--rung", 1, "--out", tmp_path / "tasks", "--json", cwd=tmp_path)
    [task] = json.loads(made.stdout)["tasks"]
    assert light.run(python, "tasks", "validate", task, cwd=tmp_path).returncode == 0
    listed = light.run(python, "agent", "--list", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")


def test_the_command_installs_from_where_etude_came(python, tmp_path):
    """PEP 610: a clone, a git repository, an archive, or an index, which leaves no record."""
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    info = next(packages.glob("etude-*.dist-info"))
    real = info.resolve()
    info.unlink()
    shutil.copytree(real, info)
    commit = "0" * 40
    try:
        for came, line in [
            ({"url": "file:///src/my%20etude", "dir_info": {}}, "pip install '/src/my etude[train]'"),
            (
                {"url": "https://x.org/e.git", "vcs_info": {"vcs": "git", "commit_id": commit}},
                f"pip install 'etude[train] @ git+https://x.org/e.git@{commit}'",
            ),
            ({"url": "file:///d/e.whl", "archive_info": {}}, "pip install 'etude[train] @ file:///d/e.whl'"),
            (None, "pip install 'etude[train]'"),
        ]:
            record = info / "direct_url.json"
            record.unlink(missing_ok=True)
            if came is not None:
                record.write_text(json.dumps(came))
            assert light.run(python, "serve", MODEL, cwd=tmp_path).stderr.strip().endswith(line)
    finally:
        shutil.rmtree(info)
        info.symlink_to(real)
