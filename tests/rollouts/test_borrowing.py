"""When a run borrows engines and gives them back; real servers lend them."""

import asyncio
import pickle
import sys
from pathlib import Path

import pytest

from etude.config import parse
from etude.errors import ConfigError
from etude.models.state import export_bits
from etude.records import Version
from etude.rollouts.config import BorrowingConfig, RunConfig
from etude.rollouts.faults import Restarts
from etude.rollouts.fleet import Fleet, places_of
from etude.rollouts.lending import borrower
from etude.rollouts.lending.borrower import Decision, ServerStatus, decide, is_low
from etude.rollouts.lending.loan_link import LendingServer, LoanLink
from etude.rollouts.router import RemoteSampler
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from engine_serving import TOKEN, serving
from small_models import random_decoder

from etude.engine.server.lending import LendingConfig
from etude.harness.sampler import SampleRequest

CONFIG = BorrowingConfig(urls=("http://a",), keep=1, borrow_below=1.0)
POLICY = random_decoder(1)


def fleet_of(*servers):
    """Each is (users, state): s serving, w serving and willing, o lent to us, x lent to another."""
    return [
        ServerStatus(f"u{n}", users, state in "ox", state == "o", state == "w")
        for n, (users, state) in enumerate(servers)
    ]


@pytest.mark.parametrize(
    ("servers", "low_s", "decision"),
    [
        ([(0, "w"), (0, "w")], 5.0, Decision(borrow="u0")),
        ([(0, "w"), (0, "w")], 4.9, Decision()),  # not for long enough
        ([(1, "s"), (0, "w")], 5.0, Decision()),  # the one that is left would have one request: not fewer
        ([(1, "s"), (0, "w"), (0, "w")], 5.0, Decision(borrow="u1")),
        ([(0, "w"), (0, "o")], 60.0, Decision()),  # one is kept
        ([(0, "s"), (0, "s")], 60.0, Decision()),  # nobody is willing
        ([(2, "s"), (0, "o")], 0.0, Decision()),
        ([(3, "s"), (0, "o")], 0.0, Decision(give_back=("u1",))),
        ([(3, "s"), (0, "x")], 0.0, Decision()),  # another's to give back
        ([(1, "s"), (0, "o"), (4, "o"), (0, "o")], 0.0, Decision(give_back=("u2", "u1"))),  # where users wait, first
        ([(9, "s"), (0, "o"), (0, "o")], 0.0, Decision(give_back=("u1", "u2"))),
        ([], 60.0, Decision()),
    ],
)
def test_the_policy(servers, low_s, decision):
    assert decide(fleet_of(*servers), CONFIG, low_s) == decision


def test_nothing_is_kept_where_nobody_is_there():
    none_kept = CONFIG.model_copy(update={"keep": 0})
    assert is_low(fleet_of((0, "w")), none_kept) and not is_low(fleet_of((0, "w")), CONFIG)
    assert not is_low(fleet_of((1, "s")), none_kept)
    assert decide(fleet_of((1, "o")), none_kept, 0.0) == Decision(give_back=("u0",))


def recipe(**fleet):
    return parse({"name": "test", "fleet": fleet}, RunConfig, "recipe")


def test_what_a_recipe_may_not_say():
    with pytest.raises(ConfigError, match=r"fleet\.engines: 0"):
        places_of(recipe(engines=0))
    assert places_of(recipe(engines=0, lending={"urls": ["http://a:1"]})) == 0
    assert (places_of(recipe()), places_of(recipe(engines=3))) == (1, 3)
    foreign = {"kind": "vllm", "urls": ["http://a:1", "http://b:1"], "weights_dir": "/w"}
    assert places_of(parse({"name": "test", "engine": foreign}, RunConfig, "recipe")) == 2
    with pytest.raises(ConfigError, match=r"fleet\.engines: 1"):
        places_of(parse({"name": "test", "engine": foreign, "fleet": {"engines": 1}}, RunConfig, "recipe"))


def request(seed, tokens=40):
    return SampleRequest(f"g{seed}/0", (5, 6, 7), tokens, frozenset(), seed=seed)


async def user(server):
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 8, "temperature": 0, "ignore_eos": True}}
    async with server.http() as http:
        return (await http.post("/generate", json=body)).json()["choices"][0]["logprobs"]["content"]


def test_sessions_are_sampled_by_what_is_lent_and_go_on_after_users_took_it_back(tmp_path, monkeypatch):
    monkeypatch.setattr(borrower, "STEADY_S", 0.0)
    published = [Publisher(open_store(tmp_path / "run")).publish(Version(0), export_bits(POLICY))]
    (tmp_path / "token").write_text(TOKEN)

    async def scenario(server):
        lending = {
            "urls": [server.url], "token_file": str(tmp_path / "token"), "keep": 0,
        }  # fmt: skip
        config = recipe(engines=0, lending=lending)
        fleet = Fleet(config, str(tmp_path / "run"), Restarts(config.faults, tmp_path / "metrics.jsonl"))
        sampler = RemoteSampler(sample_deadline_s=30, engine_deadline_s=30)
        fleet.listeners.append(lambda view: sampler.update(pickle.loads(pickle.dumps(view))))  # as to another process
        before = await user(server)
        await fleet.deliver({"version": 0, "root": published[0].root})
        await fleet.start()
        alone = [await sampler.sample(request(seed)) for seed in range(4)]
        assert {version for each in alone for version in each.versions} == {0}
        assert [(each["lent"], each["version"], each["root"]) for each in fleet.about()] == [
            (True, 0, published[0].root)
        ]
        turns = [asyncio.ensure_future(sampler.sample(request(seed, 200))) for seed in range(4)]
        while server.service.engine.stats()["running"] < 4:
            await asyncio.sleep(0.001)
        assert await user(server) == before
        again = await asyncio.gather(*turns)
        assert [each.token_ids[:40] for each in again] == [each.token_ids for each in alone]
        assert sampler.router.counters["turns_resampled"] >= 4 == sampler.router.counters["sessions_moved"]
        told = await fleet.stats()
        assert (told["engines_borrowed"], told["engines_recalled"]) == (2, 1)
        assert fleet.lending()["uses"]["rollouts"]["busy"] > 0
        await fleet.close()
        assert server.service.lending.state == "serving"
        assert await user(server) == before

    config = LendingConfig(stores=(str(tmp_path),), quiet_s=0.0)
    with serving(random_decoder(0), lending=config) as server:
        asyncio.run(scenario(server))


def test_a_link_is_the_same_in_another_process(tmp_path):
    link = LoanLink("lent-1", LendingServer("http://a:1", tmp_path / "token"), "lease", 15.0, 5.0)
    copy = pickle.loads(pickle.dumps(link))
    assert (copy.name, copy.lease, copy.server.url) == ("lent-1", "lease", "http://a:1")
