"""The engine's server as a process: its config, its application, and how it starts and stops.

Owns what is served (a checkpoint, and the weight store it follows), the order of starting and of stopping: at SIGTERM
new requests are refused, running ones have `drain_s`, then they end with what they have. Access is checked by the
guard that all our servers share; put something that speaks TLS before it where it does not listen on loopback alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request

from etude.deadlines import DeadlineConfig
from etude.engine.config import EngineConfig
from etude.engine.server.anthropic import Messages
from etude.engine.server.chat import Chat
from etude.engine.server.completions import Completions
from etude.engine.server.control import Control
from etude.engine.server.embeddings import EMBEDDINGS
from etude.engine.server.errors import answer_of
from etude.engine.server.generate import Generate
from etude.engine.server.lending import LendingConfig
from etude.engine.server.loans import Loans
from etude.engine.server.openapi import openapi
from etude.engine.server.responses import Responses
from etude.engine.server.service import Service
from etude.engine.server.turns import Turns
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.host.home import default_home
from etude.host.sockets import noted
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint
from etude.models.config import ExpertFormat
from etude.models.expert_format import set_expert_format
from etude.models.generation import read_generation
from etude.serving.http import handlers
from etude.serving.openapi import routes_of, served
from etude.serving.process import ApiConfig, Port, Server, listening
from etude.serving.token import own_token
from etude.serving.wire import Answer
from etude.weights.opening import open_store
from etude.weights.store import StoreConfig
from etude.weights.subscriber import Subscriber, SubscriberConfig


class ServeConfig(ApiConfig):
    """Where the server listens, who may use it, and what it serves."""

    port: Port = 8450
    name: str | None = None
    """What the model is called in requests. None: the name of its directory."""
    max_waiting: int = Field(256, ge=0)
    """Choices let in beyond those the engine runs together; more are told to come again."""
    remembered_tokens: int = Field(4_000_000, ge=0)
    """Token ids kept of past conversations, so that they go on from what was sampled."""
    threads: int = Field(0, ge=0)
    """Threads of the model's arithmetic; 0 leaves it to torch."""
    store: str | None = None
    """The weight store that /update_weights takes versions from: a directory or a URL."""
    follow_s: float = Field(0.0, ge=0)
    """How often the store is looked at for a newer version, which is then served. 0: when /update_weights says so."""
    region: str = ""
    """Under which name the lag behind the trainer is exported."""
    expert_format: ExpertFormat = "plain"
    """How the model's experts multiply: as its trainer does (`model.expert_format` of its recipe)."""
    lending: LendingConfig | None = None
    """With it, the engine is lent to rollouts while its users are quiet."""
    deadlines: DeadlineConfig = DeadlineConfig()
    weight_store: StoreConfig = StoreConfig()
    subscriber: SubscriberConfig = SubscriberConfig()
    engine: EngineConfig = EngineConfig()

    @property
    def token_path(self) -> Path:
        return self.token_file or default_home() / "engine" / "token"


def application(service: Service, config: ServeConfig, token: str) -> Starlette:
    """The ASGI application over an open engine, which it does not close."""
    asked = (Chat(service), Completions(service), Responses(service), Messages(service), Generate(service))
    loans = Loans(service, config.expert_format, config.weight_store, config.subscriber)
    rooms = (*asked, Control(service), loans)
    routes = [route for room in rooms for route in routes_of(room, others=("/v1/",))]
    routes += [served(openapi()), EMBEDDINGS]
    known = {route.path for route in routes}

    def refused(request: Request, answer: Answer) -> None:
        if answer.status < 500:  # what fails later is counted where it was let in
            service.figures.refused(request.url.path if request.url.path in known else "other")

    errors = handlers(answer_of, "engine", refused)
    return Starlette(routes=routes, middleware=[config.guard(token, answer_of)], exception_handlers=errors)


async def serve(model: Path, config: ServeConfig, ready: Callable[[str, list[str]], None]) -> None:
    """Serve a checkpoint until SIGTERM or Ctrl-C. `ready` is called with the URL once requests are answered, and with
    what was chosen for the one who serves.
    """
    with listening(config.host, config.port, config.hosts) as sock:
        service = open_service(model, config)
        following = None
        try:
            app = application(service, config, own_token(config.token_path))
            server = Server(
                app, lambda: service.drain(config.drain_s), lambda url: ready(url, remarks(service)), config.http
            )
            if service.updates is not None and config.follow_s:
                following = asyncio.create_task(service.updates.follow(config.follow_s))
            with noted(config.token_path, sock.getsockname()[1]):
                await server.serve(sockets=[sock])
        finally:
            if following is not None:
                following.cancel()
            service.engine.close()


def remarks(service: Service) -> list[str]:
    """What was chosen by what there is, and what the checkpoint asks for and is not done."""
    cache = service.engine.cache
    size = (cache.keys.nbytes + cache.values.nbytes) / 2**30
    said = [f"its cache holds {cache.positions:,} positions, {size:.2f} GiB (engine.cache_tokens)"]
    said += service.generation.remarks()
    return said


def open_service(model: Path, config: ServeConfig) -> Service:
    """Load a checkpoint and start its engine, which the caller closes."""
    if config.threads:
        torch.set_num_threads(config.threads)
    # a request's texts are tokenised on its own thread; threads of the library's own would have to survive forks
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    decoder, tokenizer = load_checkpoint(model)
    set_expert_format(decoder, config.expert_format)
    chat = open_chat(model, tokenizer)
    store = None if config.store is None else open_store(config.store, config.weight_store)
    engine = TorchEngine(decoder, config.engine)
    updates = None if store is None else WeightUpdates(engine, Subscriber(store, config.subscriber), config.region)
    return Service(
        engine=engine,
        chat=chat,
        model=config.name or model.resolve().name,
        max_waiting=config.max_waiting,
        updates=updates,
        memory=Turns(config.remembered_tokens),
        generation=read_generation(model, tokenizer),
        loans=config.lending,
    )
