"""A server whose engine is lent: the borrower gets its own policy, and users get theirs, whatever happens between."""

import asyncio
import random

import pytest
from engine_serving import serving
from small_models import plain_logits, random_decoder

from etude.engine.server.lending import LendingConfig
from etude.models.state import export_bits
from etude.records import Version
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher

PROMPT = list(range(3, 60))  # longer than a page, so that its prefix would be found in the cache
OWN, POLICIES = random_decoder(0), [random_decoder(seed) for seed in (1, 2, 3)]
HELD = export_bits(OWN)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores")
    publisher = Publisher(open_store(root / "run"))
    for version, policy in enumerate(POLICIES):
        publisher.publish(Version(version), export_bits(policy))
    return root


@pytest.fixture
def server(stores):
    with serving(random_decoder(0), lending=LendingConfig(stores=(str(stores),), quiet_s=0.0)) as made:
        yield made


def over(server, scenario, seconds=60):
    async def whole():
        async with asyncio.timeout(seconds), server.http() as http:
            return await scenario(http)

    return asyncio.run(whole())


async def borrowed(http, stores):
    return (await http.post("/loan", json={"borrower": "a run", "store": str(stores / "run")})).json()["lease"]


def asked(lease, count=12, session="g0/0", **given):
    body = {"lease": lease, "session_id": session, "prompt_ids": PROMPT, "max_tokens": count, "seed": 5}
    return {"url": "/loan/sample", "json": {**body, "temperature": 0, **given}}


def user(count=12):
    return {"token_ids": PROMPT, "sampling_params": {"max_tokens": count, "temperature": 0, "ignore_eos": True}}


def greedy(model, count=12):
    ids = list(PROMPT)
    for _ in range(count):
        ids.append(int(plain_logits(model, ids)[-1].argmax()))
    return ids[len(PROMPT) :]


async def state(http):
    return (await http.get("/lending")).json()


async def until(http, wanted):
    async with asyncio.timeout(30):
        while (now := await state(http))["state"] != wanted:
            await asyncio.sleep(0.005)
    return now


def tokens(answer):
    assert answer.status_code == 200, answer.text
    told = answer.json()["choices"][0]
    return [each["token_id"] for each in told["logprobs"]["content"]]


def holds_own(server):
    held = export_bits(server.service.engine.decoder)
    return all((held[name] == HELD[name]).all() for name in HELD)


def test_each_use_is_served_by_its_own_weights_under_the_same_version_and_prompt(server, stores):
    async def scenario(http):
        own, policy = greedy(OWN), [greedy(each) for each in POLICIES]
        assert own not in policy
        for _ in range(2):
            assert tokens(await http.post("/generate", json=user())) == own
            lease = await borrowed(http, stores)
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/health")).status_code == 200
            for version, expected in enumerate(policy):
                loaded = (await http.post("/loan/load", json={"lease": lease, "version": version})).json()["loaded"]
                assert loaded["version"] == version and loaded["root"]
                told = (await http.post(**asked(lease, session=f"g{version}/0"))).json()
                assert (told["token_ids"], set(told["versions"])) == (expected, {version})
                assert told["finish"] == "length" and told["routed_experts"]
            assert (await http.get("/weight_info")).json()["version"] == 0  # of what users are served with
            assert (await http.post("/loan/end", json={"lease": lease})).json()["seconds"] < 30
            assert (await http.get("/ready")).status_code == 200
        assert tokens(await http.post("/generate", json=user())) == own
        assert server.service.lending.counters["roots_verified"] == 2

    over(server, scenario)
    assert holds_own(server) and server.at_rest()


