"""Ranks that call rank 0, among strangers who reach its port too; and the network interface that they meet on."""

import os
import socket
import threading
from contextlib import ExitStack, suppress

import psutil
import pytest
import torch.distributed as dist

from etude.errors import DeadlineExceeded, EtudeError
from etude.trainer import followers
from etude.trainer.config import TrainerConfig
from etude.trainer.followers import Followers
from etude.trainer.greeting import KEY, hear
from etude.trainer.ranks import LOOPBACK, Setup, interface_of
from etude.weights.publisher import PublisherConfig
from etude.weights.store import StoreConfig


@pytest.fixture
def callers():
    """Calls somebody and says something; the lines stay open."""
    with ExitStack() as lines:

        def call(port, said=b""):
            line = lines.enter_context(socket.create_connection((LOOPBACK, port)))
            line.sendall(said)
            return line

        yield call


def test_ranks_are_heard_though_strangers_never_end(callers, monkeypatch):
    monkeypatch.setattr(followers, "START_S", 60.0)
    strangers = []

    def start(rank, meeting):
        for said in (b"", b"x", bytes(36), meeting.key[:-1], bytes(KEY) + rank.to_bytes(4), meeting.key + bytes(4)) * 5:
            strangers.append(callers(meeting.port, said))
        threading.Thread(target=callers, args=(meeting.port, meeting.key + rank.to_bytes(4))).start()

    ranks = Followers(3, LOOPBACK, start)
    assert sorted(ranks._lines) == [1, 2]
    for each in strangers:
        with suppress(ConnectionResetError):  # what it said was not read to its end
            assert each.recv(1) == b""
    ranks.close()


def test_strangers_use_up_no_descriptors(callers):
    key = bytes(range(KEY))
    with socket.create_server((LOOPBACK, 0), backlog=128) as server:
        port, before = server.getsockname()[1], psutil.Process().num_fds()
        calling = threading.Thread(
            target=lambda: [*(callers(port) for _ in range(300)), callers(port, key + b"\0\0\0\1")]
        )
        calling.start()
        [(rank, line)] = hear(server, key, [1], 120.0).items()
        calling.join()
        assert rank == 1 and psutil.Process().num_fds() == before + 301 + 1
        line.close()


def test_ranks_that_do_not_call_are_named(callers, monkeypatch):
    monkeypatch.setattr(followers, "START_S", 0.2)
    with pytest.raises(DeadlineExceeded, match="ranks 1, 2 of 3 to call rank 0"):
        Followers(3, LOOPBACK, lambda rank, meeting: callers(meeting.port, b"x"))


def test_an_interface_is_found_by_address_and_by_name_and_named_by_the_user(monkeypatch, tmp_path):
    assert interface_of(LOOPBACK) == interface_of("localhost") == "lo"
    setup = Setup(
        tmp_path, "plain", TrainerConfig(ranks={"fsdp": 1}), 1.0, "", StoreConfig(), PublisherConfig(),
        address="203.0.113.7",
    )  # fmt: skip
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with pytest.raises(EtudeError, match=r"no network interface .* 203\.0\.113\.7.* GLOO_SOCKET_IFNAME"):
        setup.join(dist.HashStore())
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    setup.join(dist.HashStore())
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo" and dist.get_world_size() == 1
    dist.destroy_process_group()
