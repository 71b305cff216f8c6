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
from small_models import SHAPE, random_decoder
from witness import Witness, logits_of_versions

from etude.engine.config import EngineConfig
from etude.engine.sampling import Truncation, distribution, draw, uniform
from etude.models.state import export_bits
from etude.records import Version
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher

REQUESTS = int(os.environ.get("ETUDE_SOAK_REQUESTS", "240"))
CLIENTS, SWAP_EVERY_S = 64, 0.3
STUCK_S = 120 + REQUESTS
NEAR = 1e-3
"""Two choices closer than this are a tie for fp32 in another order."""
ROUTER_TIE = 1e-4
"""A router that chose by less than this may choose otherwise in another order; one context in a hundred has such."""
ROOM = EngineConfig(cache_tokens=2304, step_tokens=128, max_running=24)
MOST_NEW = 90


def may_be(logits, asked, position, token):
    """Whether sampling from these logits gives this token, to fp32's precision."""
    if asked["temperature"] == 0:
        return bool(logits.max() - logits[token] < NEAR)
    cut = Truncation(top_k=asked.get("top_k", 0))
    row = distribution(logits[None], [asked["temperature"]], [cut])
    number = uniform(asked["seed"], position)
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
        self.prefix = [self.rng.randrange(3, 1000) for _ in range(64)]

    def model(self, version):
        return self.models[version % 3]

    async def run(self):
        self.publisher.publish(Version(0), export_bits(self.model(0)))
        queue = iter(range(REQUESTS))
        swapping = asyncio.ensure_future(self.swap())
        began = time.monotonic()
        async with asyncio.timeout(STUCK_S):
            await asyncio.gather(*(self.client(number, queue) for number in range(CLIENTS)))
        self.seen["seconds"] = round(time.monotonic() - began, 1)
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

    async def client(self, number, queue):
        rng, said = random.Random(number), []
        async with self.server.http() as http:
            for request in queue:
                said = await self.one(http, rng, request, f"s{number}", said)

    async def one(self, http, rng, number, session, said):
        """One request; returns what its session may go on from."""
        asked = {"max_tokens": rng.choice((1, 4, 20, 60, MOST_NEW)), "seed": number, "temperature": rng.choice((0, 1))}
        if asked["temperature"] and rng.random() < 0.5:
            asked["top_k"] = 8
        in_session = rng.random() < 0.4
        ids = said if in_session else self.prefix[: rng.choice((0, 0, 30, 64))]
        room = SHAPE.max_context - MOST_NEW - len(ids)
        if room < 1:
            ids, room = [], 90
        ids = [*ids, *(rng.randrange(3, 1000) for _ in range(rng.randint(1, min(room, 90))))]
        body = {"token_ids": ids, "sampling_params": asked, "stream": rng.random() < 0.5}
        if in_session:
            body["session_id"] = session
        patience = rng.choice((0.02, 0.1, 0.3)) if rng.random() < 0.25 else STUCK_S
        for _ in range(10_000):
            try:
                async with asyncio.timeout(patience):
                    answer = await http.post("/generate", json=body)
            except TimeoutError:
                self.seen["cancelled"] += 1
                return []
            if answer.status_code != 429:
                break
            self.seen["busy"] += 1
            await asyncio.sleep(0.05)
        assert answer.status_code == 200, answer.text
        tokens, versions, reason = tokens_of(answer, body["stream"])
        self.answers.append((ids, asked, tokens, versions, reason))
        return [*ids, *tokens] if in_session else said

    def check(self, witness, stops):
        """Every token of every answer, by plain recomputation of its context, each position by its own version."""
        for ids, asked, tokens, versions, reason in self.answers:
            assert versions == sorted(versions) and len(versions) == len(tokens)
            assert (len(tokens) == asked["max_tokens"]) == (reason == "length") or tokens[-1] in stops
            known = 0
            for start, known, context in witness.spans(asked["seed"]):
                logits, margins = logits_of_versions(self.model, [*ids, *tokens], context)
                for place in range(start, known):
                    at = len(ids) + place
                    assert context[at - 1] == versions[place]
                    if not may_be(logits[at - 1], asked, at, tokens[place]):  # only another expert excuses that
                        assert margins[:at].min() < ROUTER_TIE, (ids, asked, place)
                        self.seen["router_ties"] += 1
                    self.seen["mixed_contexts"] += len(set(context[:at].tolist())) > 1
            assert known == len(tokens)
            self.seen["tokens"] += len(tokens)


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
@pytest.mark.proof(6)
def test_a_busy_server_says_no_wrong_token_and_loses_nothing(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    with serving(random_decoder(0), store=tmp_path, engine=ROOM, silence_s=STUCK_S, max_waiting=24) as server:
        engine = server.service.engine
        soak, witness = Soak(server, tmp_path), Witness(monkeypatch, engine)
        asyncio.run(soak.run())
        assert server.at_rest()
        for session in list(engine._idle):
            engine.cancel(session)
        end = time.monotonic() + 60
        while engine.stats()["pages_held"] and time.monotonic() < end:
            time.sleep(0.01)
        engine.cache.check([])  # every page is free, or rests in the prefix index alone
        soak.check(witness, server.service.chat.stop_ids)
        seen, counted = soak.seen, engine.counters
        print(json.dumps({"clients": seen, "engine": counted}))
        assert len(soak.answers) + seen["cancelled"] == REQUESTS
        assert seen["router_ties"] <= seen["tokens"] / 1000
        for happened in ("cancelled", "swaps", "mixed_contexts"):
            assert seen[happened], happened
        for feature in ("in_flight_swaps", "cancelled", "preemptions", "prefix_hit_tokens", "sessions_evicted"):
            assert counted[feature], feature
