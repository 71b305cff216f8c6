"""How far a pod has come, in words: read from what the cluster's API says of it, and of nothing else.

Owns the judgement which of a kubelet's complaints are final. Asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from etude.environments.kata.pod import CONTAINER

_FINAL = {
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image has no valid name",
    "ErrImageNeverPull": "its image is not there",
    "CreateContainerConfigError": "it cannot be configured",
}
"""The kubelet tries everything again; of these, in vain. It says ImagePullBackOff only after a second pull."""


@dataclass(frozen=True)
class Progress:
    """`why` says for what a waiting pod waits, and why an ended one has ended."""

    state: Literal["waiting", "running", "ended"]
    why: str = ""
    node: str = ""
    spoiled: bool = False
    """It ended because what ran in it left no memory, not even to the agent."""


def progress(pod: Any) -> Progress:
    """Of a V1Pod. `running` means that the agent's container runs; it can be attached to."""
    status = pod.status
    node = pod.spec.node_name or ""
    if status.phase in ("Failed", "Succeeded"):
        return Progress("ended", _end_of(status), node, _out_of_memory(status))
    for container in _containers(status):
        waiting = container.state.waiting if container.state else None
        if waiting is not None and waiting.reason in _FINAL:
            return Progress("ended", _sentence(_FINAL[waiting.reason], waiting.message), node)
    for container in status.container_statuses or ():
        if container.name == CONTAINER and container.state and container.state.running is not None:
            return Progress("running", "", node)
        if container.name == CONTAINER and container.state and container.state.terminated is not None:
            return Progress("ended", _end_of(status), node, _out_of_memory(status))
    return Progress("waiting", _wait_of(status), node)


def _end_of(status: Any) -> str:
    """The pod's own reason, such as Evicted or DeadlineExceeded, and each container's that did not just end."""
    said = [_sentence(status.reason, status.message)] if status.reason else []
    for container in _containers(status):
        ended = container.state.terminated if container.state else None
        if ended is not None and (ended.exit_code or ended.reason not in (None, "Completed")):
            code = f"{ended.reason or 'Error'}, exit code {ended.exit_code}"
            said.append(_sentence(f"container {container.name!r}: {code}", ended.message))
    return "; ".join(said) or "its agent has ended"


def _out_of_memory(status: Any) -> bool:
    ended = [each.state.terminated for each in status.container_statuses or () if each.name == CONTAINER and each.state]
    return any(end is not None and end.reason == "OOMKilled" for end in ended)


def _wait_of(status: Any) -> str:
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status != "True":
            return _sentence("it is not scheduled", condition.message)
    for container in _containers(status):
        waiting = container.state.waiting if container.state else None
        if waiting is not None:
            return _sentence(f"container {container.name!r}: {waiting.reason}", waiting.message)
    return "it has just been made" if status.phase in (None, "Pending") else f"it is {status.phase}"


def _containers(status: Any) -> Iterator[Any]:
    yield from status.init_container_statuses or ()
    yield from status.container_statuses or ()


def _sentence(subject: str, message: str | None) -> str:
    """A container's last words may be an agent's answers; only text is quoted."""
    said = " ".join((message or "").split())[:500]
    return f"{subject} ({said})" if said and said.isprintable() else subject
