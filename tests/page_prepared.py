"""What pages presume: a small recipe, a project, a model's server, a repository, tasks, runs, an image's root.

Each of these puts one such thing into a world, made by the real programs: git, `etude` itself, busybox. It looks at no
page. The model at port 8000 speaks HTTP and follows a script, as pages about the agent do not depend on what it says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from archive_samples import kept, marks
from gguf_files import write_gguf
from knowing_judge import PAIRS, knowing
from offline_wheels import PYTEST, pack
from page_commands import ROOT, blocks
from page_world import DEADLINE_S, World
from scripted_openai import Reply, ScriptedServer
from span_collector import collecting
from test_families import publish, tensors
from test_mining import CART, MENDED, TESTS
from weight_samples import make_chain, publisher_on

from etude.archive.writer import ArchiveWriter
from etude.records import Truncated, Version
from etude.rollouts.plan.rates import LEAST_ROLLOUTS, LEAST_STEPS
from etude.weights.opening import open_store

TUTORIAL = ROOT / "docs/tutorial.md"
RECIPE = """name = "quickstart"
model.path = "models/etude-tiny"
harness.max_turn_tokens = 64
harness.tool.max_observation_bytes = 500
groups = { size = 2, drop_zero_variance = "never" }
rollouts = { groups_per_step = 1, concurrency = 4, rungs = [1], max_steps = 1 }
evaluation = { per_rung = 1, heldout_per_rung = 0, real = false }
control.enabled = false
"""
APPLETS = "sh ls cat echo mkdir rm cp mv chown chmod test sed grep find env id stat touch true tr wc ln pwd"
PARSE = "def number(text):\n    return int(text) + 1\n"
REPAIRED = "def number(text):  # {}\n    return int(text)\n"
PROGRAM = '#!/bin/sh\nPYTHONPATH={}/.pytest exec {} -m pytest -p no:cacheprovider "$@"\n'
PARSE_TEST = "from parse import number\n\n\ndef test_number():\n    assert number('2') == 2\n"
BELOW_ZERO = "\n\ndef test_the_total_is_never_negative():\n    assert total([1], discount=5) == 0\n"
PARCEL = "def weight_of(items):\n    grams_each = 250\n    return len(items) * grams_each\n"
WEIGHT_TEST = "from shop.parcel import weight_of\n\n\ndef test_weight():\n    assert weight_of([1, 2]) == 500\n"
COMMITS = [
    ("A shop", {"shop/__init__.py": "", "shop/cart.py": CART, "tests/test_cart.py": TESTS}),
    ("Totals must not fall below zero, even where a discount is larger than the price.",
     {"shop/cart.py": MENDED, "tests/test_cart.py": TESTS + BELOW_ZERO}),
    ("Parcels have a weight: 250 grams for each of their items.",
     {"shop/parcel.py": PARCEL, "tests/test_parcel.py": WEIGHT_TEST}),
]  # fmt: skip


def models(made: World, ends: ExitStack) -> None:
    """The shipped model, where it stands in a clone."""
    (made.root / "models").symlink_to(ROOT / "models")


def downloads(made: World, ends: ExitStack) -> None:
    """A published model's directory and a GGUF, small ones, under the names of pages; models can be written to."""
    (made.root / "models").mkdir()
    (made.root / "models/etude-tiny").symlink_to(ROOT / "models/etude-tiny")
    shutil.copytree(ROOT / "models/etude-tiny", made.root / "downloads/Qwen2.5-Coder-0.5B-Instruct")
    theirs = publish("qwen2", made.root / ".theirs")
    write_gguf(made.root / "downloads/model.Q8_0.gguf", theirs, tensors(made.root / ".theirs"))


def clone(made: World, ends: ExitStack) -> None:
    """The shipped model, and a quickstart of one step."""
    models(made, ends)
    (made.root / "recipes").mkdir()
    (made.root / "recipes/quickstart.toml").write_text(RECIPE)


def completions(made: World, ends: ExitStack) -> None:
    """The directories in which shells look for what completes a command."""
    for folder in (".local/share/bash-completion/completions", ".config/fish/completions", ".zfunc"):
        (made.home / folder).mkdir(parents=True)


