"""Hosts a sandbox may reach: given by a backend that can, refused by one that cannot, never ignored."""

import pytest

from etude.environments.base import SandboxSpec
from etude.errors import ConfigError

SPEC = SandboxSpec(egress=("mirror.example.com",))


def test_an_allow_list_is_kept_or_refused(run):
    async def scenario(backend):
        if not backend.capabilities.network:
            with pytest.raises(ConfigError, match="egress"):
                await backend.create(SPEC)
            return
        box = await backend.create(SPEC)
        assert (await box.exec('test -n "$HTTPS_PROXY" && test "$https_proxy" = "$HTTPS_PROXY"')).exit_code == 0

    run(scenario)


def test_without_one_there_is_no_network(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        assert (await box.exec("env | grep -i _proxy=")).exit_code == 1
        assert (await box.exec("grep -v -e lo: -e Inter- -e face /proc/net/dev")).exit_code == 1

    run(scenario)
