"""Programs that run inside a verifier's sandbox, by themselves: `tasks.verifiers` sends their text there.

Each uses builtin modules only; starting one costs a few milliseconds of CPU, and every rollout starts one. Nothing of
Etude can be imported where they run.
"""
