"""Tasks from a repository as it stands, without a history: something is taken from it or broken, and asked for back.

`proposal` has what all kinds have in common; `bugs`, `deletion`, `reverts` and `debt` propose, and
`rewards.mining.generate` runs the tests, which decide. `migration` makes database tasks out of nothing.
"""