def test_a_users_request_recalls_the_engine_and_is_served_by_the_users_weights(server, stores):
    async def scenario(http):
        lease = await borrowed(http, stores)
        await http.post("/loan/load", json={"lease": lease, "version": 1})
        waiting = asyncio.ensure_future(http.post("/loan/wait", json={"lease": lease, "seconds": 30}))
        rollouts = [asyncio.ensure_future(http.post(**asked(lease, 190, f"g0/{n}"))) for n in range(6)]
        while server.service.engine.stats()["running"] < 6:
            await asyncio.sleep(0.001)
        users = await asyncio.gather(*(http.post("/generate", json=user()) for _ in range(4)))
        assert [tokens(answer) for answer in users] == [greedy(OWN)] * 4
        for gone in [*await asyncio.gather(*rollouts), await http.post(**asked(lease))]:
            assert (gone.status_code, gone.json()["error"]["code"]) == (410, "loan_over")
        assert (await waiting).json() == {"over": True}
        now = await state(http)
        assert now["returns"] == {"a user's request": 1} and now["returns_late"] == 0
        assert 0 < now["last_return_s"] <= now["return_s"]
        assert now["uses"]["rollouts"]["busy_s"] > 0 < now["uses"]["users"]["busy_s"]
        figures = (await http.get("/metrics")).text
        for line in ('lending_seconds_total{use="rollouts"}', "lending_loans_total 1.0", "lending_lent 0.0"):
            assert f"etude_engine_{line}" in figures
        assert 'etude_engine_requests_total{outcome="ok",route="/generate"} 4.0' in figures  # rollouts are no users'

    over(server, scenario)
    assert holds_own(server) and server.at_rest()


def test_whenever_it_is_recalled_the_users_weights_come_back(server, stores):
    async def scenario(http):
        draw, expected = random.Random(3), greedy(OWN, 4)
        for _ in range(12):
            lease = await borrowed(http, stores)
            version = draw.randrange(3)
            busy = [
                asyncio.ensure_future(http.post("/loan/load", json={"lease": lease, "version": version})),
                *(asyncio.ensure_future(http.post(**asked(lease, 60, f"g{n}/0"))) for n in range(2)),
            ]
            await asyncio.sleep(draw.random() * 0.03)
            assert tokens(await http.post("/generate", json=user(4))) == expected
            assert {answer.status_code for answer in await asyncio.gather(*busy)} <= {200, 410}
            assert holds_own(server)

    over(server, scenario)


def test_who_may_borrow_and_when(stores):
    config = LendingConfig(stores=(f"file://{stores}/",), quiet_s=60.0, lease_s=0.2)

    async def refused(http, code, **changed):
        body = {"borrower": "a run", "store": str(stores / "run"), **changed}
        answer = await http.post("/loan", json=body)
        assert answer.json()["error"]["code"] == code, answer.text

    async def scenario(http):
        await refused(http, "not_lent")  # it has just started
        server.service.lending._quiet_since -= 60
        await refused(http, "store_not_allowed", store="/etc")
        await refused(http, "store_not_allowed", store=f"{stores}/../elsewhere")
        await refused(http, "invalid_value", expert_format="mxfp8")
        slow = asyncio.ensure_future(http.post("/generate", json=user(150)))
        while not server.service.under_way:
            await asyncio.sleep(0.001)
        await refused(http, "not_lent")
        assert (await slow).status_code == 200
        server.service.lending._quiet_since -= 60
        lease = await borrowed(http, stores)
        await refused(http, "not_lent")  # it is lent
        assert (await http.post(**asked("another's"))).json()["error"]["code"] == "loan_over"
        assert (await until(http, "serving"))["returns"] == {"a lease that ran out": 1}  # nobody was heard of
        assert (await http.post(**asked(lease))).json()["error"]["code"] == "loan_over"

    with serving(random_decoder(0), lending=config) as server:
        over(server, scenario)


def test_a_server_that_lends_nothing_says_so():
    async def scenario(http):
        answer = await http.post("/loan", json={"borrower": "a run", "store": "/runs/x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_lending")

    with serving(random_decoder(0)) as server:
        over(server, scenario)


def test_a_borrower_that_hangs_up_leaves_nothing_behind(server, stores):
    async def scenario(http):
        lease = await borrowed(http, stores)
        engine, asking = server.service.engine, asyncio.ensure_future(http.post(**asked(lease, 190)))
        while not engine.stats()["running"]:
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()  # or it was over before
        while engine.stats()["running"]:
            await asyncio.sleep(0.005)
        assert (await http.post("/loan/drop", json={"lease": lease, "session_ids": ["g0/0"]})).status_code == 200
        await http.post("/loan/end", json={"lease": lease})

    over(server, scenario)
    assert server.at_rest()
