"""What it costs the users of a product that its engines are lent to rollouts, and what the rollouts get out of it.

    python benchmarks/lending.py [--rounds 3] [--quiet 6] [--spike 4] [--sessions 8]

Some `etude serve` processes answer users: few for a while, then a spike, then few again. A balancer sends each request
to the server with the fewest under way, of those that say they are ready. By turns the same users come to a fleet that
is not lent, and to one whose servers a run borrows: real sessions of the ladder in real sandboxes, sampled by whatever
is lent, of a policy whose versions are published meanwhile. Every user's request is the same work in both, and has the
same answer.

    p99_ratio, p50_ratio      users' latency, lent over unlent: the median of the rounds
    p99_s                     unlent and lent, over all rounds
    requests, failed, wrong   of users: how many, how many failed, how many had another answer than unlent
    given_back, recalled      returns that the run decided, and that a user's request brought about
    longest_return_s, bound_s the longest return as the servers measured it, and their bound
    longest_giving_back_s     from the run's decision until users were served
    roots_verified            returns after which the users' weights had the root from before
    rollouts, rollouts_lost   that came to their end, and that failed for infrastructure
    moved, resampled, waits   sessions that went to another engine, turns sampled again, waits for an engine
    rollouts_share            of the engines' time in the rounds that are lent
    users_busy, rollouts_busy how much of their time for either use the engines worked, all rounds together

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from etude.config import parse
from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.errors import EtudeError
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.models.state import export_bits
from etude.records import InfraFailed, Version
from etude.rewards.judgement import Judges
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import Restarts
from etude.rollouts.fleet import Fleet
from etude.rollouts.router import RemoteSampler
from etude.rollouts.session import RolloutRequest, play
from etude.tasks.ladder import ladder_task
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher

MODEL = Path(__file__).resolve().parent.parent / "models" / "etude-tiny"
END_S, ROLLOUT_S, ANSWER_S = 30.0, 240.0, 120.0
READY_EVERY_S = 0.05


@dataclass
class Users:
    """Those of one turn, and what became of them."""

    arrivals: list[tuple[float, int]]
    """When each comes, and the number that says what it asks."""
    tokens: int
    latencies: list[float] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)
    failed: int = 0


@dataclass
class Server:
    """One `etude serve`, as the balancer sees it."""

    url: str
    http: httpx2.AsyncClient
    ready: bool = True
    under_way: int = 0


class Balancer:
    """Sends users to the ready server with the fewest under way; where none is ready, to any."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            answers = await asyncio.gather(*(each.http.get("/ready") for each in self.servers))
            for server, answer in zip(self.servers, answers, strict=True):
                server.ready = answer.status_code == 200
            await asyncio.sleep(READY_EVERY_S)

    async def serve(self, users: Users) -> None:
        """All of them, each at its time; returns when the last has its answer."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for at, number in users.arrivals:
                await asyncio.sleep(max(began + at - time.monotonic(), 0.0))
                group.create_task(self._one(users, number))

    async def _one(self, users: Users, number: int) -> None:
        draw = random.Random(number)
        prompt = [draw.randrange(300, 900) for _ in range(24)]
        sampling = {"max_tokens": users.tokens, "ignore_eos": True, "seed": number}
        able = [each for each in self.servers if each.ready] or self.servers
        server = min(able, key=lambda each: each.under_way)
        server.under_way += 1
        began = time.monotonic()
        try:
            answer = await server.http.post("/generate", json={"token_ids": prompt, "sampling_params": sampling})
            told = answer.json()["choices"][0]
            users.answers[number] = [each["token_id"] for each in told["logprobs"]["content"]]
            users.failed += told["finish_reason"] != "length"
        except (httpx2.HTTPError, KeyError, ValueError):
            users.failed += 1
        finally:
            server.under_way -= 1
        users.latencies.append(time.monotonic() - began)


class Rollouts:
    """A run without a trainer: a fleet with nothing but what it is lent, and sessions that go on as long as asked."""

    def __init__(self, config: RunConfig, store: str, metrics: Path, backend: Backend, chat: ChatRenderer) -> None:
        self.config, self.backend, self.chat = config, backend, chat
        self.fleet = Fleet(config, store, Restarts(config.faults, metrics))
        self.sampler = RemoteSampler()
        self.fleet.listeners.append(self.sampler.update)
        self.counters: Counter[str] = Counter()
        self.ending = False

    async def sessions(self, count: int) -> None:
        """So many at a time until `ending`, then to the end of the last."""
        async with self.config.rewards.judges() as judges:
            await asyncio.gather(*(self._one_after_another(index, count, judges) for index in range(count)))

    async def _one_after_another(self, index: int, step: int, judges: Judges) -> None:
        while not self.ending:
            task = ladder_task(1 + index % 3, "train", index)
            order = RolloutRequest(f"g{index // 4}/{index % 4}", f"g{index // 4}", task, seed=index)
            async with asyncio.timeout(ROLLOUT_S):
                trajectory = await play(order, self.config, self.backend, self.sampler, self.chat, judges)
            self.sampler.ended(order.id)
            self.counters["rollouts_lost" if isinstance(trajectory.outcome, InfraFailed) else "rollouts"] += 1
            self.counters["rollout_tokens"] += trajectory.usage.get("sampled_tokens", 0)
            index += step

    async def follow(self, versions: Versions, every_s: float) -> None:
        """Publish and deliver until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            with suppress(EtudeError):  # an engine that is given back just now takes nothing up
                await self.fleet.deliver(await asyncio.to_thread(versions.publish))


