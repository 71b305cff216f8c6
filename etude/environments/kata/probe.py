"""Says whether sandboxes can be made on a Kubernetes cluster, by making one.

Owns the checks of the `kata` backend. The last starts a pod under a deadline and looks at it from inside; that it has a
kernel of its own and reaches nothing is the backend's own check of every pod.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from etude.environments.base import SandboxSpec
from etude.environments.finding import Finding, look
from etude.environments.kata.backend import KataBackend, check_network, check_runtime_class
from etude.environments.kata.cluster import Cluster, connect
from etude.environments.kata.config import KataConfig
from etude.errors import ConfigError, DeadlineExceeded, EtudeError, MissingDependency

_SLACK_S = 60.0
_LOOK = (
    "grep -E 'CapEff|Seccomp:|NoNewPrivs' /proc/self/status | tr -d '\\t\\n'; "
    "ls /var/run/secrets/kubernetes.io 2>/dev/null"
)
_EXPECTED = "CapEff:0000000000000000NoNewPrivs:1Seccomp:2"
_NEEDED = {
    "pods": ("", ("create", "get", "list", "delete")),
    "pods/attach": ("", ("get", "create")),
    "events": ("", ("list",)),
    "configmaps": ("", ("create", "get")),
    "networkpolicies": ("networking.k8s.io", ("create", "list")),
    "nodes": ("", ("get",)),
    "runtimeclasses": ("node.k8s.io", ("get",)),
}
"""What we must be allowed: of each resource its API group and verbs. The last two are the whole cluster's."""
_OF_CLUSTER = ("nodes", "runtimeclasses")


def probe(config: KataConfig) -> list[Finding]:
    """Look at each part, then start a pod. All `ok` means sandboxes can be made. Takes as long as a pod to start."""
    findings = [look("Kubernetes", lambda: _with(config, _greet))]
    if not findings[0].ok:
        return findings
    findings.append(look("rights", lambda: _with(config, _rights)))
    findings.append(look("runtime class", lambda: _with(config, _runtime_class)))
    findings.append(look("network policies", lambda: _network(config)))
    if all(finding.ok for finding in findings):
        findings.append(look("a real sandbox", lambda: asyncio.run(_boot(config))))
    return findings


def _with(config: KataConfig, see: Callable[[Cluster, KataConfig], Awaitable[str]]) -> str:
    async def whole() -> str:
        cluster = await connect(config)
        try:
            return await see(cluster, config)
        finally:
            await cluster.close()

    return asyncio.run(whole())


async def _greet(cluster: Cluster, config: KataConfig) -> str:
    about = await cluster.ask("say its version", cluster.version.get_code)
    return f"{about.git_version} at {cluster.host}"


async def _rights(cluster: Cluster, config: KataConfig) -> str:
    missing = []
    for resource, (group, verbs) in _NEEDED.items():
        name, _, sub = resource.partition("/")
        where = {} if resource in _OF_CLUSTER else {"namespace": config.namespace}
        for verb in verbs:
            asked = {"group": group, "resource": name, "subresource": sub, "verb": verb, **where}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
            }
            said = await cluster.ask(
                "say what we may do", cluster.authorization.create_self_subject_access_review, review
            )
            if not said.status.allowed:
                missing.append(f"{verb} {resource}")
    if missing:
        raise MissingDependency(
            f"we may not {', '.join(missing)}: give our account the role that docs/environments.md shows"
        )
    return f"all that is needed in namespace {config.namespace!r}"


async def _runtime_class(cluster: Cluster, config: KataConfig) -> str:
    return f"{config.runtime_class!r}, whose handler is {await check_runtime_class(cluster, config)!r}"


def _network(config: KataConfig) -> str:
    check_network(config)
    return "said to be enforced"


async def _boot(config: KataConfig) -> str:
    if config.image is None:
        raise ConfigError("no image to start one on: name one with `image`, that the cluster's nodes can pull")
    deadline_s = config.start_timeout_s + config.stop_timeout_s + _SLACK_S
    try:
        async with asyncio.timeout(deadline_s):
            return await _look_inside(KataBackend(config))
    except TimeoutError:
        raise DeadlineExceeded("a pod to start and be looked at", deadline_s) from None


async def _look_inside(backend: KataBackend) -> str:
    try:
        began = time.perf_counter()
        sandbox = await backend.create(SandboxSpec(files={"a": b"x"}))
        took_s = time.perf_counter() - began
        seen = (await sandbox.exec(_LOOK, timeout_s=20)).output.decode(errors="replace").strip()
    finally:
        await backend.close()
    if seen != _EXPECTED:
        raise EtudeError(f"it starts, but from inside it looks wrong ({seen[:200]!r}): report this as a bug")
    return (
        f"started in {took_s:.1f} s on a kernel of its own, reached neither the cluster's API nor a metadata service, "
        "had no capability, no account of the cluster, and filtered system calls"
    )
