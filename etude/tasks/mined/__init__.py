"""Tasks from a repository's history: what a commit changed, what it was for, and what it needs to run.

`history` reads git, `split` tells source from tests and keeps to limits, `instruction` makes a request of a message,
`environment` installs what a repository's tests need. `rewards.mine` puts them together, and runs the tests.
"""
