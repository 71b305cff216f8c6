"""What the doctor says of images: never a fault, and what is missing by name."""

from etude.environments import namespace_probe
from etude.environments.doctor import diagnose
from etude.environments.namespace import NamespaceConfig
from etude.environments.roots import ImagesConfig


def images(config=None):
    (finding,) = (found for found in diagnose(config) if found.subject == "images")
    assert finding.ok
    return finding.detail


def test_where_images_work_the_doctor_has_made_and_mounted_one():
    assert images() == "can be kept and mounted, in the form 'erofs'"
    assert images(NamespaceConfig(images=ImagesConfig(format="directory"))).endswith("'directory'")


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "apt-get install -y erofs-utils" in namespace_probe._images(NamespaceConfig()).detail
