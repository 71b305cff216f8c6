"""A key that would change nothing beside the others of its recipe is refused, with what to do; left out, it is not."""

import pytest

from etude.config import load_recipe, overridden
from etude.engine.foreign.config import VllmConfig
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig

LOCKSTEP = "rollouts.schedule=lockstep"
IDLE = [
    ("trainer.router_replay=false", "trainer.replay_margin=1", "replay_margin"),
    ("trainer.optimizer.name=adamw", "trainer.optimizer.momentum=0.95", "momentum"),
    ("trainer.optimizer.name=adamw", "trainer.optimizer.scalar_lr=1e-3", "scalar_lr"),
    (LOCKSTEP, "groups.window_share=0.5", "groups.window_share"),
    (LOCKSTEP, "groups.straggler_s=5", "groups.straggler_s"),
    (LOCKSTEP, "groups.max_staleness=4", "groups.max_staleness"),
    (LOCKSTEP, "groups.when_stale=drop", "groups.when_stale"),
    ("rollouts.schedule=free", "rollouts.lag=0", "lag"),
    ("rewards.effort.enabled=false", "rewards.effort.cap=0.4", "cap"),
    ("rewards.effort.enabled=false", "rewards.effort.scale=0.1", "scale"),
    ("rewards.effort.scale=0", "rewards.effort.q=1", "q"),
    ("rewards.malformed_penalty=0", "rewards.malformed_cap=0.2", "malformed_cap"),
    ("rewards.quality.todo_penalty=0", "rewards.quality.cap=0.2", "cap"),
    ("trainer.loss.mask=off", "trainer.loss.band=0.2", "band"),
    ('rollouts.tasks=["mine"]', "rollouts.rungs=[1, 2, 3, 4, 5]", "rungs"),
    ("harness.toolset=small", "harness.tool.overlong=stop", "tool.overlong"),
    ("harness.toolset=small", "harness.tool.edit_tolerance=context", "tool.edit_tolerance"),
    ("harness.toolset=small", "harness.tool.lint_base=HEAD", "tool.lint_base"),
    ('harness.tools=["read_file", "edit_file"]', "harness.tool.command_timeout_s=5", "tool.command_timeout_s"),
    ("weight_store.block_bytes=4096", "weight_store.token_file=relay.token", "token_file"),
    ("weight_store.block_bytes=4096", 'weight_store.options={region="mars"}', "weight_store.options"),
    ('store="/shared/runs"', 'weight_store.options={region="mars"}', "weight_store.options"),
    ('store="file:///shared/runs"', 'weight_store.options={region="mars"}', "weight_store.options"),
    ("groups.overlong=drop", "rewards.unfinished_penalty=0.1", "rewards.unfinished_penalty"),
    ("groups.overlong=drop", "trainer.advantages.overlong=leave", "trainer.advantages.overlong"),
    (LOCKSTEP, "trainer.parity_tokens=64", "trainer.parity_tokens"),
    ("groups.max_staleness=0", "trainer.parity_tokens=64", "trainer.parity_tokens"),
    ("trainer.ranks=2", "publisher.merge=needed", "publisher.merge"),
    ("trainer.ranks={ep=2}", "publisher.merge=needed", "publisher.merge"),
    ("trainer.ranks=2", "trainer.format=bf16", "format"),
]  # fmt: skip


def recipe(*sets):
    return load_recipe(None, RunConfig, ["name=test", *sets])


@pytest.mark.parametrize(("beside", "key", "named"), IDLE, ids=lambda each: each)
def test_a_key_without_effect_is_refused_and_goes_when_it_is_taken_out(beside, key, named):
    with pytest.raises(ConfigError, match=rf"\b{named}: has no effect .*; leave it out$"):
        recipe(beside, key)
    assert recipe(beside, key, key.partition("=")[0] + "=") == recipe(beside)


ACTS = [
    ("harness.tool.command_timeout_s=5",),
    ('harness.tools=["read_file", "grep"]', "harness.tool.command_timeout_s=5"),
    ("harness.toolset=agent", "harness.tool.overlong=stop", "harness.tool.lint_base=HEAD"),
    ("weight_store.relay=http://10.0.0.7:8480", "weight_store.token_file=relay.token"),
    ('store="s3://bucket/runs"', 'weight_store.options={region="mars"}'),
    ("groups.overlong=keep", "rewards.unfinished_penalty=0.1", "trainer.advantages.overlong=leave"),
    (LOCKSTEP, "rollouts.lag=1", "trainer.parity_tokens=64"),
    ("trainer.ranks=1", "publisher.merge=always"),
    ("trainer.ranks={fsdp=2, ep=2}", "trainer.format=bf16"),
]


@pytest.mark.parametrize("sets", ACTS, ids=lambda each: each[-1])
def test_the_same_key_is_taken_where_it_changes_something(sets):
    assert recipe(*sets) != recipe()


@pytest.mark.parametrize("cap", ["rewards.malformed_cap", "rewards.effort.cap", "rewards.quality.cap"])
def test_no_cap_makes_the_penalty_beside_it_nothing(cap):
    with pytest.raises(ConfigError, match=rf"{cap}: .* greater than 0"):
        recipe("rewards.quality.todo_penalty=0.1", f"{cap}=0")


def test_what_nobody_gave_stays_so_when_a_run_is_changed():
    """Or every key would be given from then on, those without effect as well."""
    before = recipe(LOCKSTEP, "trainer.router_replay=false")
    after = overridden(before, ["rollouts.concurrency=5"])
    assert after.rollouts.concurrency == 5
    assert after == before.model_copy(update={"rollouts": after.rollouts})
    with pytest.raises(ConfigError, match=r"groups\.max_staleness: has no effect"):
        overridden(after, ["groups.max_staleness=2"])


def test_a_table_stays_of_its_kind_when_a_run_is_changed():
    engine = VllmConfig(urls=("http://a:8000",), weights_dir="/shared/weights")
    before = RunConfig(name="test", engine=engine)
    assert overridden(before, ["rollouts.concurrency=5"]).engine == engine