class Versions:
    """A policy that changes: the base and ever more of noise, a version at a time."""

    def __init__(self, store: str) -> None:
        decoder, self.tokenizer = load_checkpoint(MODEL)
        self.bits = export_bits(decoder)
        self.publisher = Publisher(open_store(store))
        self.draw = np.random.default_rng(0)
        self.count = 0

    def publish(self) -> dict[str, Any]:
        """What the fleet is told of the next one."""
        for name, each in self.bits.items():
            flips = self.draw.random(each.shape) < 0.01
            self.bits[name] = each ^ flips.astype(np.uint16)  # the last bit of the significand
        done = self.publisher.publish(Version(self.count), self.bits)
        self.count += 1
        return {"version": int(done.version), "root": done.root}


async def rollouts_process(options: argparse.Namespace, home: Path, urls: list[str]) -> None:
    """The run, in a process of its own: a line on its input begins a turn, the next one ends it."""
    lending = {
        "urls": urls, "token_file": f"{home}/token", "keep": options.keep, "borrow_below": 0.75,
    }  # fmt: skip
    tool, store = {"max_observation_bytes": 1500}, f"{home}/run/weights"
    recipe = {"name": "lending", "harness": {"tool": tool}, "fleet": {"engines": 0, "lending": lending}}
    config, versions, backend = parse(recipe, RunConfig, "lending"), Versions(store), open_backend()
    chat = ChatRenderer(versions.tokenizer)
    print(json.dumps("ready"), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        run = Rollouts(config, store, home / "metrics.jsonl", backend, chat)
        await run.fleet.deliver(versions.publish())
        await run.fleet.start()
        sessions = asyncio.ensure_future(run.sessions(options.sessions))
        publishing = asyncio.ensure_future(run.follow(versions, options.version_every))
        await asyncio.to_thread(sys.stdin.readline)
        publishing.cancel()
        run.ending = True
        await sessions
        await run.fleet.close()
        assert run.fleet.lender is not None
        counted = run.counters + run.sampler.counted() + run.fleet.lender.counters
        giving_back_s = run.fleet.lender.longest_return_s
        told = {"longest_giving_back_s": giving_back_s, "versions": versions.count}
        print(json.dumps({**counted, **told}), flush=True)
    await backend.close()


def users_of(round_number: int, options: argparse.Namespace) -> Users:
    """The same in both turns of a round: few, a spike, few."""
    draw = random.Random(f"round {round_number}")
    arrivals: list[tuple[float, int]] = []
    at = 0.0
    parts = [(options.quiet, options.few), (options.spike, options.many), (options.quiet / 3, options.few)]
    for seconds, rate in parts:
        end = at + seconds
        while (at := at + draw.expovariate(rate)) < end:
            arrivals.append((at, draw.getrandbits(32)))
        at = end
    return Users(arrivals, options.tokens)


def started(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    """A process that is ended with the stack."""
    process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()

    stack.callback(end)
    return process


def heard(process: subprocess.Popen[str]) -> Any:
    """The next line it says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a process of the benchmark ended; its error is above")
    return json.loads(line)


def serving(options: argparse.Namespace, home: Path, stack: ExitStack) -> dict[str, Any]:
    """One `etude serve`; returns what it says of itself."""
    lending = [f'lending.stores=["{home}"]', f"lending.quiet_s={options.server_quiet}"]
    sets = ["port=0", f"token_file={home}/token", "threads=1", f"lending.return_s={options.bound}", *lending]
    given = [part for each in sets for part in ("--set", each)]
    return heard(started(stack, "-m", "etude.cli.main", "serve", str(MODEL), "--json", *given))


class Bench:
    """The servers, the run that borrows them, and the turns over them."""

    def __init__(self, options: argparse.Namespace, servers: list[Server], run: subprocess.Popen[str]) -> None:
        self.options, self.servers, self.run = options, servers, run
        self.balancer = Balancer(servers)
        self.counters: Counter[str] = Counter()
        self.longest_giving_back_s = 0.0

    async def unlent(self, users: Users) -> None:
        await self.balancer.serve(users)

    async def lent(self, users: Users) -> None:
        """The same users while a run borrows what it can."""
        self._say("begin")
        await self.balancer.serve(users)
        self._say("end")
        told = await asyncio.to_thread(heard, self.run)
        self.longest_giving_back_s = max(self.longest_giving_back_s, told.pop("longest_giving_back_s"))
        self.counters["versions"] = told.pop("versions")
        self.counters.update(told)

    def _say(self, line: str) -> None:
        assert self.run.stdin is not None
        self.run.stdin.write(f"{line}\n")
        self.run.stdin.flush()

    async def used(self) -> dict[str, Any]:
        """What all servers tell of their engines' uses, together."""
        told = [(await each.http.get("/lending")).json() for each in self.servers]
        uses = {use: [each["uses"][use] for each in told] for use in ("users", "rollouts", "moving")}
        return {
            "seconds": {use: sum(each["seconds"] for each in values) for use, values in uses.items()},
            "busy_s": {use: sum(each["busy_s"] for each in values) for use, values in uses.items()},
            "longest_return_s": max(each["longest_return_s"] for each in told),
            "late": sum(each["returns_late"] for each in told),
            "roots_verified": sum(each["roots_verified"] for each in told),
            "recalled": sum(each["returns"].get("a user's request", 0) for each in told),
        }


async def measure(bench: Bench) -> dict[str, Any]:
    """By turns: unlent, lent."""
    options, lent_s = bench.options, 0.0
    watching = asyncio.ensure_future(bench.balancer.watch())
    await bench.unlent(users_of(-1, options))  # the first tokens of a process are slower
    turns: dict[str, list[Users]] = {"unlent": [], "lent": []}
    for number in range(options.rounds):
        for turn in ("unlent", "lent") if number % 2 == 0 else ("lent", "unlent"):
            users, began = users_of(number, options), time.monotonic()
            await (bench.lent(users) if turn == "lent" else bench.unlent(users))
            turns[turn].append(users)
            lent_s += (time.monotonic() - began) * len(bench.servers) * (turn == "lent")
            p99 = quantile(users.latencies, 0.99)
            p50 = quantile(users.latencies, 0.5)
            print(f"round {number}, {turn}: {len(users.latencies)} requests, p50 {p50:.3f} s, p99 {p99:.3f} s")
    watching.cancel()
    return figures(bench, turns, await bench.used(), lent_s)


def figures(bench: Bench, turns: dict[str, list[Users]], used: dict[str, Any], lent_s: float) -> dict[str, Any]:
    """The JSON line."""
    both = list(zip(turns["lent"], turns["unlent"], strict=True))
    every = [users for of_turn in turns.values() for users in of_turn]
    wrong = sum(lent.answers.get(n) != answer for lent, unlent in both for n, answer in unlent.answers.items())
    counters, seconds, busy = bench.counters, used["seconds"], used["busy_s"]

    def ratio(share: float) -> float:
        return statistics.median(
            quantile(lent.latencies, share) / quantile(unlent.latencies, share) for lent, unlent in both
        )

    def over_all(turn: str) -> float:
        return quantile([each for users in turns[turn] for each in users.latencies], 0.99)

    return {
        "p99_ratio": ratio(0.99), "p50_ratio": ratio(0.5), "p99_s": [over_all("unlent"), over_all("lent")],
        "requests": sum(len(users.latencies) for users in every), "failed": sum(users.failed for users in every),
        "wrong": wrong, "borrowed": counters["engines_borrowed"], "given_back": counters["engines_given_back"],
        "recalled": used["recalled"], "longest_return_s": used["longest_return_s"], "bound_s": bench.options.bound,
        "late": used["late"], "longest_giving_back_s": bench.longest_giving_back_s,
        "roots_verified": used["roots_verified"], "rollouts": counters["rollouts"],
        "rollouts_lost": counters["rollouts_lost"], "rollout_tokens": counters["rollout_tokens"],
        "moved": counters["sessions_moved"], "resampled": counters["turns_resampled"],
        "waits": counters["engine_waits"], "versions": counters["versions"],
        "rollouts_share": seconds["rollouts"] / lent_s,
        "users_busy": busy["users"] / seconds["users"], "rollouts_busy": busy["rollouts"] / seconds["rollouts"],
    }  # fmt: skip


def quantile(values: list[float], share: float) -> float:
    """The smallest value that so much of them do not exceed."""
    return sorted(values)[max(int(np.ceil(share * len(values))) - 1, 0)]


async def run(options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = [serving(options, home, stack)["url"] for _ in range(options.servers)]
        borrower = started(stack, __file__, *sys.argv[1:], "--borrow", str(home), *urls)
        heard(borrower)
        headers = {"Authorization": f"Bearer {(home / 'token').read_text().strip()}"}
        servers = [
            Server(url, httpx2.AsyncClient(base_url=url, headers=headers, timeout=ANSWER_S, trust_env=False))
            for url in urls
        ]
        try:
            return await measure(Bench(options, servers, borrower))
        finally:
            for each in servers:
                await each.http.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="each has a turn unlent and one lent")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--keep", type=int, default=1, help="servers that are never lent at once")
    parser.add_argument("--sessions", type=int, default=8, help="rollouts at a time")
    parser.add_argument("--quiet", type=float, default=6.0, help="seconds with few users, before the spike")
    parser.add_argument("--spike", type=float, default=4.0, help="seconds with many")
    parser.add_argument("--few", type=float, default=1.0, help="users a second")
    parser.add_argument("--many", type=float, default=12.0)
    parser.add_argument("--tokens", type=int, default=48, help="of every answer")
    parser.add_argument("--server-quiet", type=float, default=0.5, help="seconds without users before one is lent")
    parser.add_argument("--bound", type=float, default=5.0, help="seconds for a return")
    parser.add_argument("--version-every", type=float, default=1.0, help="seconds between versions of the policy")
    parser.add_argument("--borrow", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.borrow:
        home, *urls = options.borrow
        return asyncio.run(rollouts_process(options, Path(home), urls))
    figures = asyncio.run(run(options))
    print(json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}))


if __name__ == "__main__":
    main()
