"""The parser of tool calls under a million broken messages.

    python benchmarks/parser.py [--inputs 1000000] [--seed 0]

Messages are well-formed calls, broken in the ways that models and servers break them (a closer lost, a tag doubled,
lines joined, a piece cut out, moved or repeated, a type wrong, a name misspelt), and soups of tags. Each is read whole
and in random pieces, strictly or leniently, cut off or not. `exceptions` counts messages that raise, `torn` those that
pieces read otherwise than the whole, `lost` those whose raw text is not given back, or of which an item's raw text
is no part.

`rescued` is the share of sound messages with one of the `MISTAKES` that models really make in which every call is read
as it was meant, leniently; `rescued_strictly` the same as training reads them.

`growth` is how much more CPU time eight times the text takes, the worst over the shapes of text that parsers are slow
at: about 8 is linear, about 64 quadratic. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from statistics import mean
from typing import Any

from etude.harness.prompt import render_calls
from etude.harness.protocol import CallParser, Item, Text, calls_of, parse_message
from etude.harness.schema import Parameter, ToolCall, ToolSchema

TOOLS = {
    tool.name: tool
    for tool in (
        ToolSchema("read", "", (Parameter("path", ""), Parameter("start", "", "integer", required=False))),
        ToolSchema("edit", "", (Parameter("path", ""), Parameter("old", ""), Parameter("new", ""))),
        ToolSchema("plan", "", (Parameter("items", "", "array"), Parameter("done", "", "boolean", required=False))),
        ToolSchema("list", "", (Parameter("path", ""), Parameter("depth", "", "integer", required=False))),
        ToolSchema("put", "", (Parameter("at", "", "object"), Parameter("weight", "", "number", required=False))),
    )
}
TAGS = (
    "<tool_call>", "</tool_call>", "<function=read>", "<function=edit>", "<function=", "</function>",
    "<parameter=path>", "<parameter=old>", "<parameter=start>", "</parameter>", "<parameter=", ">", "<", "\n",
)  # fmt: skip
NAMED = '{"name": "read", "arguments": {"path": "a.py", "start": 7}}'
WORDS = ("a.py", "7", "[1, 2]", "['a']", '{"b": 1}', NAMED, "true", " ", "\t", "é", "x = '</parameter>'", "\r\n", "")


def message(rng: random.Random) -> str:
    """A well-formed message: words and calls."""
    calls = [_call(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    written = render_calls(calls) if rng.random() < 0.9 else f"<tool_call>\n{NAMED}\n</tool_call>"
    return rng.choice(("", "I look.\n", "a < b\n\n")) + written + rng.choice(("", "\n", "\nDone."))


def _call(rng: random.Random) -> tuple[str, dict[str, str]]:
    text = "\n".join(rng.choice(WORDS) for _ in range(rng.randrange(4)))
    return rng.choice(
        (
            ("read", {"path": "a.py"}),
            ("read", {"path": "a.py", "start": rng.choice(("7", "7.0", '"7"', "null", "seven"))}),
            ("edit", {"path": "b.py", "old": text, "new": rng.choice(WORDS)}),
            ("plan", {"items": rng.choice(('["a"]', "['a']", "a\nb", "[")), "done": rng.choice(("true", "True", "1"))}),
            ("put", {"at": rng.choice(('{"b": 1}', "{'b': 1}", "{", "[]")), "weight": rng.choice(("1.5", "2", "nan"))}),
            ("reed", {"file": "a.py"}),
        )
    )


def broken(text: str, rng: random.Random) -> str:
    """One more fault in a message."""
    a, b = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    tag = rng.choice(TAGS)
    match rng.randrange(8):
        case 0:
            return text.replace(tag, "", 1)
        case 1:
            return text.replace(tag, tag + tag, 1)
        case 2:
            return text.replace("\n", "", rng.randrange(1, 6))
        case 3:
            return text[:a] + text[min(b, a + 12) :]
        case 4:
            return text[:b]
        case 5:
            return text[:b] + text[a:b] + text[b:]
        case 6:
            return text[:a] + tag + text[a:]
        case _:
            return text.replace("\n", rng.choice(("\r\n", "\n\n", " ", "\n  ")), rng.randrange(1, 6))


def soup(rng: random.Random) -> str:
    """Tags and words in any order."""
    return "".join(rng.choice(rng.choice((TAGS, WORDS))) for _ in range(rng.randrange(40)))


def in_pieces(text: str, rng: random.Random, cut: bool, lenient: bool) -> tuple[list[Item], str]:
    """What is read of it in pieces of random size, words told as they come."""
    parser = CallParser(TOOLS, eager=rng.random() < 0.5, lenient=lenient)
    size = rng.choice((1, 3, 17, 200))
    bounds = itertools.accumulate(rng.randrange(1, size + 1) for _ in text)
    cuts = [0, *itertools.takewhile(lambda at: at < len(text), bounds), len(text)]
    items = [item for start, end in itertools.pairwise(cuts) for item in parser.feed(text[start:end])]
    return [*items, *parser.finish(cut)], parser.raw


def joined(items: list[Item]) -> list[Item]:
    """Neighbouring words as one, however they were told."""
    merged: list[Item] = []
    for item in items:
        if isinstance(item, Text) and merged and isinstance(merged[-1], Text):
            merged[-1] = Text(merged[-1].text + item.text)
        else:
            merged.append(item)
    return merged


def try_one(rng: random.Random) -> str:
    """Read one message, and say what was wrong with the reading, or of what sort the message was."""
    faults = rng.randrange(4)
    text = soup(rng) if rng.random() < 0.2 else message(rng)
    for _ in range(faults):
        text = broken(text, rng)
    cut, lenient = rng.random() < 0.2, rng.random() < 0.5
    whole = parse_message(text, TOOLS, cut, lenient=lenient)
    pieces, raw = in_pieces(text, rng, cut, lenient)
    if joined(pieces) != joined(whole):
        return "torn"
    if raw != text or not all((item.text if isinstance(item, Text) else item.raw) in text for item in whole):
        return "lost"
    return "read"


MISTAKES: dict[str, Callable[[str], str]] = {
    "JSON in the block": lambda text: f"<tool_call>\n{NAMED}\n</tool_call>" if text == SHORT else text,
    "no opener": lambda text: text.replace("<tool_call>\n", ""),
    "no closer": lambda text: text.replace("\n</tool_call>", ""),
    "neither": lambda text: text.replace("<tool_call>\n", "").replace("\n</tool_call>", ""),
    "several functions in a block": lambda text: text.replace("\n</tool_call>\n<tool_call>", ""),
    "no end of function": lambda text: text.replace("</function>\n", ""),
    "no end of values": lambda text: text.replace("</parameter>\n", ""),
    "ends early": lambda text: text.removesuffix("</tool_call>").rstrip().removesuffix("</function>"),
    "blank lines": lambda text: text.replace(">\n<", ">\n\n<"),
    "tags on one line": lambda text: text.replace(">\n<", "><"),
    "quoted names": lambda text: re.sub(r"=(\w+)>", r'="\1">', text),
    "spaces in tags": lambda text: re.sub(r"=(\w+)>", r"= \1 >", text),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "integers as floats": lambda text: text.replace("\n7\n", "\n7.0\n"),
    "quoted integers": lambda text: text.replace("\n7\n", '\n"7"\n'),
    "null for what is left out": lambda text: text.replace(f"{LISTED}</function>", f"{LISTED}{NULL}</function>"),
    "Python's booleans": lambda text: text.replace("\ntrue\n", "\nTrue\n"),
    "Python's lists": lambda text: text.replace('["a", "b"]', "['a', 'b']"),
    "Python's dictionaries": lambda text: text.replace('{"b": 1}', "{'b': 1}"),
}
SHORT = render_calls([("read", {"path": "a.py", "start": "7"})])
LISTED, NULL = "src\n</parameter>\n", "<parameter=depth>\nnull\n</parameter>\n"


def rescued(rng: random.Random, rounds: int, lenient: bool) -> dict[str, float]:
    """By mistake: the share of messages that are read as they were meant."""
    shares: dict[str, float] = {}
    for name, mistake in MISTAKES.items():
        read = asked = 0
        while asked < rounds:
            calls = [_sound_call(rng) for _ in range(rng.choice((1, 2)))]
            text = render_calls(calls)
            if (wrong := mistake(text)) == text:
                continue
            asked += 1
            read += _meant(wrong, lenient) == _meant(text, lenient=False)
        shares[name] = read / asked
    return shares


def _meant(text: str, lenient: bool) -> list[tuple[str, dict[str, Any]] | None]:
    items = calls_of(parse_message(text, TOOLS, lenient=lenient))
    return [(call.name, dict(call.arguments)) if isinstance(call, ToolCall) else None for call in items]


def _sound_call(rng: random.Random) -> tuple[str, dict[str, str]]:
    code = "\n".join(rng.choice(("def f(x):", "    return x", "", "x = '</b>'", "if a < b:")) for _ in range(4))
    return rng.choice(
        (
            ("read", {"path": "a.py", "start": "7"}),
            ("edit", {"path": "b.py", "old": code, "new": "pass"}),
            ("plan", {"items": '["a", "b"]', "done": "true"}),
            ("put", {"at": '{"b": 1}'}),
            ("list", {"path": "src"}),
        )
    )


SLOW: dict[str, Callable[[int], str]] = {
    "one line": lambda n: "x" * n,
    "one line of spaces": lambda n: " " * n,
    "lines": lambda n: "x\n" * (n // 2),
    "openers": lambda n: "<tool_call>" * (n // 11),
    "openers and spaces": lambda n: "<tool_call> \t " * (n // 14),
    "openers on lines": lambda n: "<tool_call>\n" * (n // 12),
    "functions on one line": lambda n: "<function=read>" * (n // 15),
    "open names": lambda n: "<function=" * (n // 10),
    "calls on one line": lambda n: "<function=read><parameter=path>a</parameter></function>" * (n // 55),
    "words before calls on one line": lambda n: "x" * (n // 2) + "<tool_call><function=read></function>" * (n // 74),
    "values on one line": lambda n: "<function=read>" + "<parameter=path>a</parameter>" * (n // 29),
    "calls": lambda n: render_calls([("read", {"path": "a"})] * (n // 85)),
    "closers in a value": lambda n: "<function=read>\n<parameter=path>\n" + "x</parameter>\n" * (n // 14),
    "a lost closer's tags": lambda n: "<function=read>\n<parameter=path>\n" + "</tool_call> " * (n // 13) + "x\n",
    "spaces in a malformed call": lambda n: "<tool_call>x" + " " * n,
    "blocks without a function": lambda n: "<tool_call>x</tool_call>" * (n // 24),
}


def seconds(text: str, size: int) -> float:
    """CPU time of reading a text in pieces, best of three."""
    best = float("inf")
    for _ in range(3):
        parser = CallParser(TOOLS, eager=True)
        start = time.thread_time()
        for at in range(0, len(text), size):
            parser.feed(text[at : at + size])
        parser.finish()
        best = min(best, time.thread_time() - start)
    return best


def growth(characters: int) -> dict[str, float]:
    """By shape: the time of eight times the text over that of the text."""
    return {
        name: max(seconds(make(8 * characters), size) / seconds(make(characters), size) for size in (4, 1 << 30))
        for name, make in SLOW.items()
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--characters", type=int, default=50_000, help="of the smaller text that growth is taken of")
    given = options.parse_args()
    seen = Counter[str]()
    start = time.process_time()
    for number in range(given.inputs):
        try:
            seen[found := try_one(random.Random(given.seed << 32 | number))] += 1
        except Exception as error:  # any at all is a finding
            seen[found := "exceptions"] += 1
            print(f"input {number}: {error!r}")
        if found in ("torn", "lost"):
            print(f"input {number}: {found}")
    took = time.process_time() - start
    by_shape = growth(given.characters)
    for name, ratio in sorted(by_shape.items(), key=lambda each: -each[1]):
        print(f"{ratio:5.1f}  {name}")
    rescues = {lenient: rescued(random.Random(given.seed), 200, lenient) for lenient in (True, False)}
    for name, share in sorted(rescues[True].items(), key=lambda each: each[1]):
        print(f"{share:5.0%}  {rescues[False][name]:5.0%} strictly  {name}")
    figures = {
        "inputs": given.inputs,
        **{name: seen[name] for name in ("exceptions", "torn", "lost")},
        "rescued": round(mean(rescues[True].values()), 4),
        "rescued_strictly": round(mean(rescues[False].values()), 4),
        "growth": round(max(by_shape.values()), 1),
        "us_per_input": round(1e6 * took / given.inputs, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
