"""Keys that configs had and have no more: what to write in their place.

Owns the one table of them, by the config's class, and that of the kinds of tables. `etude.config` refuses each by name,
with what is said here.
"""

from __future__ import annotations


def _waits(**seconds: float) -> dict[str, str]:
    """Deadlines: one factor moves them all."""
    said = (
        "it is now fixed at {:g} s because one factor moves all deadlines; write [deadlines] scale = 2 to double them"
    )
    return {key: said.format(each) for key, each in seconds.items()}


def _fixed(**values: tuple[object, str]) -> dict[str, str]:
    return {key: f"it is now fixed at {at} because {why}" for key, (at, why) in values.items()}


RETIRED: dict[str, dict[str, str]] = {
    "EngineConfig": _waits(request_deadline_s=120)
    | _fixed(lookup_ngram=(1, "bad lookups are dropped by how often they were right")),
    "ForeignConfig": _waits(request_deadline_s=120, update_deadline_s=600)
    | _fixed(probe_tokens=(192, "that shows a wrong layer and is little to compute")),
    "LaunchConfig": {
        "agent": "write its backends, state_dir, memory_mb, cpus and disk_mb in [cluster] itself",
        "service": "write scheduler.queues.weights as [cluster] weights; the rest is now fixed because nobody set it",
    },
    "ClusterConfig": _waits(open_s=60, start_s=900, unreachable_s=60)
    | _fixed(
        priority=("training", "a run's sandboxes wait behind people's"),
        ttl_s=("3600 s", "it only ends what a killed process left"),
    ),
    "RemoteConfig": _waits(unreachable_s=30, busy_s=600)
    | _fixed(ttl_s=("the server's own", "it only ends what a killed process left")),
    "RoutedConfig": _fixed(away_s=("30 s", "a server that restarts is back by then")),
    "ContainerConfig": _waits(start_timeout_s=60, file_timeout_s=60)
    | _fixed(
        uid=(1000, "commands only must not be root"),
        gid=(1000, "commands only must not be root"),
        cache_dir=("~/.cache/etude", "what is built there suits all; the variable XDG_CACHE_HOME moves it"),
        concurrent_starts=(8, "more only wait in the engine"),
    ),
    "DockerConfig": _waits(engine_timeout_s=60),
    "EgressConfig": _waits(head_timeout_s=10, connect_timeout_s=10, idle_timeout_s=60)
    | _fixed(
        drop_headers=("authorization and cookie", "no mirror needs them"),
        max_connections=(64, "package managers open a dozen"),
        connections_per_s=(100, "package managers open a dozen"),
    ),
    "ImagesConfig": _waits(write_timeout_s=1800, gc_timeout_s=60),
    "NamespaceConfig": _waits(start_timeout_s=30, file_timeout_s=30, stop_timeout_s=15, disk_timeout_s=120)
    | _fixed(
        first_uid=("the first users that own nothing", "any others that own nothing do as well"),
        uid_ranges=("as many as there are", "fewer only share the kernel's quotas"),
        cache_dir=("~/.cache/etude", "what is built there suits all; the variable XDG_CACHE_HOME moves it"),
        cached_layers=(256, "a run has fewer tasks under way"),
        concurrent_starts=(8, "mounts of one kernel take turns"),
    ),
    "MachineConfig": _waits(boot_timeout_s=60, start_timeout_s=30, file_timeout_s=60, stop_timeout_s=15)
    | _waits(copy_timeout_s=120)
    | _fixed(
        first_uid=("2000100000", "users from there on own nothing"),
        warm_up=("python3 -c pass", "it may fail, and helps most tasks"),
        cache_dir=("~/.cache/etude", "what is built there suits all; the variable XDG_CACHE_HOME moves it"),
        kernel=("the newest linux-image-*.deb in ~/.cache/etude", "apt's is kept there; put another beside it"),
        templates=(4, "each takes memory and few kinds are in use at once"),
        concurrent_starts=(4, "more would only share the processors"),
    ),
    "FirecrackerConfig": _fixed(program=("the `firecracker` on PATH", "one release suits all machines")),
    "HarnessConfig": _fixed(min_turn_tokens=(16, "no call is shorter"))
    | dict.fromkeys(("delay.median_s", "delay.p99_s"), "write delay = [MEDIAN, P99], both in seconds"),
    "ToolConfig": _fixed(max_file_bytes=(2_000_000, "no source is larger")),
    "ServerConfig": _waits(connect_s=10, silence_s=180, deadline_s=900)
    | _fixed(longest_pause_s=("20 s", "a server may name a longer pause itself")),
    "JudgeEndpointConfig": _fixed(
        calls=('"native"', "a judge is given no tools"),
        reasoning=('"return"', "no question follows another"),
        cache_key=("false", "each question is a conversation of its own"),
    ),
    "EffortConfig": _fixed(
        token_unit=(100, "scale and k set the same balance"),
        thinking_weight=(1, "all that is sampled weighs the same"),
        call_tokens_weight=(1, "all that is sampled weighs the same"),
        final_weight=(1, "all that is sampled weighs the same"),
        output_weight=(0, "what a tool answers is not the model's doing"),
        calls_weight=(0.25, "parallel calls are to be cheaper than turns"),
        turns_weight=(1, "parallel calls are to be cheaper than turns"),
    ),
    "JudgeConfig": {"max_answer_tokens": "write max_tokens"}
    | _waits(deadline_s=300)
    | _fixed(
        control=("true", "a judge that says yes to everything must be found out"),
        max_chars=(60_000, "half of a change would be judged wrongly"),
        concurrent=(8, "small servers take no more without a queue"),
    ),
    "QualityConfig": _fixed(max_message_chars=(1500, "a screen says what was done")),
    "RolloutConfig": {"reward_workers": "write workers, which says how many there are of both"}
    | _waits(sample_deadline_s=180, batch_deadline_s=300)
    | _fixed(
        trajectory_every=("10 s of a session", "to play these again costs less than a checkpoint each turn"),
        max_infra_failures=("ten times attempts", "what fails so often in a row is no accident"),
        lost_attempts=(8, "what always kills its process must not go on for ever"),
    ),
    "ControlConfig": _fixed(
        demonstrations=(1500, "the control has no time for more"),
        expert=("the clean one", "the control is to see no slips"),
        finetune=("its defaults", "the control is one that every run can be compared with"),
    ),
    "FaultConfig": dict.fromkeys(
        ("controller", "trainer", "engine", "sessions", "rewards"),
        "write faults.restarts, which holds for each kind of process",
    )
    | dict.fromkeys(("spare_engines", "spare_sessions"), "write spares: so many engines and so many session workers")
    | _fixed(
        within_s=("600 s", "restarts says how many that time may have"),
        longest_pause_s=("20 s, or 600 s / restarts", "who allows many restarts wants them soon"),
    )
    | _waits(start_deadline_s=300, drain_s=120, ping_deadline_s=30)
    | _fixed(ping_every_s=("a sixth of the deadline", "a hang is then found hardly later than that")),
    "BorrowingConfig": {"servers": "write urls"}
    | _fixed(
        return_above=("twice borrow_below", "nearer to it engines would go to and fro"),
        poll_s=("0.25 s", "traffic counts as low after 5 s"),
        steady_s=("5 s", "each server says with lending.quiet_s how soon it is quiet"),
    ),
    "EngineFleetConfig": _waits(deadline_s=240, load_deadline_s=180, stall_s=180),
    "WarmStartConfig": {"expert": 'write its keys below [source], with kind = "expert"'},
    "GroupConfig": {
        "oversample": "write a larger size, and straggler_s, which says how long the last of a group are waited for",
        "drop_overlong": 'write overlong = "drop"',
        "drop_zero_variance=true": 'write "verdict", which drops groups whose verdicts are all alike, or "reward" for '
        "what true did",
        "drop_zero_variance=false": 'write "never"',
    }
    | _fixed(
        early_close_share=(0.75, "straggler_s says how long the rest is waited for"),
        min_scored=(2, "one alone has nothing to be compared with"),
    ),
    "OptimizerConfig": _fixed(
        betas=("(0.9, 0.98)", "runs are too short for longer averages"),
        weight_decay=(0, "a policy is to stay near what it was"),
    ),
    "AdvantageConfig": {"train_overlong": 'write overlong = "leave"'},
    "FeedbackConfig": _fixed(most=(8, "more hints only take longer; weight says what they are worth")),
    "LossConfig": {
        "trust": "write band = the same number",
        "damping": "write mask and band, and trainer.divergence_target, which hold a policy near its sampler",
        "normaliser=tokens": 'write normaliser = "constant": both weigh all tokens of a batch alike, and neither '
        "optimizer knows a scale",
    }
    | _fixed(token_budget=(8192, "it only scales the loss, and neither optimizer knows a scale")),
    "KLConfig": {"coefficient": "write weight"},
    "GateConfig": dict.fromkeys(("low", "high"), "write band = [low, high]")
    | _fixed(
        max_rejected=(0.05, "the band sets how much is rejected"),
        patience=(8, "fewer steps can be chance"),
    ),
    "TrainerConfig": {"witness_tokens": "write parity_tokens = the same number"}
    | _fixed(
        witness_versions=(6, "samples are no older by default"),
        max_skipped=(3, "three steps in a row are no bad luck"),
    ),
    "PublisherConfig": _waits(parts_s=300, deadline_s=300)
    | _fixed(
        chunk_elements=("2^20", "that is some milliseconds' work for one core"),
        merge_over=("(8, 32)", "who is late then needs a few fetches"),
        anchor_every=(256, "a full copy weighs as much as a hundred deltas"),
    ),
    "SolutionPolicy": {"tokenizer": "write nothing in its place: a solution is played without tokens"},
    "StoreConfig": {"relay_token_file": "write token_file"}
    | _waits(deadline_s=30, request_timeout_s=15)
    | _fixed(parallel=(8, "eight connections fill a link; block_bytes suits a slow one")),
    "SubscriberConfig": _fixed(max_raw_bytes=("the machine's memory", "a replica must fit into it"))
    | _fixed(poll_s=("0.05 s", "a listing of a remote store takes about as long")),
}
"""Class -> key -> what became of it, `table.key` where the table is a value now, `key=value` where one value alone is
gone. Those of a class hold for all that inherit from it."""
RETIRED_KINDS = {"kata": "write qemu or firecracker, which make virtual machines too"}
"""What a `kind` of table was -> what to write in its place."""
