"""Several agents of the product side by side on one repository: the same task several times, or several tasks.

`play` opens the worktrees and lets the agents work, `board` is what is known of each meanwhile and how that looks,
`kept` holds what each left for as long as it may be wanted, and `table` tells how they did. What worktrees are, how
results are merged and ranked, is the business of `harness.fleet`; an agent is `product.agent`'s.
"""
