"""Servers that speak vLLM's and SGLang's published HTTP and really answer: our own engine samples behind them.

A `StandIn` listens on a port of this machine and keeps the contract: token ids in and out, log-probabilities, routes in
the server's encoding, pauses, reloads from a checkpoint on disk, version names. `fault` makes it one of the servers
that the client must see through: "deaf" answers 200 to an update and changes nothing, "torn" leaves one matrix as it
was, "raw" leaves the temperature out of log-probabilities, "busy" refuses every other request.
"""

import asyncio
import base64
import io
import socket
import threading

import numpy as np
import torch
import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from etude.engine.config import EngineConfig
from etude.engine.foreign.check import logits_of
from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import SampleRequest
from etude.models.decoder import Decoder
from etude.models.published import published_tensors
from etude.models.state import export_bits
from etude.records import Version


def npy(routes):
    buffer = io.BytesIO()
    np.save(buffer, routes)
    return base64.b64encode(buffer.getvalue()).decode()


def table(routes):
    data = base64.b64encode(np.ascontiguousarray(routes).tobytes()).decode()
    return {"data": data, "shape": list(routes.shape), "dtype": str(routes.dtype), "start": 0}


def flat_int32(routes):
    return base64.b64encode(routes.astype("<i4").tobytes()).decode()


ENCODINGS = {"npy": npy, "table": table, "lists": lambda routes: routes.tolist(), "flat": flat_int32, "none": None}


class Aborted(Exception):
    pass


class StandIn:
    """Use as a context manager; `url` is where it listens."""

    def __init__(self, decoder, encoding, fault=None):
        self.engine = TorchEngine(decoder, EngineConfig(cache_tokens=16384))
        self.encode, self.fault = ENCODINGS[encoding], fault
        self.calls, self.seen, self.running = [], [], set()
        self.names, self.asked = {0: "default"}, 0
        server_config = uvicorn.Config(self.app(), log_level="warning", lifespan="off")
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = uvicorn.Server(server_config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.engine.resume()
        self.thread.join(120)
        self.engine.close()

    def app(self):
        routes = [Route(path, self.told(handler), methods=["GET", "POST"]) for path, handler in self.table().items()]
        return Starlette(routes=routes)

    def told(self, handler):
        async def endpoint(request):
            body = await request.json() if await request.body() else {}
            self.calls.append(request.url.path)
            self.asked += 1
            if self.fault == "busy" and self.asked % 2:
                return JSONResponse({"error": {"message": "too many requests"}}, 429, {"retry-after": "0"})
            return await handler(request, body)

        return endpoint

    async def sampled(self, http, ids, sampling, request_id, limit):
        """Sample, and stop when whoever asked is gone, as both servers do."""
        request = SampleRequest(
            request_id, tuple(ids), limit, frozenset(sampling["stop_token_ids"]), sampling["temperature"],
            sampling.get("seed", sampling.get("sampling_seed")), max(sampling["top_k"], 0), sampling["top_p"],
            sampling["min_p"],
        )  # fmt: skip
        self.running.add(request_id)
        try:
            task = asyncio.ensure_future(self.engine.sample(request))
            while not task.done():
                await asyncio.wait([task], timeout=0.02)
                if await http.is_disconnected():
                    self.engine.cancel(request_id)
            done = task.result()
        except asyncio.CancelledError:
            if request_id in self.running:
                raise
            raise Aborted from None
        finally:
            self.running.discard(request_id)
        return done, self.uncut(ids, done, 1.0) if self.fault == "raw" else list(done.logprobs)

    def uncut(self, ids, done, temperature):
        """Of the sampled tokens, under the distribution before anything was cut from it."""
        logits = logits_of(self.engine.decoder, [*ids, *done.token_ids])[len(ids) - 1 : -1] / temperature
        return logits.log_softmax(-1).gather(1, torch.tensor(done.token_ids)[:, None]).squeeze(1).tolist()

    def scored(self, ids):
        """Log-probability of every prompt token but the first."""
        rows = logits_of(self.engine.decoder, list(ids))[:-1].log_softmax(-1)
        return rows.gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1).tolist()

    def spans(self, versions):
        found = []
        for at, version in enumerate(versions):
            if found and found[-1]["version"] == self.names[version]:
                found[-1]["end"] = at + 1
            else:
                found.append({"version": self.names[version], "start": at, "end": at + 1})
        return found

    def put(self, directory, version):
        """Load a checkpoint as it lies on disk, into the published names."""
        if self.fault == "deaf":
            return
        fresh = Decoder(self.engine.decoder.config)
        stored, views = load_file(f"{directory}/model.safetensors"), published_tensors(fresh)
        assert stored.keys() == views.keys()
        for name, view in views.items():
            view.copy_(stored[name])
        bits = export_bits(fresh)
        if self.fault == "torn":
            matrix = next(name for name in sorted(bits) if bits[name].ndim > 1)
            bits[matrix] = export_bits(self.engine.decoder)[matrix]
        self.engine.swap(bits, version).result(30)

    def named(self, name):
        version = Version(int(name))
        self.names[version] = name
        return version

    def abort_all(self):
        gone, self.running = self.running, set()
        for request_id in gone:
            self.engine.cancel(request_id)

    async def idle(self):
        while self.running:
            await asyncio.sleep(0.01)


