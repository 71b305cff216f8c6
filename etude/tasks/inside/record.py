"""Draws calls of functions that their tests do not make, where a task is made: run by itself, with the right files.

Reads a Python literal in /tests/request: "functions", [(module, name)], and how tests are run: "check", the path of a
script that runs them, or the request of `pytests`, whose text is in /tests/pytests.py. What tests pass to a function is
recorded while they run, of pytest's only what a test module passes itself: functions that it does not call are nobody's
promise. Arguments are drawn from that, in which numbers stay between the smallest and the largest that was seen there.
Kept are plain arguments that no test passed and whose values are plain and exact. Writes [(module, name, arguments,
value)] to /logs/drawn, as Python writes it.
"""

import ast
import os
import random
import runpy
import signal
import sys

WORKSPACE = "/workspace"
TRIES, MOST, LONGEST, CPU_S = 400, 12, 600, 0.3


def main():
    with open("/tests/request", encoding="utf-8") as told:
        request = ast.literal_eval(told.read())
    os.chdir(WORKSPACE)
    given = recorded(request)
    signal.signal(signal.SIGVTALRM, too_long)
    chosen = []
    for module, name in request["functions"]:
        if given[module, name]:
            function = getattr(sys.modules[module], name)
            chosen += [(module, name, *call) for call in unseen(function, given[module, name])]
    with open("/logs/drawn", "w", encoding="utf-8") as written:
        written.write(repr(chosen))


def unseen(function, given):
    """[(arguments, value)], of each value two at most."""
    rng, found, known = random.Random(repr(given)), {}, {repr(values) for values in given}
    for _ in range(TRIES):
        text = repr(drawn(rng, given))
        value = answer(function, text) if text not in known else None
        if value is not None and len(text) + len(value) < LONGEST and value == answer(function, text):
            found.setdefault(value, {}).setdefault(text)
    chosen = [(ast.literal_eval(text), ast.literal_eval(value)) for value in found for text in [*found[value]][:2]]
    return chosen[:MOST]


def recorded(request):
    """By function the positional arguments of every call, those that are plain."""
    found = {(module, name): [] for module, name in request["functions"]}
    callers = [f"{WORKSPACE}/{path}" for path in request.get("modules", ())]

    def seen(frame, event, _):
        code = frame.f_code
        calls = found.get((frame.f_globals.get("__name__"), code.co_qualname)) if event == "call" else None
        if calls is None or (callers and frame.f_back and frame.f_back.f_code.co_filename not in callers):
            return
        values = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
        if code.co_flags & 4:
            values += frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
        if plain(values) and repr(values) not in map(repr, calls):
            calls.append(ast.literal_eval(repr(values)))

    sys.setprofile(seen)
    try:
        run_tests(request)
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    return found


def run_tests(request):
    if "check" in request:
        sys.path.insert(0, WORKSPACE)
        runpy.run_path(request["check"], run_name="__main__")
        return
    space: dict = {"__name__": "pytests"}
    with open("/tests/pytests.py", encoding="utf-8") as text:
        exec(compile(text.read(), "pytests", "exec"), space)
    space["outcomes"](request, space["Seen"]({}))


def drawn(rng, given):
    values = list(rng.choice(given))
    for place in rng.sample(range(len(values)), min(len(values), rng.choice((1, 1, 2)))):
        others = [other[place] for other in given if len(other) > place and type(other[place]) is type(values[place])]
        values[place] = altered(rng, values[place], others)
    return values


def altered(rng, value, others):
    if type(value) is int:
        return rng.randint(min(others), max(others))
    if type(value) in (list, tuple, str) and len(value) > 1 and rng.random() < 0.7:
        items = list(value)
        rng.shuffle(items)
        items = items if rng.random() < 0.5 else items[1:]
        return "".join(items) if type(value) is str else type(value)(items)
    return rng.choice(others)


def answer(function, text):
    """The value's text, or None where it is not plain, not exact or late."""
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        value = function(*ast.literal_eval(text))
        value = (
            [each for _, each in zip(range(200), value, strict=False)] if hasattr(type(value), "__next__") else value
        )
        return repr(value) if plain(value) else None
    except Exception:
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def plain(value):
    if type(value) in (list, tuple):
        return all(map(plain, value))
    if type(value) is dict:
        return plain([*value.keys(), *value.values()])
    return value is None or type(value) in (bool, int, str, bytes)


def too_long(*_):
    raise TimeoutError("takes too long for a verifier")


if __name__ == "__main__":
    main()