def commit(made: World, where: Path, message: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        (where / path).write_text(text)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", message]):
        subprocess.run(["git", *words], cwd=where, env=made.env, check=True)


def project(made: World, ends: ExitStack) -> None:
    """A repository with a test that fails, and a pytest that its commands find in their sandbox, wherever ours lies."""
    (made.root / "my-project").mkdir()
    commit(
        made,
        made.root / "my-project",
        "Begin.",
        {"parse.py": PARSE, "conftest.py": "", "tests/test_parse.py": PARSE_TEST},
    )
    (made.root / "my-project/tasks.txt").write_text("Repair test_parse.\nWrite the docs.\n")
    offline(made, ends)
    made.run(f"pip install -q --no-cache-dir --target {made.root}/.pytest pytest")
    (made.root / "bin").mkdir()
    (program := made.root / "bin/pytest").write_text(PROGRAM.format(made.root, os.path.realpath(sys.executable)))
    program.chmod(0o755)
    made.env["PATH"] = f"{made.root}/bin:{made.env['PATH']}"


def in_project(made: World, ends: ExitStack) -> None:
    project(made, ends)
    made.run("cd my-project")


def scripted(body: dict[str, Any]) -> Reply:
    """Writes the file and runs the test where something is to be repaired, writes a page where docs are asked for."""
    messages = body["messages"]
    last = max(at for at, each in enumerate(messages) if each["role"] == "user")
    prompt, done = str(messages[last]["content"]), sum(each["role"] == "tool" for each in messages[last:])
    offered = {each["function"]["name"] for each in body.get("tools") or ()}
    if "docs" in prompt and not done and "write_file" in offered:
        return Reply("", [("write_file", {"path": "docs.md", "content": "# Parse\n"})])
    if "epair" in prompt and done < 2 and "write_file" in offered:
        write = ("write_file", {"path": "parse.py", "content": REPAIRED.format(prompt[:40])})
        return Reply("", [write if not done else ("run_terminal_cmd", {"command": "pytest -q"})])
    return Reply("It is done.")


def endpoint(made: World, ends: ExitStack) -> None:
    """A model's server at port 8000."""
    _at_port_8000(made, ends, scripted)


def judge(made: World, ends: ExitStack) -> None:
    """A model that judges well, at port 8000, and the file of pairs."""
    (made.root / "recipes").mkdir(exist_ok=True)
    shutil.copy2(PAIRS, made.root / "recipes")
    _at_port_8000(made, ends, knowing())


def _at_port_8000(made: World, ends: ExitStack, model: Callable[[Any], Reply]) -> None:
    server = ends.enter_context(ScriptedServer(model))
    made.ports["8000"] = int(server.url.split(":")[2].split("/")[0])


def agent(made: World, ends: ExitStack) -> None:
    """That model in agent.toml."""
    endpoint(made, ends)
    made.run(f"etude init --endpoint http://127.0.0.1:{made.port('8000')}/v1 --model qwen3-coder")


def variables(made: World, ends: ExitStack) -> None:
    """That model in the variables that `etude init` looks at."""
    endpoint(made, ends)
    made.env |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{made.port('8000')}/v1", "OPENAI_API_KEY": "k"}


def session(made: World, ends: ExitStack) -> None:
    made.run('etude agent -p "Repair test_parse." --allow "run(pytest *)"')


def newest(made: World) -> str:
    """The id of the newest session of this directory."""
    return json.loads(made.run("etude agent --list --json").splitlines()[0])["session_id"]


def spans(made: World, ends: ExitStack) -> None:
    collector = ends.enter_context(collecting())
    made.ports["4318"] = int(collector.url.rpartition(":")[2])


def offline(made: World, ends: ExitStack) -> None:
    """The packages of this environment in place of an index."""
    (wheels := made.root / ".wheels").mkdir()
    made.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(pack(wheels, (*PYTEST, "ruff", "ty")))}


def history(made: World, where: Path) -> None:
    where.mkdir(parents=True)
    for message, files in COMMITS:
        commit(made, where, message, files)


def beside(made: World, ends: ExitStack) -> None:
    """The repository of the tutorial, and the files that the page says to write."""
    history(made, made.root / "shop")
    for language, text in blocks(TUTORIAL):
        if language == "toml":
            name, _, _ = text.removeprefix("# ").partition("\n")
            (made.root / name).write_text(text)


