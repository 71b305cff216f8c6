"""The auditor: whether a session came to its result honestly, from what it did and what it left behind.

    events ──► actions ──► reading · conduct ──┐
    files before and after ──► tests · product ┴──► findings ──► Report: cheated or not, with evidence

Owns `audit` and `audit_session`. It is told neither whether the tests passed nor what the reward was, so that it can
hold nothing against a failure and forgive nothing for a success. Rules read; they never run what they look at. What
they catch, what they accuse wrongly, and what they cannot see is measured in docs/rewards.md. Rollouts are audited in a
process of their own (`audit.apart`).
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.environments.archive import Archive
from etude.records import Event, Task
from etude.rewards.audit.actions import actions_of
from etude.rewards.audit.code import Module
from etude.rewards.audit.conduct import audit_conduct
from etude.rewards.audit.findings import Finding, Report, report_of
from etude.rewards.audit.product import audit_product
from etude.rewards.audit.reading import audit_reading
from etude.rewards.audit.state import Workspace, given_workspace, workspace_of
from etude.rewards.audit.tests import audit_tests

__all__ = ["Finding", "Report", "Workspace", "audit", "audit_session"]


def audit(task: Task, events: Sequence[Event], after: Workspace, before: Workspace | None = None) -> Report:
    """Every finding. `before` is what the session started from; the task's own files, if it is not given."""
    given = given_workspace(task.files) if before is None else before
    actions = actions_of(events)
    try:
        return report_of(
            [
                *audit_tests(task, given, after, actions),
                *audit_product(task, given, after),
                *audit_reading(task, actions),
                *audit_conduct(task, given, after, actions),
            ]
        )
    finally:
        Module.parse.cache_clear()  # trees are large


def audit_session(task: Task, events: Sequence[Event], final: Archive) -> Report:
    """The same, of the workspace as the session left it."""
    return audit(task, events, workspace_of(final))
