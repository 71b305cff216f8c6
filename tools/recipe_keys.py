"""Writes docs/recipes.md: every key of a training recipe, as its docstring has it.

python tools/recipe_keys.py
"""

from __future__ import annotations

from pathlib import Path

from etude.explain import page
from etude.rollouts.config import RunConfig

PAGE = Path(__file__).parents[1] / "docs/recipes.md"
HEAD = """# The keys of a recipe

A recipe is a TOML file for `etude train`; an unknown key is refused with its path, one that is gone with what to write
in its place, and one that would change nothing beside the others by name: `--set groups.straggler_s=` leaves a recipe's
key out. What stands here is from the docstrings of the configs (`python tools/recipe_keys.py` writes it). Of
one key in one recipe, and of a whole recipe:

```sh
etude train recipes/quickstart.toml --explain groups.straggler_s # what it does, its value, and the line that sets it
etude config recipes/quickstart.toml                             # every value in effect, as a recipe that loads again
```

Deadlines are no keys: each is a constant beside the code that waits, and `deadlines.scale` multiplies them all.

"""


def written() -> str:
    """The whole page."""
    return HEAD + page(RunConfig)


if __name__ == "__main__":
    PAGE.write_text(written())
