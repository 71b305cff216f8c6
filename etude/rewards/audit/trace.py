"""What a rule saw, and what is known of the tests.

Owns `Trace` and `Tests`, which the rules about one file share. Decides nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from etude.rewards.audit.code import Module
from etude.rewards.audit.findings import Category, Grade


@dataclass(frozen=True)
class Trace:
    """What a rule saw. Two files hold the same trace where rule and `key` agree."""

    category: Category
    rule: str
    node: ast.AST
    grade: Grade = "cheat"

    @property
    def key(self) -> tuple[str, str]:
        return self.rule, ast.unparse(self.node)

    def keys(self, module: Module) -> set[tuple[str, str]]:
        """What it is known by: its words, and the function that it stands in."""
        holder = next((each for each in module.above(self.node) if isinstance(each, ast.FunctionDef)), None)
        statement = next(
            (each for each in [self.node, *module.above(self.node)] if isinstance(each, ast.stmt)), self.node
        )
        compound = isinstance(
            statement, ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.While | ast.With | ast.Try
        )
        words = ast.unparse(self.node if compound else statement)
        return {(self.rule, words)} | ({(self.rule, f"def {holder.name}")} if holder is not None else set())


@dataclass(frozen=True)
class Tests:
    """What the project's code has no business with: the tests' module names, and the modules they import. And what the
    tests do with its functions."""

    stems: frozenset[str]
    imported: frozenset[str]
    called: frozenset[str] = frozenset()
    """Names of what they call."""
    checks: frozenset[str] = frozenset()
    """Of these, what is called for nothing but what it may raise."""
    runs: frozenset[str] = frozenset()
    """What is given functions or classes of theirs that assert."""
    surrounds: frozenset[str] = frozenset()
    """What stands around assertions, as `with` does."""
