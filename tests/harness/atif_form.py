"""The form of ATIF v1.8, as its description has it, with nothing else allowed; and Harbor's own word where it is there.

`accepted` checks a trajectory. Set ETUDE_HARBOR_PYTHON to the Python (3.12 or newer) of an environment that has harbor,
and its models are asked as well: `pip install --no-deps harbor==0.25.0 && pip install agent-client-protocol` is enough.
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

HARBOR = os.environ.get("ETUDE_HARBOR_PYTHON")


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Call(_Form):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class Result(_Form):
    source_call_id: str | None = None
    content: str | None = None
    extra: dict[str, Any] | None = None


class Observation(_Form):
    results: list[Result]


class Metrics(_Form):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class Step(_Form):
    step_id: int
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _of_one_source(self) -> Step:
        if self.timestamp is not None:
            assert datetime.fromisoformat(self.timestamp).tzinfo is not None
        given = (self.model_name, self.reasoning_content, self.tool_calls, self.metrics)
        assert self.source == "agent" or not any(given), "only the agent has calls and metrics"
        calls = {call.tool_call_id for call in self.tool_calls or ()}
        results = [each.source_call_id for each in self.observation.results] if self.observation else []
        assert all(each is None or each in calls for each in results), "a result of no call of its step"
        return self


class Agent(_Form):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(_Form):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class Trajectory(_Form):
    schema_version: Literal["ATIF-v1.8"]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: list[Step]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Trajectory:
        assert [step.step_id for step in self.steps] == list(range(1, len(self.steps) + 1)) and self.steps
        return self


def accepted(data: bytes) -> Trajectory:
    """The trajectory, if it is one."""
    harbor_takes("harbor.models.trajectories", "Trajectory", data)
    return Trajectory.model_validate_json(data)


def harbor_takes(module: str, model: str, data: bytes) -> None:
    """Asks a model of Harbor's, if there is a Harbor."""
    if HARBOR is not None:
        ask = f"import sys; from {module} import {model}; {model}.model_validate_json(sys.stdin.buffer.read())"
        asked = subprocess.run([HARBOR, "-c", ask], input=data, capture_output=True, timeout=120, check=False)
        assert asked.returncode == 0, asked.stderr.decode()
