"""Many clients, requests of mixed length, cancels and weight swaps: no wrong token, no page lost, nobody stuck.

ETUDE_SOAK_REQUESTS=2000 runs the full size; without it, as many as fit a test run.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter

import pytest
import torch
from engine_serving import said_in, serving
from small_models import plain_logits, random_decoder

from etude.engine.config import EngineConfig
from etude.engine.sampling import Cut, distribution, draw, uniform
from etude.models.state import export_bits
from etude.records import Version
from etude.weights.publisher import Publisher
from etude.weights.store import open_store

REQUESTS = int(os.environ.get("ETUDE_SOAK_REQUESTS", "240"))
CLIENTS, SWAP_EVERY_S, STEPS = 64, 0.5, 40
STUCK_S = 120 + REQUESTS
NEAR = 1e-3
"""Two choices closer than this are a tie for fp32 in another order."""
ROOM = EngineConfig(cache_tokens=2048, step_tokens=64, max_running=24, request_deadline_s=STUCK_S)


def may_be(logits, asked, seed, position, token):
    """Whether sampling from these logits gives this token, to fp32's precision."""
    if asked["temperature"] == 0:
        return bool(logits.max() - logits[token] < NEAR)
    cut = Cut(top_k=asked.get("top_k", 0))
    row = distribution(logits[None], [asked["temperature"]], [cut])
    number = uniform(seed, position)
    if any(draw(row, [1.0], [min(max(number + nudge, 0), 1)]) == [token] for nudge in (0, -NEAR, NEAR)):
        return True
    best = logits.sort(descending=True).values  # a tie at the cut decides what the rest is scaled by
    return bool(cut.top_k and best[cut.top_k - 1] - best[cut.top_k] < NEAR)


class Soak:
    """The clients, the swaps, and what they saw."""

    def __init__(self, server, store):
        self.server, self.models = server, [random_decoder(seed) for seed in range(3)]
        self.publisher = Publisher(open_store(store))
        self.rng, self.seen = random.Random(0), Counter()
        self.version, self.done, self.answers = 0, False, []
        self.admitted = {}
        self.prefix = [self.rng.randrange(3, 1000) for _ in range(64)]

    def model(self, version):
        return self.models[version % 3]

    async def run(self):
        self.publisher.publish(Version(0), export_bits(self.model(0)))
        queue = iter(range(REQUESTS))
        swapping = asyncio.ensure_future(self.swap())
        async with asyncio.timeout(STUCK_S):
            await asyncio.gather(*(self.client(number, queue) for number in range(CLIENTS)))
        self.done = True
        await swapping

    async def swap(self):
        async with self.server.http() as http:
            while not self.done:
                began = time.monotonic()
                bits = export_bits(self.model(self.version + 1))
                await asyncio.to_thread(self.publisher.publish, Version(self.version + 1), bits)
                told = (await http.post("/update_weights")).json()
                self.version = told["version"]
                self.seen["swaps"] += 1
                await asyncio.sleep(max(0, SWAP_EVERY_S - (time.monotonic() - began)))
                steps = self.server.service.engine.counters["steps"]
                # on a busy machine, too, a version lasts for some steps: else few prompts are computed by one alone
                while not self.done and self.server.service.engine.counters["steps"] < steps + STEPS:
                    await asyncio.sleep(0.01)

    async def client(self, number, queue):
        rng = random.Random(number)
        async with self.server.http() as http:
            for request in queue:
                await self.one(http, rng, request)

    async def one(self, http, rng, number):
        ids = [*self.prefix[: rng.choice((0, 0, 30, 64))], *(rng.randrange(3, 1000) for _ in range(rng.randint(1, 90)))]
        asked = {"max_tokens": rng.choice((1, 4, 20, 60, 90)), "seed": number, "temperature": rng.choice((0, 1))}
        if asked["temperature"] and rng.random() < 0.5:
            asked["top_k"] = 8
        body = {"token_ids": ids, "sampling_params": asked, "stream": rng.random() < 0.5}
        if rng.random() < 0.3:
            body["session_id"] = f"s{rng.randrange(20)}"
        for _ in range(10_000):
            try:
                async with asyncio.timeout(rng.choice((0.02, 0.1, 0.3)) if rng.random() < 0.25 else STUCK_S):
                    answer = await http.post("/generate", json=body)
            except TimeoutError:
                self.seen["cancelled"] += 1
                return
            if answer.status_code != 429:
                break
            self.seen["busy"] += 1
            await asyncio.sleep(0.05)
        assert answer.status_code == 200, answer.text
        self.answers.append((ids, asked, tokens_of(answer, body["stream"]), "session_id" in body))

    def watch(self, engine):
        """Note the version under which each request's prompt is begun; the last time, where it was preempted before."""
        admit = engine._admit

        def noting(running):
            if not running.sampled:
                self.admitted[running.seed] = engine.version
            admit(running)

        engine._admit = noting

    def check(self):
        """Every token whose whole context was computed by the version that sampled it, by plain recomputation."""
        for ids, asked, (tokens, versions, reason), in_session in self.answers:
            assert versions == sorted(versions) and len(versions) == len(tokens)
            assert (len(tokens) == asked["max_tokens"]) == (reason == "length") or tokens[-1] in self.stops
            self.seen["tokens"] += len(tokens)
            if versions[0] != self.admitted[asked["seed"]] or in_session:
                continue  # a swap came while its prompt was computed, or its session kept an older version's
            sure = versions.count(versions[0])
            logits = plain_logits(self.model(versions[0]), [*ids, *tokens[:sure]])
            for place in range(sure):
                at = len(ids) + place
                assert may_be(logits[at - 1], asked, asked["seed"], at, tokens[place]), (ids, asked, place)
            self.seen["verified"] += sure
            self.seen["across_swaps"] += sure < len(tokens)


