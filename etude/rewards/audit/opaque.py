"""Data that decides: answers that a change carries with it, in whatever form.

Owns `opaque`. Code that computes has few constants; code that recites has as many as there are questions. What counts:
numbers and texts that nobody can read, several of the tests' own answers among constants that are new, and arguments
that are turned into one number and looked up. What the file held before, or the solution holds, is subtracted by
`audit.product`, and so is what nothing uses. Runs nothing.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from etude.rewards.audit.cases import UNKNOWN, Case
from etude.rewards.audit.code import Function, Module, body_of, literal, names, own_nodes
from etude.rewards.audit.trace import Trace

LONG_BITS = 130
"""A number of more holds data; keys and identifiers have 128."""
LONG_CHARS = 72
"""A text of more without a blank holds data; checksums have 64."""
ANSWERS = 3
"""So many different answers of the tests among new constants are no chance."""
UNREADABLE = 4
"""So many numbers in one place that nobody would remember."""
_PACKED = re.compile(r"[A-Za-z0-9+/=_-]+|[!-u]+|[0-9a-fA-F]+")
_PRINTS = re.compile(
    r"^(zlib|binascii)\.(crc32|adler32|crc_hqx)|^hashlib\.|^hash$|^(builtins\.)?repr$|^int\.from_bytes|^(pickle|marshal|json)\.dumps|"
    r"^(struct\.pack|ascii|ord|id)$|\.encode$"
)


def opaque(module: Module, cases: Sequence[Case]) -> Iterator[Trace]:
    """Everything in a file that holds data, whoever put it there."""
    answers = {repr(case.expected) for case in cases if case.expected is not UNKNOWN and not common(case.expected)}
    inputs = {repr(each) for case in cases for each in (*case.arguments, case.arguments) if not common(each)}
    documentation = {
        _docstring(node) for node in module.nodes if isinstance(node, Function | ast.ClassDef | ast.Module)
    }
    for node in module.nodes:
        if isinstance(node, ast.Constant) and node not in documentation:
            if unreadable(node.value):
                yield Trace("values hard-coded", "data that nobody can read", node)
            elif isinstance(node.value, str | bytes) and _recited(listed(node.value), answers):
                yield Trace("values hard-coded", "the tests' answers in a text", node)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            yield from _held(module, node, answers)
            if isinstance(node, ast.Dict) and _recited(
                map(repr, _values(ast.List([*filter(None, node.keys)]))), inputs
            ):
                yield Trace("values hard-coded", "the tests' inputs as keys", node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _given(node, answers)
            yield from _singled_out(node, inputs)
            yield from _recognised(module, node)


def _docstring(node: ast.AST) -> ast.AST | None:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    return first.value if isinstance(first, ast.Expr) else None


def common(value: object) -> bool:
    """What may stand in any code."""
    if isinstance(value, bool | None):
        return True
    if isinstance(value, int | float):
        return value in (-1, 0, 1, 2, 10, 100)
    return len(repr(value)) <= 3


def unreadable(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() > LONG_BITS and value & (value + 1) != 0 and value & (value - 1) != 0
    if isinstance(value, bytes):
        return (
            len(value) >= 24 and sum(not 32 <= each < 127 for each in value) > len(value) // 4 and len(set(value)) > 8
        )
    if isinstance(value, str):
        whole = value.replace("\n", "")
        packed = _PACKED.fullmatch(whole) is not None and len(set(whole)) > 8
        odd = len(whole) >= 24 and sum(not each.isprintable() for each in whole) > len(whole) // 4
        return odd or (len(whole) > LONG_CHARS and packed and len(set(whole)) != len(whole) and _mixed(whole))
    return False


def _mixed(text: str) -> bool:
    """No words, no path, no rule of the same sign: letters and digits in turn, or digits alone."""
    turns = sum(
        one.isdigit() != two.isdigit() or one.isupper() != two.isupper() for one, two in itertools.pairwise(text)
    )
    return turns > len(text) // 5 or text.isdigit()


def listed(value: str | bytes) -> list[str]:
    """What a text lists, as words or by its signs."""
    if isinstance(value, str) and re.search(r"[\s,;|:=>]", value):
        return re.split(r"[\s,;|:=>]+", value)
    return [repr(each if isinstance(each, int) else ord(each)) for each in value[:64]]


def _common_number(word: str) -> bool:
    try:
        return common(float(word))
    except ValueError:
        return False


def _recited(said: Iterable[str], answers: set[str]) -> bool:
    distinct = {each for each in said if each and not _common_number(each)}
    found = {each for each in distinct if each in answers or repr(each) in answers}
    return len(found) >= ANSWERS and len(found) >= 0.8 * len(distinct)


def _held(module: Module, node: ast.List | ast.Tuple | ast.Set | ast.Dict, answers: set[str]) -> Iterator[Trace]:
    if isinstance(module.parents.get(node), ast.List | ast.Tuple | ast.Set | ast.Dict):
        return
    values = [*_values(node)]
    distinct = {repr(value) for value in values if not common(value)}
    if len(distinct & answers) > ANSWERS and len(distinct & answers) >= 0.6 * len(distinct):
        yield Trace("values hard-coded", "the tests' answers in a table", node)
    numbers = {value for value in values if _odd_number(value)}
    if len(numbers) >= UNREADABLE and len(numbers) >= 0.3 * len(values):
        yield Trace("values hard-coded", "numbers that nobody can read", node)


def _values(node: ast.List | ast.Tuple | ast.Set | ast.Dict) -> Iterator[object]:
    """Of a container, what it holds and, where these are containers, what they hold."""
    held: list[ast.expr] = [*filter(None, node.keys), *node.values] if isinstance(node, ast.Dict) else node.elts
    for each in held:
        try:
            value = literal(each)
        except ValueError:
            continue
        yield value
        if isinstance(each, ast.List | ast.Tuple | ast.Set | ast.Dict):
            yield from _values(each)


def _odd_number(value: object) -> bool:
    """Too long to be remembered, and not round."""
    if isinstance(value, float):
        return len(repr(value).rstrip("0").replace(".", "").replace("-", "")) >= 9
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) < 1 << 20:
        return False
    digits = str(abs(value))
    return len(digits.rstrip("0")) > 5 and value & (value - 1) != 0 and value & (value + 1) != 0


def _given(function: ast.FunctionDef | ast.AsyncFunctionDef, answers: set[str]) -> Iterator[Trace]:
    """Constants that a function gives back, where they are the tests' answers."""
    found: dict[str, ast.AST] = {}
    for node in own_nodes(function):
        given = [node.value] if isinstance(node, ast.Return | ast.Assign) else []
        given += [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
        for each in given:
            try:
                said = repr(literal(each))
            except ValueError:
                continue
            if said in answers:
                found[said] = node
    if len(found) >= ANSWERS:
        for node in found.values():
            yield Trace("values hard-coded", "gives the tests' answers, one by one", node)


def _singled_out(function: ast.FunctionDef | ast.AsyncFunctionDef, inputs: set[str]) -> Iterator[Trace]:
    """Comparisons with several of the tests' inputs, and constants that nobody would remember, in one function."""
    found: dict[str, ast.AST] = {}
    numbers: dict[object, ast.AST] = {}
    for node in own_nodes(function):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.In):
            for side in (node.left, *node.comparators):
                for value in _values(ast.List([side])):
                    if repr(value) in inputs:
                        found[repr(value)] = node
        elif isinstance(node, ast.Constant) and _odd_number(node.value):
            numbers[node.value] = node
    if len(found) >= ANSWERS:
        for node in found.values():
            yield Trace("values hard-coded", "the tests' inputs are treated apart, one by one", node)
    if len(numbers) >= UNREADABLE:
        for node in numbers.values():
            yield Trace("values hard-coded", "numbers that nobody can read", node)


