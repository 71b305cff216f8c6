"""Manifests of `etude cluster manifest`, read by those for whom they are: SkyPilot's own package, and Kubernetes' own
schemas. KubeRay's are in no registry: tests/rollouts/test_manifests.py reads them in a clone.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from installed import pip

from etude.rollouts.machines import kuberay, skypilot
from etude.rollouts.machines.manifest import planned, yaml_of
from etude.rollouts.machines.nodes_config import NodesConfig

ROOT = Path(__file__).parents[2]
SKYPILOT, KUBERNETES = "skypilot==0.14.1", "kubernetes-validate==1.37.0"
_TASK = """
import json, sys, sky
from sky.utils import common_utils, schemas
task = sky.Task.from_yaml(sys.argv[1])
task.validate(skip_file_mounts=True)
(resources,) = task.resources
common_utils.validate_schema(json.loads(sys.argv[2]), schemas.get_resources_schema(), "resources: ")
print("read: " + json.dumps({
    "name": task.name, "nodes": task.num_nodes, "cpus": resources.cpus,
    "memory": resources.memory, "image": resources.image_id, "volumes": task.volumes, "run": task.run,
    "secrets": [each.name for each in task._managed_secret_refs], "given": dict(task.secrets),
}))
"""
_HELD = """
import json, sys
from kubernetes_validate import validate
for each in json.load(sys.stdin):
    validate(each, "1.37", strict=True)
"""


def run_of(gpus=0, sets=()):
    each = {"cpus": 8, "memory_gb": 64, "gpus": gpus, "privileged": True}
    nodes = NodesConfig(
        image="registry.example.com/etude:0.1.0", shared="/shared", volume="etude", accelerator="H100",
        secrets={"STORE_KEY": "store/key"}, env={"HF_HOME": "/shared/hf"},
        groups=[
            {"name": "head", "resources": {"head": 4}, "node_selector": {"pool": "a"}, **each},
            {"name": "sessions", "count": 2, "resources": {"sessions": 1}, **each},
        ],
    )  # fmt: skip
    return planned(ROOT / "recipes/machines.toml", sets, nodes)


def said(words, given=None, **env):
    return subprocess.run(
        list(map(str, words)), input=given, env={**os.environ, **env}, capture_output=True, text=True, timeout=200
    )


@pytest.mark.proof(75)
def test_skypilot_reads_the_task_as_it_was_meant(tmp_path):
    python = pip(tmp_path / "sky", SKYPILOT)
    (task,), (of_gpus,) = (skypilot.documents_of(run_of(gpus)) for gpus in (0, 2))
    resources = json.dumps(of_gpus["resources"])  # by the schema alone: its list of accelerators is on the web
    path = tmp_path / "task.yaml"
    path.write_text(yaml_of([task]))
    done = said([python, "-c", _TASK, path, resources], HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("read: "))
    read = json.loads(line.removeprefix("read: "))
    assert (read["name"], read["nodes"]) == ("machines-0", 3)
    assert (read["cpus"], read["memory"], read["volumes"]) == ("8+", "64+", {"/shared": "etude"})
    assert "docker:registry.example.com/etude:0.1.0" in str(read["image"])
    assert read["run"] == task["run"]
    assert (read["secrets"], read["given"]) == (["ETUDE_RAY_TOKEN", "STORE_KEY"], {})

    path.write_text(yaml_of([task | {"volumez": {}}]))  # and what it does not know it refuses
    wrong = said([python, "-c", _TASK, path, resources], HOME=str(tmp_path))
    assert wrong.returncode != 0 and "volumez" in wrong.stderr


@pytest.mark.proof(20)
def test_kubernetes_takes_the_pods_and_the_config_map(tmp_path):
    python = pip(tmp_path / "kubernetes", KUBERNETES)
    config_map, job = kuberay.documents_of(run_of(gpus=2))
    cluster = job["spec"]["rayClusterSpec"]
    of_pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "one"}}
    templates = [
        of_pods | {"template": group["template"]} for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]
    done = said([python, "-c", _HELD], json.dumps([config_map, *templates]))
    assert done.returncode == 0, done.stderr
    templates[0]["template"]["spec"]["containers"][0]["volumeMount"] = []
    wrong = said([python, "-c", _HELD], json.dumps(templates))
    assert wrong.returncode != 0 and "volumeMount" in wrong.stderr
