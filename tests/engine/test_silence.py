"""A request has a deadline on silence, and none on the whole answer."""

import asyncio

from engine_serving import serving

from etude.engine.config import EngineConfig

GENERATE = "/generate"
ROOM = EngineConfig(cache_tokens=8192, max_running=4)


def over(server, scenario, seconds=60):
    async def whole():
        async with asyncio.timeout(seconds), server.http() as http:
            return await scenario(http)

    return asyncio.run(whole())


def ask(count):
    sampling = {"max_tokens": count, "temperature": 0, "ignore_eos": True}
    return {"token_ids": list(range(3, 20)), "sampling_params": sampling}


async def stepped(engine, answer):
    """One step further, unless the answer is there before."""
    before = engine.counters["steps"]
    while engine.counters["steps"] == before and not answer.done():
        await asyncio.sleep(0.002)


def test_an_answer_that_grows_has_no_deadline():
    """Sampling pauses between tokens, together for longer than the deadline on silence."""

    async def scenario(http):
        engine = server.service.engine
        answer = asyncio.ensure_future(http.post(GENERATE, json=ask(200)))
        for _ in range(10):
            await stepped(engine, answer)
            await asyncio.wrap_future(engine.pause())
            await asyncio.sleep(0.5)
            engine.resume()
        told = (await answer).json()["choices"][0]
        assert (told["finish_reason"], len(told["token_ids"])) == ("length", 200)

    with serving(engine=ROOM, silence_s=4.0) as server:
        over(server, scenario)


def test_an_answer_that_stands_still_is_told_as_far_as_it_came():
    async def scenario(http):
        engine = server.service.engine
        answer = asyncio.ensure_future(http.post(GENERATE, json=ask(200)))
        while not engine.counters["decode_tokens"]:
            await asyncio.sleep(0.002)
        await asyncio.wrap_future(engine.pause())
        told = (await answer).json()["choices"][0]
        assert told["finish_reason"] == "abort" and 0 < len(told["token_ids"]) < 200
        engine.resume()

    with serving(engine=ROOM, silence_s=1.0) as server:
        over(server, scenario)
        assert server.at_rest()