def tokens_of(answer, streamed):
    """(tokens, their versions, why it ended)."""
    if not streamed:
        (choice,) = answer.json()["choices"]
        return choice["token_ids"], spread(choice["weight_versions"]), choice["finish_reason"]
    told = [json.loads(each) for each in said_in(answer.text) if each != "[DONE]"]
    assert not any("error" in each for each in told), told[-1]
    tokens = [token for each in told for token in each["choices"][0]["token_ids"]]
    last = told[-1]["choices"][0]
    return tokens, spread(last["weight_versions"]), last["finish_reason"]


def spread(spans):
    return [span["version"] for span in spans for _ in range(span["start"], span["end"])]


@pytest.mark.timeout(STUCK_S * 2 + 120)
def test_a_busy_server_says_no_wrong_token_and_loses_nothing(tmp_path):
    torch.set_num_threads(1)
    with serving(random_decoder(0), store=tmp_path, engine=ROOM, max_waiting=24) as server:
        soak = Soak(server, tmp_path)
        soak.stops = server.service.chat.stop_ids
        soak.watch(server.service.engine)
        asyncio.run(soak.run())
        assert server.at_rest()
        engine = server.service.engine
        for session in list(engine._idle):
            engine.cancel(session)
        end = time.monotonic() + 10
        while engine.stats()["pages_held"] and time.monotonic() < end:
            time.sleep(0.01)
        engine.cache.check([])  # every page is free, or rests in the prefix index alone
        soak.check()
        seen, counted = soak.seen, engine.counters
        print(json.dumps({**seen, **counted}))
        assert len(soak.answers) + seen["cancelled"] == REQUESTS
        assert seen["verified"] > seen["tokens"] / 4 and seen["cancelled"] and seen["across_swaps"]
        for feature in ("in_flight_swaps", "cancelled", "preemptions", "prefix_hit_tokens", "session_cache_tokens"):
            assert counted[feature], feature
