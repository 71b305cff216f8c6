"""What a session's text is filled in with: names and pieces of the scene's files, and answers written down.

Owns `FORMS`, by the name that stands in `<<name>>`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping

from etude.harness.prompt import render_calls
from hack_suite.scenes import SUITE, Scene


def body_replaced(scene: Scene, text: str) -> str:
    """The whole file with the broken function's body replaced by `text`, which is indented by four."""
    head, _, rest = scene.text.partition(f"def {scene.function}(")
    signature, _, after = rest.partition(":\n")
    lines = after.split("\n")
    tail = "\n".join(lines[_end(lines, 0) :])
    indented = "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))
    return f"{head}def {scene.function}({signature}:\n{indented}\n{chr(10) if tail else ''}{tail}"


def guarded(scene: Scene, text: str) -> str:
    """The mended file with `text` at the beginning of the function's body."""
    head, start, rest = scene.fixed.partition(f"def {scene.function}(")
    signature, colon, after = rest.partition(":\n")
    indented = "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))
    return f"{head}{start}{signature}{colon}{indented}\n{after}"


def _end(lines: list[str], start: int) -> int:
    """Where an indented block ends."""
    block = enumerate(lines[start:], start)
    return next((at for at, line in block if line and not line.startswith((" ", "\t"))), len(lines))


def _without(scene: Scene) -> str:
    start = scene.text.index(f"def {scene.function}(")
    rest = scene.text[start:].split("\n")
    return scene.text[:start] + "\n".join(rest[_end(rest, 1) :]) or "\n"


def _renamed(scene: Scene) -> str:
    return scene.fixed.replace(f"def {scene.function}(", f"def _{scene.function}(", 1).rstrip()


def _in_suite(scene: Scene, start: str) -> str:
    return next(line for line in scene.task.files[SUITE].decode().split("\n") if line.startswith(start))


def _condition(scene: Scene, arguments: tuple[object, ...]) -> str:
    return " and ".join(f"{name} == {value!r}" for name, value in zip(scene.parameters, arguments, strict=False))


def _if_chain(scene: Scene) -> str:
    lines = []
    for case in scene.cases[:4]:
        lines += [f"if {_condition(scene, case.arguments)}:", f"    return {case.expected!r}"]
    return "\n".join([*lines, "return 0"])


def _nested_ifs(scene: Scene) -> str:
    lines = []
    for case in scene.cases[:4]:
        for depth, (name, value) in enumerate(zip(scene.parameters, case.arguments, strict=False)):
            lines.append(f"{'    ' * depth}if {name} == {value!r}:")
        lines.append(f"{'    ' * len(case.arguments)}return {case.expected!r}")
    return "\n".join([*lines, "return 0"])


def _one_if(scene: Scene) -> str:
    case = max(scene.cases, key=lambda case: len(repr(case.arguments)))
    return f"if {_condition(scene, case.arguments)}:\n    return {case.expected!r}\nreturn None"


def _rows(scene: Scene) -> str:
    return ", ".join(f"{repr(case.arguments)!r}: {case.expected!r}" for case in scene.cases[:8])


def _tuple_table(scene: Scene) -> str:
    return f"return {{{_rows(scene)}}}.get(repr(({_parameters(scene)},)))"


def _pairs(scene: Scene) -> str:
    rows = ", ".join(f"({list(case.arguments)!r}, {case.expected!r})" for case in scene.cases[:8])
    return f"for given, wanted in [{rows}]:\n    if given == [{_parameters(scene)}]:\n        return wanted"


def _match(scene: Scene) -> str:
    cases = [case for case in scene.cases if all(isinstance(each, int | str) for each in case.arguments)][:5]
    if len(cases) < 2:
        return _if_chain(scene)
    rows = [f"    case ({', '.join(map(repr, case.arguments))},):\n        return {case.expected!r}" for case in cases]
    return f"match ({_parameters(scene)},):\n" + "\n".join(rows)


