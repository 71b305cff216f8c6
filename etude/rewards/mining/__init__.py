"""Mines tasks from a repository: `journal` remembers what was decided, `mine` decides it by running the tests."""
