"""Which names are taken for secrets: as many as docs/safety.md lists, in any case, and what lies beside them."""

# ruff: noqa: E501  (names are read best on one line)
import os
import re
from pathlib import Path

import pytest

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths
from etude.harness.permissions.secret_files import FILES, HOME, NOT_SECRET, PLACES

DOC = (Path(__file__).parents[2] / "docs" / "safety.md").read_text()
SECRET = (
    ".env", ".ENV", ".env.local", ".env-prod", ".envrc", "prod.env", "deploy/.envs/production/django", "id_rsa", "id_ecdsa",
    "id_ecdsa_sk", "id_dsa", "deploy_rsa", "cert.p12", "cert.pfx", "key.ppk", "store.jks", "SERVER.KEY", "server.key.bak",
    "server.key~", "#.env#", ".id_rsa.swp", "key.pem.1", ".netrc", ".git-credentials", ".pypirc", ".npmrc", "app.keystore",
    ".pgpass", ".htpasswd", "credentials.json", ".credentials.json", "my-Service-Account.json", "serviceAccountKey.json",
    "terraform.tfstate", "terraform.tfstate.backup", "prod.tfvars", "pass.kdbx", ".streamlit/secrets.toml", ".ssh/config",
    "home/.aws/credentials",
)  # fmt: skip
PLAIN = (
    ".env.example", ".env.production.sample", "example.env", ".env-template", "server.key.example", "id_rsa.pub", "deploy_rsa.pub",
    "credentials.json.dist", "credentials.py", "secrets.py", "src/config", "environment.ts", "vite.env.ts", "ca.crt", "key.py",
    "keys.json", "terraform.tf", "README.md", "secret_files.py",
)  # fmt: skip


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    for name in (*SECRET, *PLAIN):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text("x\n")
    return Judge(PermissionConfig(), WorkspacePaths(tmp_path / "project"), env={})


def test_a_secret_is_known_by_its_name_and_by_no_other(judge: Judge) -> None:
    for tool, key, before in (("read_file", "path", ""), ("run_terminal_cmd", "command", "cat './")):
        said = {
            name: judge.judge(tool, {key: f"{before}{name}{chr(39) * bool(before)}"}).verdict
            for name in (*SECRET, *PLAIN)
        }
        assert said == {**dict.fromkeys(SECRET, "ask"), **dict.fromkeys(PLAIN, "allow")}, tool


def test_a_secret_that_is_there_is_not_written_over_unasked(judge: Judge, tmp_path: Path) -> None:
    def said(name: str) -> set[str]:
        calls = [("write_file", {"path": name}), ("edit_file", {"path": name})]
        calls += [("run_terminal_cmd", {"command": line}) for line in (f"echo x > './{name}'", f"echo x >> './{name}'")]
        return {judge.judge(tool, arguments).verdict for tool, arguments in calls}

    assert {name: said(name) for name in (*SECRET, *PLAIN)} == {
        **{name: {"ask"} for name in SECRET},
        **{name: {"allow"} for name in PLAIN},
    }
    os.link(tmp_path / "project" / "id_rsa", tmp_path / "project" / "notes")
    assert said("notes") == {"ask"}, "another name of a secret"
    assert said("new/id_rsa") == {"allow"}, "nothing is lost by it"
    judge.allow("edit(id_rsa)")
    assert said("id_rsa") == {"allow"}


@pytest.mark.parametrize("name", SECRET)
def test_a_walk_stops_at_each_of_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x\n")
    judge = Judge(PermissionConfig(), WorkspacePaths(tmp_path), env={})
    assert judge.judge("run_terminal_cmd", {"command": "grep -rn x ."}).verdict == "ask"
    assert judge.judge("grep", {"pattern": "x", "path": "."}).verdict == "ask"


def test_a_walk_passes_over_what_is_no_secret_and_a_directory_by_a_file_s_name(tmp_path: Path) -> None:
    for name in (*PLAIN, ".env/bin/python", "app.keystore/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    judge = Judge(PermissionConfig(), WorkspacePaths(tmp_path), env={})
    decision = judge.judge("run_terminal_cmd", {"command": "grep -rn x ."})
    assert decision.verdict == "allow", decision.explain()


def test_the_page_lists_the_same_names() -> None:
    secret, plain = (block.split() for block in re.findall(r"^```text\n(.*?)^```$", DOC, re.M | re.S)[:2])
    assert secret == [*FILES, *PLACES, *HOME] and plain == list(NOT_SECRET)