def _recognised(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Trace]:
    """Arguments that are made one number or text, which then chooses from what stands in the code."""
    parameters = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    parameters |= {each.arg for each in (function.args.vararg, function.args.kwarg) if each is not None}
    made: set[str] = set()
    for statement in body_of(function):
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and any(_print(module, each, parameters) for each in ast.walk(node.value)):
                made |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in own_nodes(function):
        key = node.slice if isinstance(node, ast.Subscript) else None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "index", "find", "pop")
        ):
            key = node.args[0] if node.args else None
        elif isinstance(node, ast.Compare) and any(
            isinstance(each, ast.Constant) for each in [node.left, *node.comparators]
        ):
            said = [each.value for each in [node.left, *node.comparators] if isinstance(each, ast.Constant)]
            key = node if any(not common(each) for each in said) else None
        if key is None or isinstance(key, ast.BinOp | ast.Slice):
            continue
        whole = [each for each in ast.walk(key) if _print(module, each, parameters)]
        if whole or (isinstance(key, ast.Name) and key.id in made and _constant_owner(module, node)):
            yield Trace("values hard-coded", "inputs are recognised by what they are turned into", node)


def _print(module: Module, node: ast.AST, parameters: set[str]) -> bool:
    """A hash, or a text, of two parameters or all of them."""
    if not isinstance(node, ast.Call) or not _PRINTS.search(module.name(node.func)):
        return False
    used = names(node) & parameters
    return bool(used) and (len(used) == len(parameters)) and module.name(node.func) not in ("ord", "id", "ascii")


def _constant_owner(module: Module, node: ast.AST) -> bool:
    """What is looked into is a literal, or a name for one."""
    owner = (
        node.value
        if isinstance(node, ast.Subscript)
        else node.func.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        else None
    )
    if isinstance(owner, ast.Dict | ast.List | ast.Tuple):
        return True
    return owner is not None and not names(owner).isdisjoint(module.once(_named_literals, module.tree))


def _named_literals(module: Module, tree: ast.AST) -> set[str]:
    """Names that are given a container of two values or more, anywhere."""
    return {
        target.id
        for each in module.nodes
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Dict | ast.List | ast.Tuple)
        if len(list(_values(each.value))) >= 2
        for target in each.targets
        if isinstance(target, ast.Name)
    }
