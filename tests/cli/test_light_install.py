"""`etude` after `pip install .` alone: what needs no extra works, and the rest says in one line what to install."""

import json
import shutil
import subprocess

import light
import pytest
from light import ROOT

MODEL, QUICKSTART = ROOT / "models/etude-tiny", ROOT / "recipes/quickstart.toml"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return light.light_environment(tmp_path_factory.mktemp("light") / "venv")


NEEDS = [
    (["serve", MODEL], "train"),
    (["train", QUICKSTART], "train"),
    (["plan", QUICKSTART], "train"),
    (["play"], "train"),
    (["pretrain", ROOT / "recipes/base.toml"], "train"),
    (["weights", "log", "x"], "train"),
    (["bench", "run", "--ladder", 1, "--checkpoint", MODEL, "--out", "b"], "train"),
    (["environments", "serve"], "environments"),
    (["sessions", "serve"], "environments"),
    (["studio"], "studio"),
    (["acp"], "acp"),
    (["completion", "bash"], "completion"),
    (["runs", "export", "runs/x", "--to", "wandb"], "wandb"),
]
"""Commands, each with the extra that it lacks."""
IN_TURN = """
import json, sys
from etude.cli.main import main
for words in json.loads(sys.argv[1]):
    print(main(words), end="\\f", file=sys.stderr, flush=True)
"""


def test_a_command_that_needs_an_extra_names_it_in_one_line(python, tmp_path):
    """One after another in one process, as what cannot be imported for one cannot be for the next; and one as typed."""
    asked = json.dumps([[str(word) for word in arguments] for arguments, _ in NEEDS])
    done = subprocess.run([str(python), "-c", IN_TURN, asked], cwd=tmp_path, capture_output=True, timeout=240)
    said = done.stderr.decode().split("\f")[:-1]
    typed = light.run(python, *NEEDS[0][0], cwd=tmp_path)
    assert f"{typed.stderr}{typed.returncode}" == said[0]
    assert "Traceback" not in done.stderr.decode()
    for (arguments, extra), told in zip(NEEDS, said, strict=True):
        *_, line, code = told.splitlines()
        assert code == "1"
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
