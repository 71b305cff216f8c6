"""A run as SkyPilot's task: nodes that are alike, a Ray of the run's own on them, and the run's command on the first.

Owns the task and the script that every node runs. SkyPilot may have a Ray of its own on the nodes, at another port:
the script starts the run's by `ray start --block`, so that it ends with the process that started it, and touches no
other. The cluster's token is a secret that whoever launches the task makes.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from etude.errors import ConfigError
from etude.rollouts.machines.config import OBJECT_STORE_BYTES
from etude.rollouts.machines.manifest import PORT, Planned
from etude.rollouts.machines.nodes_config import NodeGroup, NodesConfig

TOKEN = "ETUDE_RAY_TOKEN"
"""The secret with the cluster's token. Under Ray's own name SkyPilot's Ray would read it too."""
_ALIKE = ("cpus", "memory_gb", "gpus")
_GONE_S = 20
"""A head that does not answer for so long has ended."""


def documents_of(run: Planned) -> list[dict[str, Any]]:
    """The one task. Raises ConfigError where SkyPilot has no such nodes."""
    nodes = run.nodes
    _require_alike(nodes)
    head = nodes.head
    resources: dict[str, Any] = {
        "image_id": f"docker:{nodes.image}", "cpus": f"{head.cpus}+", "memory": f"{head.memory_gb}+"
    }  # fmt: skip
    if head.gpus:
        if nodes.accelerator is None:
            raise ConfigError('accelerator: SkyPilot asks for GPUs by their kind; name it: accelerator = "H100"')
        resources["accelerators"] = {nodes.accelerator: head.gpus}
    task: dict[str, Any] = {
        "name": run.name,
        "num_nodes": nodes.count,
        "resources": resources,
        "volumes": {str(nodes.shared): nodes.volume},
        "secrets": dict.fromkeys([TOKEN, *nodes.secrets]),
        "run": "\n".join([*_on_each(run), ""]),
    }
    if any(each.privileged for each in nodes.groups):
        container = {"securityContext": {"privileged": True}}
        task["config"] = {
            "docker": {"run_options": ["--privileged"]},
            "kubernetes": {"pod_config": {"spec": {"containers": [container]}}},
        }
    return [task]


def _require_alike(nodes: NodesConfig) -> None:
    for key in _ALIKE:
        of = {getattr(each, key): each.name for each in nodes.groups}
        if len(of) > 1:
            (one, here), (other, there), *_ = of.items()
            raise ConfigError(
                f"groups: {here} has {key} = {one}, and {there} {other}; SkyPilot's nodes are all alike: give all "
                "groups the same cpus, memory_gb and gpus (resources may differ), or use --form kuberay"
            )


def _on_each(run: Planned) -> list[str]:
    """The script, in bash. The first node is the head, and those after it are the groups in order."""
    delimiter = "END-OF-RECIPE"
    recipe = run.recipe.removesuffix("\n").split("\n")  # TOML knows no other ends of lines, and bash none either
    while delimiter in recipe:
        delimiter += "-"
    exports = {"RAY_AUTH_MODE": "token", **run.variables}
    return [
        "set -eu",
        f'head=$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p); url="$head:{PORT}"',
        'own=$(echo "$SKYPILOT_NODE_IPS" | sed -n "$((SKYPILOT_NODE_RANK + 1))p")',
        f'export RAY_AUTH_TOKEN="${TOKEN}" ' + " ".join(f"{name}={shlex.quote(v)}" for name, v in exports.items()),
        "case $SKYPILOT_NODE_RANK in",
        *_cases(run.nodes),
        "esac",
        f'set -- --node-ip-address="$own" --object-store-memory={OBJECT_STORE_BYTES} --block "$@"',
        "",
        'if [ "$SKYPILOT_NODE_RANK" != 0 ]; then  # a machine of Ray, for as long as the head is one',
        '  etude cluster wait "$url" 1',
        f'  while etude cluster wait "$url" 1 --seconds {_GONE_S}; do ray start --address="$url" "$@" || sleep 1; done',
        "  exit 0",
        "fi",
        "",
        f'ray start --head --port={PORT} --include-dashboard=false "$@" &',
        "ray=$!",
        "trap 'kill $ray; wait $ray || true' EXIT",
        "recipe=$(mktemp)",
        f"cat > $recipe <<'{delimiter}'",
        *recipe,
        delimiter,
        *run.command_lines(),
    ]


def _cases(nodes: NodesConfig) -> list[str]:
    """What Ray gives away on each node, by its rank."""
    found, rank = [], 0
    for group in nodes.groups:
        ranks = "|".join(str(rank + each) for each in range(group.count))
        found.append(f"  {ranks}) set -- {_given(group)} ;;")
        rank += group.count
    return found


def _given(group: NodeGroup) -> str:
    resources = shlex.quote(json.dumps(group.resources))
    memory = group.memory_gb << 30
    return f"--num-cpus={group.cpus} --num-gpus={group.gpus} --memory={memory} --resources={resources}"
