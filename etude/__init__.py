"""Etude: train a coding agent inside its own product.

The loop, room by room: the `rollouts` controller sends tasks to `harness` sessions, each in its own `environments`
sandbox; the `engine` samples their tokens; `rewards` score the final state; the `trainer` turns scored groups into a
new version; `weights` carries it back to the engine. Start reading at `etude/rollouts/loop.py`.
"""

__version__ = "0.1.0"
