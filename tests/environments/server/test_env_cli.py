"""`etude environments serve` and `burst`, as a user runs them."""

import json
import os
import signal
import subprocess
import sys

import pytest
from own_leftovers import left

from etude.environments.namespace import NamespaceConfig


def etude(*arguments, **given):
    return subprocess.Popen(
        [sys.executable, "-m", "etude.cli.main", "environments", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **given,
    )


def test_a_server_is_started_used_and_stopped(tmp_path):
    config = tmp_path / "server.toml"
    config.write_text(
        f'port = 0\n[node]\nstate_dir = "{tmp_path / "state"}"\nttl_s = 60\n'
        f'[[node.backends]]\nkind = "namespace"\nstate_dir = "{tmp_path / "boxes"}"\n'
    )
    server = etude("serve", str(config), "--set", "drain_s=5", "--json")
    try:
        said = json.loads(server.stdout.readline())
        burst = etude("burst", "3", "--url", said["url"], "--token-file", said["token_file"], "--exec", "id")
        output, errors = burst.communicate(timeout=120)
        assert burst.returncode == 0, errors
        assert [line.split()[0] for line in output.splitlines()[:3]] == ["create", "exec", "destroy"]
        figures = json.loads(output.splitlines()[-1])
        assert figures["count"] == 3 and figures["failed"] == 0 and figures["backend"] == "namespace"
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
        assert (server.returncode, errors) == (0, "")
    finally:
        server.kill()
        server.wait()
    assert left(NamespaceConfig(state_dir=tmp_path / "boxes"), [server.pid]) == []


def test_it_remembers_below_the_users_own_home_where_they_have_named_one(tmp_path):
    """And its clients look for its token there."""
    env = {**os.environ, "ETUDE_HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "not-here")}
    config = tmp_path / "server.toml"
    config.write_text(f'port = 0\n[[node.backends]]\nkind = "namespace"\nstate_dir = "{tmp_path / "boxes"}"\n')
    server = etude("serve", str(config), "--json", env=env)
    try:
        said = json.loads(server.stdout.readline())
        assert said["token_file"] == str(tmp_path / "home" / "environments" / "token")
        burst = etude("burst", "1", "--url", said["url"], env=env)
        _, errors = burst.communicate(timeout=120)
        assert burst.returncode == 0, errors
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
    assert not (tmp_path / "not-here").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--set", "bogus=1"], "bogus: unknown key; known here: drain_s"),
        (["serve", "--set", "host=0.0.0.0"], "hosts: name what this machine is called"),
        (["serve", "--set", "node.backends=[]"], "node.backends"),
        (["burst", "2", "--token-file", "/dev/null/none"], "token_file: /dev/null/none: Not a directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, said):
    command = etude(*arguments)
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 42 and said in errors and errors.count("\n") == 1
