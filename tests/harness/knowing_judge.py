"""A judge behind a scripted server that knows which changes of a calibration file meet their criterion, and no more."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted_openai import Reply

from etude.rewards.judge.aspects import ASPECTS

PAIRS = Path(__file__).parents[2] / "recipes/judge.toml"


def knowing() -> Callable[[dict[str, Any]], Reply]:
    """By the diff that stands in the question; to any other criterion, as the control is one, it says no."""
    told = tomllib.loads(PAIRS.read_text())["pairs"]
    pairs = [(pair["met"].strip("\n"), pair["unmet"].strip("\n")) for pair in told]
    criteria = {ASPECTS.get(pair["criterion"], pair["criterion"]) for pair in told}

    def judge(body: dict[str, Any]) -> Reply:
        text = body["messages"][1]["content"]
        control = not any(f"The property: {each}\n" in f"{text}\n" for each in criteria)
        met = [met for met, unmet in pairs if met in text and unmet not in text and not control]
        quote = next(line for line in met[0].splitlines() if re.match(r"\+[^+]", line)) if met else ""
        ticket = re.search(r"<CHANGE-(\w+)>", text)
        assert ticket
        return Reply(json.dumps({"ticket": ticket[1], "reason": "known", "quote": quote, "holds": bool(met)}))

    return judge
