"""The file of `etude cluster` and the recipe's `[machines]`: what is refused, and what is said of a machine."""

import asyncio
import json
import os
import stat
import sys

import pytest

from etude.config import load_recipe
from etude.errors import ConfigError, EtudeError
from etude.rollouts.config import RunConfig
from etude.rollouts.machines import far
from etude.rollouts.machines.bare import BareCluster, MachineStatus, alike, status_of
from etude.rollouts.machines.bare_config import BareConfig
from etude.rollouts.machines.ssh import Unreached, ask, command_of
from etude.serving.token import own_token, read_token

TWO = 'machines=[{address="10.0.0.1"}, {address="10.0.0.2", ssh="root@two"}]'


def cluster(*sets):
    return load_recipe(None, BareConfig, [TWO, *sets])


def recipe(*sets):
    return load_recipe(None, RunConfig, ["name=test", "control.enabled=false", *sets])


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (['machines=[{address="a"}, {address="a"}]'], "a is there twice"),
        (['machines=[{address="A.example"}, {address="a.example"}]'], "a.example is there twice"),
        (['machines=[{address="10.0.0.01"}]'], "Leading zeros are not permitted"),
        (['machines=[{address="fe80::1"}]'], "no IPv6; give a name or an IPv4 address"),
        (['machines=[{address="127.0.0.1"}]'], "127.0.0.1: is every machine's name for itself, and Ray takes another"),
        (['machines=[{address="localhost"}]'], "give the address by which others reach this one"),
        (['machines=[{address="10.0.0.1:22"}]'], r"give the address alone; a port of ssh's is one of ssh_options"),
        (['machines=[{address="root@10.0.0.1"}]'], "a user's name goes into `ssh`"),
        (["machines=[]"], "machines: must not be empty"),
        (['machines=[{address="a", resources={x=inf}}]'], r"machines\.0\.resources\.x: Input should be"),
        (['machines=[{address="a", resources={CPU=4}}]'], "CPU is Ray's own name; give cpus"),
        (['machines=[{address="a", ssh="-oProxyCommand=x"}]'], "ssh"),
        (['files={"here.txt"="x"}'], "give an absolute path"),
        (['env={RAY_AUTH_MODE="disabled"}'], "is set by Etude"),
        (['env={A="1"}', 'secrets={A="a"}'], "both in env and in secrets"),
    ],
)
def test_a_file_of_machines_that_cannot_be_meant_is_refused(sets, said):
    with pytest.raises(ConfigError, match=said) as error:
        cluster(*sets)
    assert "after validation" not in str(error.value)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["machines.url=ray://10.0.0.1:10001"], "Start the run on a machine of the cluster"),
        (["machines.url=10.0.0.1"], "is not HOST:PORT"),
        (["trainer.ranks={}"], "trainer.ranks: must not be empty"),
        (["machines.url=10.0.0.1:6379", "machines.places={sessions={CPU=0}}"], "machines.places.sessions.CPU"),
        (["machines.url=10.0.0.1:6379", "control.enabled=true"], "set it to false where `machines` is given"),
    ],
)
def test_a_recipe_that_cannot_join_is_refused(sets, said):
    with pytest.raises(ConfigError, match=said):
        recipe(*sets)


def test_secrets_are_on_no_command_line_and_a_file_that_is_not_there_is_named(tmp_path):
    (tmp_path / "key").write_text("hidden\n")
    config = cluster(f'secrets={{STORE_KEY="{tmp_path}/key"}}', f'token_file="{tmp_path}/token"')
    assert config.variables()["STORE_KEY"] == "hidden"
    line = command_of(config, config.machines[1])
    assert "root@two" in line and not [word for word in line if "hidden" in word or config.token() in word]
    with pytest.raises(ConfigError, match=r"secrets.STORE_KEY: .*No such file"):
        cluster(f'secrets={{STORE_KEY="{tmp_path}/none"}}').variables()


ALIVE = {"processes": 4, "raylet": True, "head": False}
HEAD = {
    **ALIVE,
    "head": True,
    "table": {"10.0.0.1": {"alive": True, "resources": {"CPU": 2, "node:10.0.0.1": 1, "memory": 9}}},
}
OTHER = {**HEAD, "table": {"192.0.2.2": {"alive": True, "resources": {}}}}
LOST = {**HEAD, "table": {"10.0.0.2": {"alive": False, "resources": {}}}}


