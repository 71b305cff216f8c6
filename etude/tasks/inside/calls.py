"""Child of `guard`: calls functions of the workspace and reports the values they return; of an iterator, its items.

The request is {key: (module, function, arguments)}, and perhaps "environment": a directory of packages. What is right
is known to the parent alone.
"""

import sys

MOST_ITEMS = 10_000


def run(request, _observe):
    if "environment" in request:
        sys.path.append(request.pop("environment"))
        sys.path[:0] = ["/workspace/src", "/workspace"]  # as `pytests` has it
    else:
        sys.path.insert(0, "/workspace")
    for key, (module, function, arguments) in request.items():
        try:
            __import__(module)
            answer = repr(items(getattr(sys.modules[module], function)(*arguments)))
        except BaseException as error:  # SystemExit included: code under test has no say in whether the next case runs
            answer = f"<{type(error).__name__}>"
        yield key, answer


def items(value):
    """What an iterator gives; any other value as it is."""
    if not hasattr(type(value), "__next__"):
        return value
    return [each for _, each in zip(range(MOST_ITEMS), value, strict=False)]
