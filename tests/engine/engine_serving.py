"""Real servers of the engine for the tests: in a thread, on a free port, over a real engine."""

import threading
import time
from contextlib import contextmanager

import httpx2
import uvicorn
from small_models import random_decoder, shipped_tokenizer

from etude.engine.config import EngineConfig
from etude.engine.server.app import ServeConfig, application
from etude.engine.server.service import Service
from etude.engine.server.turns import Turns
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.models.chat import ChatRenderer
from etude.serving.trust import trust
from etude.weights.opening import open_store
from etude.weights.subscriber import Subscriber

TOKEN = "a-token-of-the-tests"
READY_S = 30


class Serving:
    """One server. `service` is looked into once nothing is under way."""

    def __init__(self, service, url):
        self.service, self.url = service, url

    def http(self, **headers):
        """A client that has the token, unless it is given other headers."""
        sent = {"Authorization": f"Bearer {TOKEN}", **headers}
        believed = trust(self.url)
        return httpx2.AsyncClient(base_url=self.url, headers=sent, timeout=240, trust_env=False, verify=believed)

    def at_rest(self, within_s=10):
        """Whether everything that was let in has ended and given back what it held."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            now = self.service.engine.stats()
            if not self.service.under_way and not self.service.named and not now["running"] and not now["waiting"]:
                return now["pages_held"] == 0 or now["sessions_idle"] > 0
            time.sleep(0.01)
        return False


def waiting(silence_s, config):
    """The same config, of an engine whose requests may stand still for so long."""
    return type("Waiting", (EngineConfig,), {"__module__": __name__, "silence_s": silence_s})(**config.model_dump())


@contextmanager
def serving(decoder=None, tokenizer=None, store=None, engine=None, silence_s=None, kind=Service, **config):
    """A server for as long as the block lasts. `kind` makes its service."""
    settings = ServeConfig(engine=engine or EngineConfig(cache_tokens=8192), **config)
    made = TorchEngine(
        decoder or random_decoder(), settings.engine if silence_s is None else waiting(silence_s, settings.engine)
    )
    service = kind(
        engine=made,
        chat=ChatRenderer(tokenizer or shipped_tokenizer()),
        model=settings.name or "small",
        max_waiting=settings.max_waiting,
        updates=None if store is None else WeightUpdates(made, Subscriber(open_store(store))),
        memory=Turns(settings.remembered_tokens),
        loans=settings.lending,
    )
    app = application(service, settings, TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + READY_S
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end, "the server did not start"
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Serving(service, f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        thread.join(READY_S)
        made.close()
    assert not thread.is_alive(), "the server did not end"


def said_in(stream_text):
    """The data of server-sent events."""
    return [line.removeprefix("data: ") for line in stream_text.splitlines() if line.startswith("data: ")]
