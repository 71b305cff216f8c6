"""The algorithm, and nothing else: take groups, step, publish.

Everything it drives runs all the time: rollouts are kept in flight by the controller, the trainer steps in its own
process and publishes beside the next step, and engines follow the weight store between two decode steps. The only thing
that bounds how far they drift apart is staleness: `GroupPool.take` gives out no group whose oldest token is more than
`max_staleness` versions old.
"""

from __future__ import annotations

from etude.rollouts.controller import Controller


async def train(controller: Controller) -> None:
    """Run reinforcement learning until the controller's budget is spent or it is asked to stop."""
    while not controller.finished():
        groups = await controller.take_groups()
        if groups is None:
            break  # asked to stop while waiting
        line = await controller.step(groups)
        controller.publish()
        controller.record(line)
