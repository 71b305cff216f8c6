"""What a stranger's repository asks to be installed: by name alone, so that nothing of it runs on this machine."""

import asyncio
import json
import tarfile

import pytest

from etude.tasks.mined.environment import Environments, Unavailable, requirements_of

NAMED = ["attrs>=20", 'tomli ; python_version < "3.11"', "requests[socks] ~= 2.0, !=2.1"]


def project(*lines):
    return f"[project]\ndependencies = {json.dumps(lines)}\n".encode()


def test_a_package_that_lies_at_an_address_is_never_built(tmp_path, monkeypatch):
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('built')\n")
    with tarfile.open(tmp_path / "evil-1.tar.gz", "w:gz") as file:
        file.add(tmp_path / "evil", "evil-1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    files = {
        "pyproject.toml": project("--no-build-isolation", f"evil @ {(tmp_path / 'evil-1.tar.gz').as_uri()}"),
        "requirements.txt": f"evil @ file:{tmp_path}/evil-1.tar.gz\n{tmp_path}/evil\n".encode(),
    }
    with pytest.raises(Unavailable, match="pytest"):
        asyncio.run(Environments(tmp_path / "environments").get(requirements_of(files)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "line",
    [
        "--no-binary=:all:",
        "-e .",
        "evil @ https://a/b.tar.gz",
        "evil@git+ssh://a/b",
        "c:\\evil",
        "./evil",
        "evil/pkg",
        "",
    ],
)
def test_what_is_no_package_by_name_is_left_out(line):
    assert requirements_of({"pyproject.toml": project(*NAMED, line)}).needed == tuple(sorted(NAMED))
    text = "\n".join([*NAMED, line, "pinned==1 --hash=sha256:00  # why", "split==2 \\", "    --hash=sha256:00"])
    assert requirements_of({"requirements.txt": text.encode()}).needed == tuple(
        sorted([*NAMED, "pinned==1", "split==2"])
    )


@pytest.mark.parametrize(
    "text",
    ["project = 'x'", "[project]\ndependencies = 3", "[project]\noptional-dependencies = []", "dependency-groups = 1",
     "[dependency-groups]\ntest = 3", "[project.optional-dependencies]\ntest = [1, {}]"],
)  # fmt: skip
def test_a_project_that_makes_no_sense_asks_for_nothing(text):
    found = requirements_of({"pyproject.toml": text.encode()})
    assert found.needed == found.wanted == ()