@pytest.mark.parametrize(
    ("look", "head", "state", "why"),
    [
        (ALIVE, LOST, "dead", "given it up"),
        (ALIVE, HEAD, "dead", "not heard of it"),
        ({**ALIVE, "raylet": False, "processes": 0}, HEAD, "stopped", "nothing of the cluster"),
        ({**ALIVE, "raylet": False}, HEAD, "dead", "has ended there"),
        (ALIVE, {**ALIVE, "head": False}, "unknown", "head's own process has ended"),
        (ALIVE, {**ALIVE, "silent": "it hangs"}, "unknown", "it hangs"),
        (ALIVE, Unreached("gone"), "unknown", "cannot be asked"),
        (Unreached("ssh gets no connection"), HEAD, "unreachable", "no connection"),
        (ConfigError("python: 10.0.0.2 has no /opt/python"), HEAD, "unknown", "has no /opt/python"),
    ],
)
def test_a_machine_is_described_by_itself_and_by_the_head(look, head, state, why):
    said = status_of(cluster().machines[1], False, look, head)
    assert said.state == state and why in said.why


def test_a_head_that_ray_knows_by_another_address_is_told_which():
    said = status_of(cluster().head, True, OTHER, OTHER)
    assert said.state == "dead" and said.why.startswith("Ray knows it as 192.0.2.2; give that as its address")


@pytest.mark.parametrize("verb", ["up", "down"])
def test_all_machines_that_are_out_of_reach_are_named_at_once(ssh, tmp_path, verb):
    ssh("echo 'Connection refused' >&2; exit 255")
    config = cluster(f'token_file="{tmp_path}/token"', 'ssh_options=["Port=22223"]')
    with pytest.raises(EtudeError) as error:
        asyncio.run(getattr(BareCluster(config), verb)())
    said = str(error.value)
    assert "10.0.0.1: ssh gets no connection" in said and "10.0.0.2: ssh gets no connection" in said
    assert "ssh -o Port=22223 -o BatchMode=yes root@two true" in said


def test_what_a_machine_gives_away_is_told_without_rays_own_names():
    assert status_of(cluster().head, True, HEAD, HEAD) == MachineStatus("10.0.0.1", True, "alive", 4, {"CPU": 2})


def test_machines_must_be_alike():
    of = {"etude": "0.1.0", "ray": "2.60.0", "python": "3.11.7"}
    alike({"a": of, "b": of})
    with pytest.raises(ConfigError, match=r"a has ray 2.60.0, and b has 2.59.0"):
        alike({"a": of, "b": {**of, "ray": "2.59.0"}})


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """A program `ssh` in which the far side is whatever a test writes."""

    def made(script):
        path = tmp_path / "bin/ssh"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=":")

    return made


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", Unreached, "denied.*BatchMode=yes 10.0.0.1 true"),
        ("exit 127", ConfigError, "10.0.0.1 has no python3"),
        ("echo \"No module named 'psutil'\" >&2; exit 1", ConfigError, "has no Etude with its extra train"),
        ("echo 'etude-cluster: {\"error\": \"the disk is full\"}'", EtudeError, "10.0.0.1: the disk is full"),
        ("exec sleep 60", Unreached, "waited 0.5 s for 10.0.0.1 to look"),
    ],
)  # fmt: skip
def test_what_ssh_ends_with_is_said_with_what_to_do(ssh, script, error, said):
    ssh(script)
    with pytest.raises(error, match=said):
        asyncio.run(ask(cluster(), cluster().head, {"verb": "look"}, 0.5 if "sleep" in script else 30))


def test_the_request_goes_by_stdin_and_a_login_may_print_first(ssh):
    ssh('echo welcome; read line; echo "etude-cluster: {\\"said\\": $line}"')
    assert asyncio.run(ask(cluster(), cluster().head, {"verb": "look"}, 30)) == {"said": {"verb": "look"}}


def test_the_far_side_answers_of_this_machine(ssh):
    """The real one, without a network: nothing of such a cluster runs here, so there is nothing to end."""
    ssh('while [ "$1" != -- ]; do shift; done; shift 2; exec sh -c "$*"')
    config = cluster(f'python="{sys.executable}"', "name=nobody")
    assert {each.state for each in asyncio.run(BareCluster(config).status())} == {"stopped"}
    assert asyncio.run(BareCluster(config).down()) == {"10.0.0.1": 0, "10.0.0.2": 0}
    json.dumps([each.as_json() for each in asyncio.run(BareCluster(config).status())])


def test_a_file_of_secrets_is_never_what_another_user_has_put_there(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    for name in ("store.pem", "store.pem.partial", f"store.pem.{os.getpid()}.partial"):
        (tmp_path / name).symlink_to(victim)
    path = tmp_path / "store.pem"
    far._put(path, b"secret")
    assert victim.read_text() == "theirs" and path.read_text() == "secret" and not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_of_another_users_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "token"
    assert own_token(path) == read_token(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="is another user's"):
        own_token(path)
    assert read_token(path)  # a client may ask a server of another user's
