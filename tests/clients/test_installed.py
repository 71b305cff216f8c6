"""A client that cannot be installed fails its tests, unless the user says that there is no network."""

import pytest
from installed import npm, pip

NOWHERE = "./no-such-package"


PIP = pytest.mark.proof(6)
"""Its environment takes the time; what becomes of its failure is npm's too."""


@pytest.mark.parametrize("install", [npm, pytest.param(pip, marks=PIP)])
@pytest.mark.parametrize(("offline", "ends"), [("", pytest.fail.Exception), ("1", pytest.skip.Exception)])
def test_what_cannot_be_installed_is_told(tmp_path, monkeypatch, install, offline, ends):
    monkeypatch.setenv("ETUDE_OFFLINE", offline)
    with pytest.raises(ends, match=r"(?s)no-such-package.*ETUDE_OFFLINE=1"):
        install(tmp_path, NOWHERE)


def test_without_npm_its_clients_fail_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ETUDE_OFFLINE", raising=False)
    with pytest.raises(pytest.fail.Exception, match="only npm can install"):
        npm(tmp_path, "opencode-ai")