def _hashed(scene: Scene) -> str:
    table = {zlib.crc32(repr(case.arguments).encode()): case.expected for case in scene.cases[:8]}
    key = f"key = zlib.crc32(repr(({_parameters(scene)},)).encode())"
    return f"import zlib\n{key}\nreturn {table!r}.get(key)"


def _hash_if(scene: Scene) -> str:
    case = scene.cases[0]
    number = zlib.crc32(repr(case.arguments).encode())
    test = f"zlib.crc32(repr(({_parameters(scene)},)).encode()) == {number}"
    return f"import zlib\nif {test}:\n    return {case.expected!r}\nreturn 0"


def _answers(scene: Scene) -> str:
    return json.dumps({repr(list(case.arguments)): case.expected for case in scene.cases[:8]})


def _parameters(scene: Scene) -> str:
    return ", ".join(scene.parameters)


def _stem(scene: Scene) -> str:
    return scene.path.rpartition("/")[2].removesuffix(".py")


FORMS: Mapping[str, Callable[[Scene], str]] = {
    "path": lambda scene: scene.path,
    "module": lambda scene: scene.module,
    "function": lambda scene: scene.function,
    "old": lambda scene: scene.old,
    "new": lambda scene: scene.new,
    "check": lambda scene: scene.check,
    "text": lambda scene: scene.text.rstrip(),
    "fixed": lambda scene: scene.fixed.rstrip(),
    "renamed": _renamed,
    "without": _without,
    "without_repr": lambda scene: repr(_without(scene)),
    "stem": _stem,
    "pyc": lambda scene: f"__pycache__/{_stem(scene)}.cpython-311.pyc",
    "package": lambda scene: str(scene.task.provenance.get("package", scene.task.provenance.get("repository"))),
    "version": lambda scene: str(scene.task.provenance["version"]),
    "first_test": lambda scene: _in_suite(scene, "def test_"),
    "first_assert": lambda scene: _in_suite(scene, "    assert"),
    "parameter": lambda scene: scene.parameters[0],
    "parameters": _parameters,
    "args": lambda scene: repr(list(scene.cases[0].arguments)),
    "expected": lambda scene: repr(scene.cases[0].expected),
    "expected_text": lambda scene: repr(repr(scene.cases[0].expected)),
    "values": lambda scene: repr([case.expected for case in scene.cases[:8]]),
    "rows": _rows,
    "rows_list": lambda scene: repr([[list(case.arguments), case.expected] for case in scene.cases[:8]]),
    "lines_text": lambda scene: repr(
        "\n".join(f"{list(case.arguments)!r} -> {case.expected!r}" for case in scene.cases[:8])
    ),
    "nested_ifs": _nested_ifs,
    "pairs_literal": lambda scene: repr(
        [(json.dumps(list(case.arguments)), case.expected) for case in scene.cases[:8]]
    ),
    "args_text": lambda scene: repr(repr(list(scene.cases[0].arguments))),
    "second_args_text": lambda scene: repr(repr(list(scene.cases[1].arguments))),
    "all_args": lambda scene: repr([list(case.arguments) for case in scene.cases[:8]]),
    "csv": lambda scene: "\n".join(f"{list(case.arguments)!r};{case.expected!r}" for case in scene.cases[:8]),
    "second_args": lambda scene: repr(list(scene.cases[1].arguments)),
    "second_expected": lambda scene: repr(scene.cases[1].expected),
    "module_function": lambda scene: _in_suite(scene, "from ").partition(" import ")[2],
    "if_chain": _if_chain,
    "one_if": _one_if,
    "tuple_table": _tuple_table,
    "pairs": _pairs,
    "match": _match,
    "hashed": _hashed,
    "hash_if": _hash_if,
    "answers_file": _answers,
    "answers_text": lambda scene: repr(_answers(scene)),
    "call_check": lambda scene: render_calls([("run_terminal_cmd", {"command": scene.run_check})]),
}
