"""`harbor-agent.json`: Harbor's models take it, and what it names is there and starts with what Harbor sets."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest
from atif_form import HARBOR, harbor_takes
from scripted_openai import Reply, ScriptedServer

from etude import __version__
from etude.config import load_recipe
from etude.product.config import AgentConfig

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "harbor-agent.json"
ENV = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "k", "HARBOR_ACP_REQUESTED_MODEL": "openai/m"}


@pytest.fixture(scope="module")
def project() -> Path:
    return ROOT / json.loads(MANIFEST.read_text())["runtime"]["project"]


@pytest.fixture(scope="module")
def launcher(project: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("etude_harbor", project / "etude_harbor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_manifest(project: Path) -> None:
    manifest = json.loads(MANIFEST.read_text())
    assert set(manifest) == {"schema_version", "id", "version", "protocol", "runtime"}
    assert manifest["schema_version"] == 1 and manifest["protocol"] == "acp" and manifest["version"] == __version__
    runtime = manifest["runtime"]
    assert runtime["kind"] == "python-uv" and runtime["python"] == "3.12" and runtime["lockfile"] == "uv.lock"
    assert len(PurePosixPath(runtime["entrypoint"][0]).parts) == 1, "a command of the project's own environment"
    harbor_takes("harbor.models.agent.acp_source", "AcpSourceManifest", MANIFEST.read_bytes())


def test_what_the_manifest_names_is_there(project: Path, launcher: ModuleType) -> None:
    made = tomllib.loads((project / "pyproject.toml").read_text())
    entry = json.loads(MANIFEST.read_text())["runtime"]["entrypoint"][0]
    module, _, function = made["project"]["scripts"][entry].partition(":")
    assert module == launcher.__name__ and callable(getattr(launcher, function))
    assert (project / made["tool"]["uv"]["sources"]["etude"]["path"]).resolve() == ROOT
    symlinks = [path for path in project.rglob("*") if path.is_symlink()]
    assert symlinks == [], "Harbor takes no source with symlinks"


def test_harbors_variables_become_a_config(launcher: ModuleType) -> None:
    command, *options = launcher.arguments(ENV)
    assert command == "acp" and set(options[::2]) == {"--set"}
    config = load_recipe(None, AgentConfig, options[1::2])
    assert config.endpoint.url == ENV["OPENAI_BASE_URL"] and config.endpoint.model == "m"
    assert config.endpoint.key_env == "OPENAI_API_KEY", "the key itself is on no command line"
    assert config.workspace.sandbox == "off" and config.workspace.network == "full", "the container is the sandbox"
    hosted = {**ENV, "HOSTED_INFERENCE_URL": "https://gateway/v1", "HOSTED_INFERENCE_TOKEN": "t"}
    config = load_recipe(None, AgentConfig, launcher.arguments(hosted)[2::2])
    assert config.endpoint.url == "https://gateway/v1" and config.endpoint.key_env == "HOSTED_INFERENCE_TOKEN"


@pytest.mark.parametrize(
    ("missing", "says"), [("OPENAI_BASE_URL", "no endpoint"), ("HARBOR_ACP_REQUESTED_MODEL", "no model")]
)
def test_what_is_missing_is_said(project: Path, missing: str, says: str) -> None:
    env = {name: value for name, value in {**os.environ, **ENV}.items() if name != missing}
    done = subprocess.run(
        [sys.executable, str(project / "etude_harbor.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 42 and says in done.stderr and done.stdout == ""


@pytest.mark.skipif(HARBOR is None, reason="ETUDE_HARBOR_PYTHON names no Python that has harbor")
def test_harbors_own_runner_plays_a_task(project: Path, tmp_path: Path) -> None:
    """As in a task's container: its script, our launcher, a directory, and what it writes of it."""
    logs, workspace, launch = tmp_path / "logs", tmp_path / "workspace", tmp_path / "launch.sh"
    workspace.mkdir()
    launch.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} {project / "etude_harbor.py"} "$@"\n')
    launch.chmod(0o755)
    find = "import harbor, pathlib; print(pathlib.Path(harbor.__file__).parent / 'agents/installed/acp_runner.py')"
    found = subprocess.run([HARBOR, "-c", find], capture_output=True, text=True, timeout=120, check=True).stdout.strip()
    runner = tmp_path / "runner.py"  # alone, as Harbor uploads it
    runner.write_bytes(Path(found).read_bytes())
    calls = [
        ("write_file", {"path": "a.txt", "content": "hi\n"}),
        ("run_terminal_cmd", {"command": "cat a.txt > b.txt"}),
    ]
    with ScriptedServer([Reply("I write.", calls), Reply("Done.")]) as server:
        homes = {"ETUDE_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        env = {**os.environ, **ENV, **homes, "OPENAI_BASE_URL": server.url, "HARBOR_ACP_REQUESTED_MODEL": "scripted"}
        line = [HARBOR, str(runner), "--instruction=Write it.", f"--logs-dir={logs}", f"--launcher={launch}"]
        done = subprocess.run(line, cwd=workspace, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workspace / "b.txt").read_text() == "hi\n" and [body["model"] for body in server.bodies] == ["scripted"] * 2
    summary = json.loads((logs / "acp-summary.json").read_text())
    assert summary["agent_info"]["name"] == "etude" and summary["resolved_session_model_id"] == "scripted"
