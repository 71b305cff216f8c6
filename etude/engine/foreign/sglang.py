"""SGLang's HTTP: `/generate`, and weights from a checkpoint on disk.

Owns what SGLang's answers mean (0.5.23): log-probabilities are of the distribution after temperature; routes are int32
of every layer; `weight_versions` says what sampled what. Requests are salted by version (`extra_key`), so no request
starts from another version's cache, and nothing has to be flushed while others run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.deadlines import scaled
from etude.engine.foreign.config import SglangConfig
from etude.engine.foreign.dialect import ForeignCompletion, spans_of, unreadable_answer
from etude.engine.foreign.http import ServerConnection
from etude.harness.sampler import SampleRequest
from etude.records import Version


class Sglang:
    """Implements `dialect.Dialect`."""

    hints: Mapping[int, str] = {
        401: "name the file that holds its key as engine.token_file",
        403: "the key may not change weights: give the server's admin key in engine.token_file",
        404: "it is too old or no SGLang: 0.5.9 or later is needed",
    }

    def __init__(self, config: SglangConfig) -> None:
        self._config = config

    async def generate(
        self, wire: ServerConnection, request: SampleRequest, request_id: str, salt: str, score_prompt: bool = False
    ) -> ForeignCompletion:
        sampling = {
            "max_new_tokens": request.max_tokens, "temperature": request.temperature,
            "stop_token_ids": sorted(request.stop_ids), "no_stop_trim": True, "skip_special_tokens": False,
            "top_p": request.top_p, "top_k": request.top_k or -1, "min_p": request.min_p, "repetition_penalty": 1.0,
        }  # fmt: skip
        if request.seed is not None:
            sampling["sampling_seed"] = request.seed
        body = {
            "input_ids": list(request.prompt_ids), "sampling_params": sampling, "rid": request_id, "extra_key": salt,
            "return_logprob": True, "logprob_start_len": 0 if score_prompt else -1, "stream": False,
            "return_routed_experts": self._config.routes,
        }  # fmt: skip
        if cut := bool(request.top_k or request.top_p < 1 or request.min_p):
            body["return_sampling_mask"] = True  # the plain log-probabilities leave the cut out
        what = f"sample for {request.session_id}"
        return self._read(wire, what, cut, await wire.post("/generate", what, scaled(self._config.request_s), body))

    async def update(self, wire: ServerConnection, checkpoint: Path, version: Version) -> None:
        what, deadline_s = f"serve version {version}", scaled(self._config.update_s)
        await wire.post("/pause_generation", what, deadline_s, {"mode": self._config.in_flight})
        try:
            loaded = await wire.post(
                "/update_weights_from_disk", what, deadline_s,
                {"model_path": str(checkpoint), "weight_version": str(version),
                 "flush_cache": self._config.in_flight != "in_place"},
            )  # fmt: skip
        finally:
            await wire.post("/continue_generation", what, deadline_s, {})
        if not (isinstance(loaded, dict) and loaded.get("success")):
            raise unreadable_answer(wire, what, loaded)
        info = await wire.get("/model_info", what, deadline_s)
        if str(info.get("weight_version")) != str(version):
            raise unreadable_answer(wire, what, {"weight_version": info.get("weight_version")})

    def _read(self, wire: ServerConnection, what: str, cut: bool, body: Any) -> ForeignCompletion:
        try:
            meta = body["meta_info"]
            finish, pairs = meta["finish_reason"]["type"], meta.get("output_token_logprobs") or []
            prompt = meta.get("input_token_logprobs") or []
            sampled = meta["output_token_sampling_logprobs"] if cut and pairs else [pair[0] for pair in pairs]
            answer = ForeignCompletion(
                token_ids=tuple(int(pair[1]) for pair in pairs),
                logprobs=tuple(map(float, sampled)),
                finish=finish,
                spans=spans_of(meta.get("weight_versions")),
                routes=meta.get("routed_experts"),
                prompt_logprobs=tuple(float(pair[0]) for pair in prompt[1:]),
                cached_tokens=int(meta.get("cached_tokens") or 0),
            )
        except (KeyError, TypeError, IndexError, ValueError):
            raise unreadable_answer(wire, what, body) from None
        if finish != "abort" and tuple(body.get("output_ids", answer.token_ids)) != answer.token_ids:
            raise unreadable_answer(wire, what, "log-probabilities of other tokens than those it sampled")
        return answer
