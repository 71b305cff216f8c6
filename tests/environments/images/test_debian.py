"""Debian images: the mirrors are apt's, and where they answer, a small image is really made."""

import shutil
import subprocess

import pytest
from debian_packages import program

from etude.environments.images.debian import add_debian, apt_sources
from etude.environments.images.store import ImageStore
from etude.environments.roots import ImagesConfig
from etude.errors import ConfigError

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt here to take mirrors from")


def suite():
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE)", "Created-By: Packages"], capture_output=True, text=True
    ).stdout.split()
    plain = [release for release in said if not set(release) & set("-/")]
    if not plain:
        pytest.skip("apt is configured for no Debian suite here")
    return plain[0]


def test_mirrors_are_the_ones_apt_has():
    here = suite()
    lines = apt_sources(here)
    assert lines and all(line.startswith("deb ") and f" {here}" in line for line in lines)
    other = apt_sources("some-other-suite")
    assert other and all(line.split()[2] == "some-other-suite" for line in other)
    assert {line.split()[1] for line in other} <= {line.split()[1] for line in lines}


def test_options_cannot_be_smuggled_in(store):
    for suite_, packages in (("--mode=x", ()), ("sid", ("-x",)), ("sid", ("a,b",)), ("", ())):
        with pytest.raises(ConfigError, match="neither a suite nor a package"):
            add_debian(store, suite_, packages)


def test_a_small_debian(tmp_path):
    program("mmdebstrap", "mmdebstrap")
    here = suite()
    try:
        asked = subprocess.run(
            ["apt-get", "download", "-qq", "busybox-static"], cwd=tmp_path, capture_output=True, text=True, timeout=20
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the Debian mirror does not answer")
    if asked.returncode != 0:
        pytest.skip(f"the Debian mirror does not answer: {asked.stderr[-200:]}")
    store = ImageStore(ImagesConfig(dir=tmp_path / "images", format="directory"))
    image = add_debian(store, here, ["busybox-static"], variant="extract", name="debian", timeout_s=50)
    assert any((image.path / place).is_file() for place in ("bin/busybox", "usr/bin/busybox"))
    assert not (image.path / "etc" / "resolv.conf").exists() and not (image.path / "etc" / "hostname").exists()
    assert store.get("debian").env["PATH"]