class VllmStandIn(StandIn):
    def table(self):
        return {
            "/inference/v1/generate": self.generate, "/pause": self.pause, "/resume": self.resume,
            "/collective_rpc": self.rpc, "/update_weight_version": self.rename, "/weight_info": self.info,
        }  # fmt: skip

    async def generate(self, request, body):
        sampling, ids = body["sampling_params"], body["token_ids"]
        assert sampling["logprobs"] == 0 and sampling["ignore_eos"] and body["cache_salt"]
        self.seen.append(body)
        try:
            done, logprobs = await self.sampled(request, ids, sampling, body["request_id"], sampling["max_tokens"])
        except Aborted:
            choice = {"index": 0, "finish_reason": "abort", "token_ids": [], "logprobs": {"content": []}}
            return JSONResponse({"request_id": body["request_id"], "choices": [choice]})
        content = [
            {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}
            for token, logprob in zip(done.token_ids, logprobs, strict=True)
        ]
        choice = {
            "index": 0, "finish_reason": done.finish, "token_ids": list(done.token_ids),
            "logprobs": {"content": content}, "weight_versions": self.spans(done.versions),
            "routed_experts": self.encode(done.routed_experts) if self.encode else None,
        }  # fmt: skip
        told = {"request_id": body["request_id"], "choices": [choice], "prompt_logprobs": None}
        if sampling.get("prompt_logprobs") is not None:
            told["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": logprob, "rank": 1, "decoded_token": None}}
                for token, logprob in zip(ids[1:], self.scored(ids), strict=True)
            ]
        return JSONResponse(told)

    async def pause(self, request, body):
        match request.query_params["mode"]:
            case "abort":
                self.abort_all()
            case "wait":
                await self.idle()
        self.engine.pause()
        return JSONResponse({"status": "paused"})

    async def resume(self, request, body):
        self.engine.resume()
        return JSONResponse({"status": "resumed"})

    async def rpc(self, request, body):
        assert body["method"] == "reload_weights"
        await asyncio.to_thread(self.put, body["kwargs"]["weights_path"], self.engine.version)
        return JSONResponse({"results": [None]})

    async def rename(self, request, body):
        self.engine.version = self.named(body["new_version"])
        return JSONResponse({"success": True, "new_version": body["new_version"]})

    async def info(self, request, body):
        return JSONResponse({"weight_version": self.names[self.engine.version]})


class SglangStandIn(StandIn):
    def table(self):
        return {
            "/generate": self.generate, "/pause_generation": self.pause, "/continue_generation": self.resume,
            "/update_weights_from_disk": self.update, "/model_info": self.info,
        }  # fmt: skip

    async def generate(self, request, body):
        sampling, ids = body["sampling_params"], body["input_ids"]
        assert body["return_logprob"] and body["extra_key"] and not sampling.get("ignore_eos")
        self.seen.append(body)
        meta = {"id": body["rid"], "prompt_tokens": len(ids), "weight_version": self.names[self.engine.version]}
        try:
            done, logprobs = await self.sampled(request, ids, sampling, body["rid"], sampling["max_new_tokens"])
        except Aborted:
            meta |= {"finish_reason": {"type": "abort", "message": "Abort"}, "output_token_logprobs": []}
            return JSONResponse({"text": "", "output_ids": [], "meta_info": meta})
        ends = {"stop": {"type": "stop", "matched": done.token_ids[-1]}}
        meta |= {
            "finish_reason": ends.get(done.finish, {"type": "length", "length": len(done.token_ids)}),
            "output_token_logprobs": [[p, t, None] for t, p in zip(done.token_ids, logprobs, strict=True)],
            "weight_versions": self.spans(done.versions), "completion_tokens": len(done.token_ids),
        }  # fmt: skip
        if body.get("return_sampling_mask"):
            meta["output_token_sampling_logprobs"] = logprobs
            plain = self.uncut(ids, done, sampling["temperature"])
            meta["output_token_logprobs"] = [[p, t, None] for t, p in zip(done.token_ids, plain, strict=True)]
        if body["logprob_start_len"] == 0:
            pairs = zip(ids[1:], self.scored(ids), strict=True)
            meta["input_token_logprobs"] = [[None, ids[0], None], *([p, t, None] for t, p in pairs)]
        if body["return_routed_experts"] and self.encode:
            meta["routed_experts"] = self.encode(done.routed_experts)
        return JSONResponse({"text": "", "output_ids": list(done.token_ids), "meta_info": meta})

    async def pause(self, request, body):
        if body["mode"] == "abort":
            self.abort_all()
        self.engine.pause()
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request, body):
        self.engine.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def update(self, request, body):
        version = self.named(body["weight_version"])
        try:
            await asyncio.to_thread(self.put, body["model_path"], version)
        except FileNotFoundError as error:
            return JSONResponse({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        self.engine.version = version
        return JSONResponse({"success": True, "message": "Succeeded to update model weights."})

    async def info(self, request, body):
        return JSONResponse({"weight_version": self.names[self.engine.version], "model_type": "qwen3_moe"})


def plain_text(text, status):
    """A handler that answers what no engine's server does."""

    async def handler(request, body):
        return Response(text, status, media_type="text/html")

    return handler
