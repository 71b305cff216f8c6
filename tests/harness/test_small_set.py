"""The bytes that the shipped model was trained on, from prompt to the last result, are the bytes it is given."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from small_set import transcript


def test_the_small_set_says_what_it_always_said() -> None:
    golden = json.loads((Path(__file__).parent / "small_set.json").read_text(encoding="utf-8"))
    assert asyncio.run(transcript()) == golden