def shop(made: World, ends: ExitStack) -> None:
    """The same at ~/src/shop, with its issues and an instance of SWE-bench's form."""
    history(made, place := made.home / "src/shop")

    def said(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=place, check=True, capture_output=True, text=True).stdout

    issue = {"number": 1, "title": "Totals", "body": "They fall below zero."}
    (made.root / "issues.jsonl").write_text(json.dumps(issue) + "\n")
    instance = {
        "instance_id": "acme__shop-1", "repo": "acme/shop", "base_commit": said("rev-parse", "HEAD~2").strip(),
        "patch": said("diff", "HEAD~2", "HEAD~", "--", "shop"),
        "test_patch": said("diff", "HEAD~2", "HEAD~", "--", "tests"),
        "problem_statement": "Totals fall below zero.", "hints_text": "", "version": "1.0",
        "created_at": "2026-05-01T00:00:00Z", "PASS_TO_PASS": "[]",
        "FAIL_TO_PASS": json.dumps(["tests/test_cart.py::test_the_total_is_never_negative"]),
    }  # fmt: skip
    (made.root / "swe.jsonl").write_text(json.dumps(instance) + "\n")


def in_shop(made: World, ends: ExitStack) -> None:
    made.run("cd ~/src/shop")


def tasks(made: World, ends: ExitStack) -> None:
    """A task of one's own in my-tasks and in tasks/shop."""
    made.run("etude tasks generate --rung 1 --count 1 --out my-tasks && mkdir tasks && cp -r my-tasks tasks/shop")


def mined(made: World, ends: ExitStack) -> None:
    """A task in tasks/shop, under a name as mining gives them."""
    made.run("etude tasks generate --rung 1 --count 1 --out made && mkdir -p tasks/shop")
    made.run("mv made/* tasks/shop/mined-shop-1")


def two_runs(made: World, ends: ExitStack) -> None:
    for name, skill in (("before", 0), ("after", 1)):
        made.run(f"etude bench run --ladder 1 --solution {skill} --out runs/{name}")


def chain(made: World, ends: ExitStack) -> None:
    """Five versions, where a run would have left them."""
    publisher = publisher_on(open_store(made.root / "runs/quickstart-0/weights"))
    for version, bits in enumerate(make_chain(5)):
        publisher.publish(Version(version), bits)


def live(made: World, ends: ExitStack) -> None:
    """A run that goes on, far enough for `etude plan` to learn from, and is stopped when the world ends."""
    clone(made, ends)
    words = ["etude", "train", "recipes/quickstart.toml", "--set", "rollouts.max_steps=1000"]
    errors = ends.enter_context((made.root / ".errors").open("w"))
    process = subprocess.Popen(words, cwd=made.root, env=made.env, stdout=errors, stderr=errors)
    ends.callback(process.wait, 120)
    ends.callback(process.terminate)
    metrics, until = made.root / "runs/quickstart-0/metrics.jsonl", time.monotonic() + DEADLINE_S
    least = {"rollout": LEAST_ROLLOUTS, "step": LEAST_STEPS, "engine": 2}
    while True:
        said = metrics.read_text() if metrics.exists() else ""
        if all(said.count(f'"kind": "{kind}"') >= number for kind, number in least.items()):
            return
        assert process.poll() is None and time.monotonic() < until, (made.root / ".errors").read_text()[-3000:]
        time.sleep(0.2)


def runs(made: World, ends: ExitStack) -> None:
    """A directory of runs, in which there is none yet."""
    (made.root / "runs").mkdir()


def archived(made: World, ends: ExitStack) -> None:
    """A run whose archive has a few trajectories, one of which was trained on."""
    with ArchiveWriter(made.root / "runs/quickstart-0") as writer:
        writer.keep(kept("g0/0"))
        writer.keep(kept("g0/1", outcome=Truncated("turns", 0.0, {"tests": 0.0})))
        writer.mark(1, [marks("g0/0")])


def roots(made: World, ends: ExitStack) -> None:
    """A root file system of busybox, and tasks with a Dockerfile on it."""
    root = made.root / "rootfs"
    for name in ("bin", "etc", "tmp", "home/agent"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for applet in APPLETS.split():
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    os.chmod(root / "tmp", 0o1777)
    made.run("etude images add rootfs --name base")
    for name in ("my-task", "TASK"):
        (made.root / name / "environment").mkdir(parents=True)
        (made.root / name / "environment/Dockerfile").write_text("FROM base\nRUN echo made > /made\n")


def theirs(made: World, ends: ExitStack) -> None:
    """A Harbor task that others wrote."""
    roots(made, ends)
    made.run("etude images add rootfs --name alpine:3.22")
    shutil.copytree(ROOT / "tests/tasks/harbor_tasks/hello-world", made.root / "theirs/hello-world")
