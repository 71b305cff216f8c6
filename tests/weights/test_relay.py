"""A relay and its replicas: each block crosses the wide link once, and nothing that the relay does can hurt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from s3_server import S3Server
from weight_samples import make_chain, move_bits, same

from etude.errors import ConfigError, DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.relay import Relay, RelayConfig, application
from etude.weights.relayed import RelayedStore
from etude.weights.store import Store, StoreConfig
from etude.weights.subscriber import Subscriber

V = Version
TOKEN = "a token of many characters"
BLOCK = 1 << 10
RUN = "import sys; from etude.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Site:
    """A relay in a thread of this process, and what its replicas are configured with."""

    def __init__(self, s3: S3Server, directory: Path, **config: Any) -> None:
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN)
        self.token_file.chmod(0o600)
        self.config = RelayConfig(token_file=self.token_file, directory=directory / "kept", **config)
        self.origin = s3.store(block_bytes=BLOCK)
        self.s3 = s3

    @contextmanager
    def running(self) -> Iterator[Relay]:
        relay = Relay(self.origin, self.config)
        app = application(relay, self.config, TOKEN)
        server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield relay
        finally:
            server.should_exit = True
            thread.join(30)
            relay.close()

    def replica(self, **config: Any) -> RelayedStore:
        settings = {"relay": self.url, "token_file": self.token_file, "block_bytes": BLOCK, **config}
        store = self.s3.store(**settings)
        assert isinstance(store, RelayedStore)
        return store

    def ask(self, path: str, token: str = TOKEN, **headers: str) -> bytes:
        asked = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}", **headers})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.read()


@pytest.fixture
def site(s3: S3Server, tmp_path: Path) -> Site:
    return Site(s3, tmp_path)


CHAIN = [
    bits | {"wide": move_bits({"wide": bits["embed"].repeat(16, 0)}, at)["wide"]}
    for at, bits in enumerate(make_chain(5))
]


def publish(s3: S3Server, count: int = 5, **config: Any) -> Publisher:
    publisher = Publisher(s3.store(), PublisherConfig(**config))
    for version, bits in enumerate(CHAIN[:count]):
        publisher.publish(V(version), bits)
    return publisher


def test_a_site_fetches_each_block_once(s3: S3Server, site: Site) -> None:
    publish(s3)
    packs = s3.store().list("versions/")
    blocks = sum(-(-size // BLOCK) for key, size in packs.items() if key.endswith(".pack"))
    assert blocks > 15
    before = s3.reads(".pack")
    with site.running() as relay:
        stores = [site.replica() for _ in range(4)]

        def replica(store: Store) -> None:
            subscriber, bits, held = Subscriber(store), None, None
            for target in range(5):
                bits, _ = subscriber.fetch(bits, held, V(target))
                held = V(target)
                assert root_of(bits) == root_of(CHAIN[target])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(replica, stores))
        assert s3.reads(".pack") - before == blocks
        assert s3.reads("/manifest") == 5
        figures = relay.figures()
        assert figures["answered"] > 4 * blocks
        assert figures["kept_hits"] + figures["shared"] >= 3 * blocks
        assert all(store.counters["relay_reads"] and not store.counters["relay_detours"] for store in stores)
        assert json.loads(site.ask("/figures"))["brought"] == figures["brought"] == blocks + 5
        assert f"etude_relay_brought_total {blocks + 5}.0" in site.ask("/metrics").decode()
        assert f"etude_relay_held_bytes {float(figures['held_bytes'])}" in site.ask("/metrics").decode()
    with site.running() as relay:  # what was kept is kept over a restart
        assert same(Subscriber(site.replica()).fetch(None, None, V(4))[0], CHAIN[4])
        assert s3.reads(".pack") - before == blocks
        assert relay.figures()["brought"] <= 5  # manifests: whether they still stand it asks anew


def test_whoever_watches_over_a_relay_needs_no_token(site: Site) -> None:
    with site.running(), urllib.request.urlopen(f"{site.url}/health", timeout=30) as answer:
        assert (answer.status, json.loads(answer.read())) == (200, {"status": "ok"})


def test_who_may_read(s3: S3Server, site: Site, tmp_path: Path) -> None:
    publish(s3, 1)
    with site.running():
        other = tmp_path / "other"
        other.write_text("another token of many characters")
        other.chmod(0o600)
        with pytest.raises(WeightError, match="check the URL and your rights to it"):
            Subscriber(site.replica(token_file=other)).latest()
        for path, headers, status in [
            ("/figures", {"Host": "rebound.example"}, 403),
            ("/figures", {"Origin": "http://page.example"}, 403),
            ("/objects/versions/00000000/../../etc/passwd", {}, 404),
            ("/objects/other/key", {}, 404),
            ("/lists/other", {}, 404),
            ("/objects/versions/00000000/nothing", {}, 404),
        ]:
            with pytest.raises(urllib.error.HTTPError) as said:
                site.ask(path, **headers)
            assert said.value.code == status, path
        with pytest.raises(urllib.error.HTTPError) as said:
            site.ask("/lists/versions", "wrong")
        assert said.value.code == 401
    with pytest.raises(ConfigError, match="name the file that holds it"):
        open_store("memory://", StoreConfig(relay="http://127.0.0.1:1"))


def test_a_dead_relay_costs_little(s3: S3Server, site: Site) -> None:
    publish(s3, 2)
    with site.running():
        store = site.replica()
        bits, _ = Subscriber(store).fetch(None, None, V(0))
        assert store.counters["relay_detours"] == 0
    assert same(Subscriber(store).fetch(bits, V(0), V(1))[0], CHAIN[1])
    assert store.counters["relay_detours"] > 2


def test_a_dead_store_behind_a_relay(s3: S3Server, site: Site) -> None:
    """What the relay has kept does not help a replica that cannot know whether a manifest still stands; and the replica
    does not try in vain what its relay tried.
    """
    publish(s3, 1)
    site.origin = s3.store(deadline_s=1.0, block_bytes=BLOCK)
    with site.running():
        store = site.replica(deadline_s=5.0)
        bits, _ = Subscriber(store).fetch(None, None, V(0))
        s3.failures = 10_000
        with pytest.raises(DeadlineExceeded, match=r"for relay http://127.* to read .*504"):
            Subscriber(store).fetch(bits, V(0), V(0))
        s3.failures = 0
        assert same(Subscriber(store).fetch(None, None, V(0))[0], CHAIN[0])
        assert store.counters["relay_detours"] == 0


def test_damage_in_what_is_kept_is_healed(s3: S3Server, site: Site) -> None:
    publish(s3, 2)
    with site.running() as relay:
        bits, _ = Subscriber(site.replica()).fetch(None, None, V(0))
        for path in site.config.directory.iterdir():
            path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
        subscriber = Subscriber(site.replica())
        again, _ = subscriber.fetch(None, None, V(0))
        assert same(again, bits)
        assert subscriber.counters["refetches"] == 2  # the manifest, and the pack
        brought = relay.figures()["brought"]
        assert same(Subscriber(site.replica()).fetch(None, None, V(0))[0], bits)
        assert relay.figures()["brought"] == brought


def test_a_rewind_is_seen_through_the_relay(s3: S3Server, site: Site) -> None:
    publisher = publish(s3, 3)
    other = move_bits(CHAIN[1], 77)
    with site.running():
        subscriber = Subscriber(site.replica())
        subscriber.fetch(None, None, V(2))
        publisher.rewind(V(1))
        assert subscriber.latest() == 1
        publisher.publish(V(2), other)
        assert same(subscriber.fetch(None, None, V(2))[0], other)


def test_what_is_kept_is_bounded(s3: S3Server, tmp_path: Path) -> None:
    publish(s3)
    site = Site(s3, tmp_path, most_gb=8 * BLOCK / 1e9)
    with site.running() as relay:
        assert same(Subscriber(site.replica()).fetch(None, None, V(4))[0], CHAIN[4])
        figures = relay.figures()
        assert figures["evicted"] > 0
        assert figures["held_bytes"] == sum(path.stat().st_size for path in site.config.directory.iterdir())
        assert figures["held_bytes"] <= 8 * BLOCK


def test_a_full_disk_costs_the_keeping_and_nothing_else(s3: S3Server, site: Site, monkeypatch: Any) -> None:
    publish(s3, 1)

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with site.running() as relay:
        store = site.replica()
        monkeypatch.setattr(Path, "write_bytes", full)
        assert same(Subscriber(store).fetch(None, None, V(0))[0], CHAIN[0])
        assert relay.figures()["unkept"] > 3
        assert store.counters["relay_detours"] == 0


def test_the_command(s3: S3Server, tmp_path: Path) -> None:
    publish(s3, 2)
    (tmp_path / "relay.toml").write_text(
        f'port = 0\ntoken_file = "{tmp_path}/state/token"\ndirectory = "{tmp_path}/kept"\n'
        f"[store]\nblock_bytes = {BLOCK}\n[store.options]\n"
        + "".join(f'{key} = "{value}"\n' for key, value in s3.options.items())
    )
    command = [sys.executable, "-c", RUN, "weights", "relay", "s3://bucket/run"]
    process = subprocess.Popen(
        [*command, "--config", str(tmp_path / "relay.toml"), "--json"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        store = s3.store(relay=said["url"], token_file=said["token_file"], block_bytes=BLOCK)
        assert same(Subscriber(store).fetch(None, None, V(1))[0], CHAIN[1])
        assert isinstance(store, RelayedStore) and store.counters["relay_detours"] == 0
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
