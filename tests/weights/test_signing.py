"""Signed chains: what a trusted key did not sign, word for word, is refused before it is parsed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_samples import make_chain, move_bits, same

from etude.cli.main import main
from etude.errors import ConfigError, WeightError
from etude.records import Version
from etude.weights.inspect import inspect, verify
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.signing import Keys, load_keys, make_keys
from etude.weights.subscriber import Subscriber, SubscriberConfig

V = Version
CHAIN = make_chain(4)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys/run.key")
    return tmp_path / "keys/run.key"


def public(key: Path) -> Path:
    return key.with_name(key.name + ".pub")


def publish(directory: Path, key: Path | None, length: int = 4) -> Publisher:
    publisher = Publisher(
        open_store(directory), PublisherConfig(signing_key=key, anchor_every=2, merge_over=(3,), merge="always")
    )
    for version in range(length):
        publisher.publish(V(version), CHAIN[version])
    return publisher


def reader(directory: Path, *trusted: Path) -> Subscriber:
    return Subscriber(open_store(directory), SubscriberConfig(trusted_keys=trusted))


def test_a_signed_chain_to_who_trusts_and_to_who_does_not_ask(tmp_path: Path, key: Path) -> None:
    publish(tmp_path / "store", key)
    for subscriber in (reader(tmp_path / "store", public(key)), reader(tmp_path / "store")):
        assert same(subscriber.fetch(None, None, V(3))[0], CHAIN[3])
        assert same(subscriber.fetch(CHAIN[0], V(0), V(3))[0], CHAIN[3])
    assert verify(open_store(tmp_path / "store"), load_keys(trusted=[public(key)])).ok
    resumed = Publisher(open_store(tmp_path / "store"), PublisherConfig(signing_key=key))
    assert resumed.publish(V(4), move_bits(CHAIN[3], 9)).kind == "delta"


def test_unsigned_and_strange_signatures_are_refused(tmp_path: Path, key: Path) -> None:
    other = tmp_path / "other.key"
    make_keys(other)
    publish(tmp_path / "unsigned", None)
    publish(tmp_path / "other", other)
    with pytest.raises(WeightError, match=r"manifest: not signed, .*publisher\.signing_key"):
        reader(tmp_path / "unsigned", public(key)).fetch(None, None, V(3))
    with pytest.raises(WeightError, match=r"none of [0-9a-f]{16}: .*add its public key to trusted_keys"):
        reader(tmp_path / "other", public(key)).fetch(None, None, V(3))
    assert same(reader(tmp_path / "other", public(key), public(other)).fetch(None, None, V(3))[0], CHAIN[3])
    problems = verify(open_store(tmp_path / "other"), load_keys(trusted=[public(key)])).problems
    assert len(problems) == 6  # four versions, an anchor and a merged delta


def test_a_key_cannot_be_left_out_or_exchanged_midway(tmp_path: Path, key: Path) -> None:
    publish(tmp_path / "store", key)
    with pytest.raises(WeightError, match=r"version 3 is signed by key .*set publisher\.signing_key"):
        Publisher(open_store(tmp_path / "store")).publish(V(4), CHAIN[0])
    next_key = tmp_path / "next.key"
    make_keys(next_key)
    with pytest.raises(WeightError, match="add its public key to trusted_keys"):
        Publisher(open_store(tmp_path / "store"), PublisherConfig(signing_key=next_key)).publish(V(4), CHAIN[0])
    config = PublisherConfig(signing_key=next_key, trusted_keys=(public(key),))
    Publisher(open_store(tmp_path / "store"), config).publish(V(4), CHAIN[0])
    both = reader(tmp_path / "store", public(key), public(next_key))
    assert same(both.fetch(CHAIN[3], V(3), V(4))[0], CHAIN[0])


def test_a_manifest_of_another_run_of_the_same_key(tmp_path: Path, key: Path) -> None:
    """Signed by the right key, in the right place, a whole version: but of a chain that nobody here follows."""
    publish(tmp_path / "a", key)
    publish(tmp_path / "b", key)
    subscriber = reader(tmp_path / "a", public(key))
    held, _ = subscriber.fetch(None, None, V(1))
    shutil.rmtree(tmp_path / "a/versions/00000002")
    shutil.copytree(tmp_path / "b/versions/00000002", tmp_path / "a/versions/00000002")
    with pytest.raises(WeightError, match="brought from another run"):
        subscriber.fetch(held, V(1), V(2))


def test_a_forged_manifest_with_everything_else_right(tmp_path: Path, key: Path) -> None:
    """Another root for an existing version, consistent in itself, behind the genuine signature."""
    publish(tmp_path / "store", key)
    publish(tmp_path / "unsigned", None)
    genuine = tmp_path / "store/versions/00000003/manifest"
    forged = (tmp_path / "unsigned/versions/00000003/manifest").read_bytes()
    genuine.write_bytes(genuine.read_bytes()[:105] + forged)
    with pytest.raises(WeightError, match="does not fit: it was damaged or forged"):
        reader(tmp_path / "store", public(key)).fetch(CHAIN[2], V(2), V(3))


@pytest.fixture(scope="module")
def property_keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    key = tmp_path_factory.mktemp("keys") / "property.key"
    make_keys(key)
    return load_keys(key)


@given(data=st.data())
@settings(max_examples=150)
def test_no_changed_byte_passes(property_keys: Keys, data: st.DataObject) -> None:
    keys, frame = property_keys, zstandard.compress(b"a manifest")
    sealed = bytearray(keys.seal(frame))
    assert keys.open(bytes(sealed), "here") == Keys().open(bytes(sealed), "here") == frame
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == b"a manifest"
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WeightError, match="here"):
        keys.open(bytes(sealed), "here")
    with pytest.raises(WeightError, match="here"):
        keys.open(keys.seal(frame)[: data.draw(st.integers(0, len(sealed) - 1))], "here")


def test_key_files(tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="is there already"):
        make_keys(key)
    with pytest.raises(ConfigError, match=r"publisher\.signing_key = .*not a private key.*etude weights keygen"):
        load_keys(public(key))
    with pytest.raises(ConfigError, match="not a public key"):
        load_keys(trusted=[key])
    with pytest.raises(ConfigError, match="No such file"):
        load_keys(tmp_path / "absent")
    assert main(["weights", "keygen", str(tmp_path / "cli.key"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert load_keys(Path(made["private"]), [Path(made["public"])]).trusted == load_keys(Path(made["private"])).trusted


def test_keys_of_other_tools(tmp_path: Path) -> None:
    """`openssl` makes the same files, and keys that are not Ed25519."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    private, public_key, rsa = tmp_path / "a.pem", tmp_path / "a.pub", tmp_path / "rsa.pem"
    for command in (
        ["genpkey", "-algorithm", "ed25519", "-out", private],
        ["pkey", "-in", private, "-pubout", "-out", public_key],
        ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", rsa],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    keys = load_keys(private, [public_key])
    assert keys.open(keys.seal(b"frame"), "here") == b"frame"
    assert len(keys.trusted) == 1
    with pytest.raises(ConfigError, match="not an Ed25519 key"):
        load_keys(rsa)


def test_the_command_line_says_who_signed(tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(tmp_path / "store", key)
    store = str(tmp_path / "store")
    detail = inspect(open_store(store), V(3))
    assert detail.signer == load_keys(key).trusted[0].hex()[:16]
    assert main(["weights", "inspect", store, "--trust", str(public(key))]) == 0
    assert f"chain {detail.chain}, signed by {detail.signer}" in capsys.readouterr().out
    assert main(["weights", "verify", store, "--trust", str(public(key)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    make_keys(tmp_path / "other.key")
    assert main(["weights", "log", store, "--trust", str(tmp_path / "other.key.pub")]) == 1
    assert "add its public key to trusted_keys" in capsys.readouterr().err
