"""Which engine a recipe names, and what does not go with one that is not ours."""

import asyncio

import pytest

from etude.config import parse
from etude.engine.config import EngineConfig
from etude.engine.foreign.config import SglangConfig, VllmConfig
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig
from etude.rollouts.preflight import preflight

FOREIGN = {"urls": ["http://a:8000", "http://b:8000"], "weights_dir": "/shared/weights"}


def recipe(**tables):
    return parse({"name": "test", **tables}, RunConfig, "recipe")


def test_the_engine_table_says_who_samples():
    assert isinstance(recipe().engine, EngineConfig)
    assert isinstance(recipe(engine={"step_tokens": 64}).engine, EngineConfig)
    for kind, config in (("vllm", VllmConfig), ("sglang", SglangConfig)):
        engine = recipe(engine={"kind": kind, **FOREIGN}).engine
        assert isinstance(engine, config)
        assert engine.replicas == 2
    with pytest.raises(ConfigError, match="engine"):
        recipe(engine={"kind": "llama.cpp"})
    with pytest.raises(ConfigError, match=r"engine\.step_tokens: unknown key"):
        recipe(engine={"kind": "vllm", "step_tokens": 64, **FOREIGN})


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"engine": {"kind": "vllm", "routes": False, **FOREIGN}}, "trainer.router_replay"),
        ({"engine": {"kind": "sglang", **FOREIGN}, "model": {"expert_format": "mxfp8"}}, "model.expert_format"),
    ],
)
def test_what_a_foreign_engine_cannot_give_is_refused_before_a_run(tables, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        asyncio.run(preflight(recipe(**tables), tmp_path))
