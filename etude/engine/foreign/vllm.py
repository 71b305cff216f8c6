"""vLLM's HTTP: `/inference/v1/generate`, and weights reloaded from a checkpoint.

Owns what vLLM's answers mean (0.32 and 0.33): routes are npy in base64, of layers that have a router; `weight_versions`
says what sampled what. Requests are salted by version (`cache_salt`), so no request starts from another version's
cache, and nothing has to be flushed while others run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.deadlines import scaled
from etude.engine.foreign.config import VllmConfig
from etude.engine.foreign.dialect import ForeignCompletion, spans_of, unreadable_answer
from etude.engine.foreign.http import ServerConnection
from etude.engine.foreign.routes import concatenate_routes
from etude.harness.sampler import SampleRequest
from etude.records import Version

_RELOAD = {"reload": "reload_weights", "rebuild": "rebuild_from"}


class Vllm:
    """Implements `dialect.Dialect`."""

    hints: Mapping[int, str] = {
        401: "name the file that holds its key as engine.token_file",
        403: "start the server with --enable-scale-out, which opens the route for tokens",
        404: "start the server with VLLM_SERVER_DEV_MODE=1, which opens the routes for weights, and set engine.model "
        "to the name it serves",
    }

    def __init__(self, config: VllmConfig) -> None:
        self._config = config

    async def generate(
        self, wire: ServerConnection, request: SampleRequest, request_id: str, salt: str, score_prompt: bool = False
    ) -> ForeignCompletion:
        sampling: dict[str, Any] = {
            "max_tokens": request.max_tokens, "temperature": request.temperature, "seed": request.seed,
            "stop_token_ids": sorted(request.stop_ids), "ignore_eos": True, "detokenize": False, "logprobs": 0,
            "top_p": request.top_p, "top_k": request.top_k, "min_p": request.min_p, "repetition_penalty": 1.0,
        }  # fmt: skip
        if score_prompt:
            sampling["prompt_logprobs"] = 0
        body: dict[str, Any] = {
            "token_ids": list(request.prompt_ids), "sampling_params": sampling, "request_id": request_id,
            "cache_salt": salt, "stream": False,
        }  # fmt: skip
        if self._config.model is not None:
            body["model"] = self._config.model
        what = f"sample for {request.session_id}"
        told = await wire.post("/inference/v1/generate", what, scaled(self._config.request_s), body)
        return self._read(wire, what, request, told)

    async def update(self, wire: ServerConnection, checkpoint: Path, version: Version) -> None:
        what, deadline_s = f"serve version {version}", scaled(self._config.update_s)
        key = "weights_path" if self._config.update == "reload" else "path"
        reload = {"method": _RELOAD[self._config.update], "kwargs": {key: str(checkpoint)}, "timeout": deadline_s}
        await wire.post("/pause", what, deadline_s, mode=self._config.in_flight)
        try:
            await wire.post("/collective_rpc", what, deadline_s, reload)
            await wire.post("/update_weight_version", what, deadline_s, {"new_version": str(version)})
        finally:
            await wire.post("/resume", what, deadline_s)
        info = await wire.get("/weight_info", what, deadline_s)
        if str(info.get("weight_version")) != str(version):
            raise unreadable_answer(wire, what, info)

    def _read(self, wire: ServerConnection, what: str, request: SampleRequest, body: Any) -> ForeignCompletion:
        try:
            choice = body["choices"][0]
            scored = body.get("prompt_logprobs") or []
            routes = choice.get("routed_experts")
            if routes is not None and body.get("prompt_routed_experts") is not None:
                routes = concatenate_routes(body["prompt_routed_experts"], routes)
            usage = body.get("usage") or {}
            return ForeignCompletion(
                token_ids=tuple(int(token) for token in choice["token_ids"] or ()),
                logprobs=tuple(float(each["logprob"]) for each in (choice["logprobs"] or {}).get("content") or ()),
                finish=choice["finish_reason"],
                spans=spans_of(choice.get("weight_versions")),
                routes=routes,
                prompt_logprobs=tuple(
                    float(at[str(token)]["logprob"])
                    for at, token in zip(scored[1:], request.prompt_ids[1:], strict=True)
                )
                if scored
                else (),
                cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            )
        except (KeyError, TypeError, IndexError, ValueError):
            raise unreadable_answer(wire, what, body) from None
