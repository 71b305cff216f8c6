"""Packages of made-up functions, and a small recipe to learn from them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from etude.trainer.embedder.config import EmbedderConfig

LICENCE = "Permission is hereby granted, free of charge, to any person obtaining a copy\n"
SAID = ("remove", "send", "count", "open", "draw", "sort", "join", "split")
DONE = ("pop", "post", "length", "unlock", "paint", "order", "merge", "cut")
"""What is said of a function, and the word in its code: none is in both."""


def package(at: Path, name: str, functions: int, seed: int = 0) -> Path:
    """A module of functions that are told by a word that is not in them."""
    chance = random.Random(f"{name} {seed}")
    rows = []
    for number in range(functions):
        which, noun = chance.randrange(len(SAID)), f"thing{chance.randrange(400)}"
        rows.append(
            f'def {DONE[which]}_{noun}(box):\n    """{SAID[which].title()} every {noun} of whatever box there is."""\n'
            f"    found = {DONE[which]}(box)\n    return found or '{name}{number}'\n\n\n"
        )
    (at / name / name).mkdir(parents=True)
    (at / name / "LICENSE").write_text(LICENCE)
    (at / name / name / "core.py").write_text("".join(rows))
    return at / name


def config(*directories: Path, **more: Any) -> EmbedderConfig:
    small = {"pairs_per_step": 32, "width": 16, "epochs": 6, "lr": 0.02, "threads": 1, "left_out": 0.2}
    corpus = {"directories": directories, "languages": ["python"]}
    return EmbedderConfig.model_validate({"kind": "embedder", "corpus": corpus, **small, **more})
