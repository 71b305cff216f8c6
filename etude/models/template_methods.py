"""What a stranger's template may do with a text or a number: the methods it may call, and what each of them costs.

Owns `METHODS`, all methods of Python's own types that there are for a template, and the prices of those whose work or
whose result is larger than what they are given: searches, replacing, joining, padding and formats. A price is paid
before the work is done. Whoever adds a method here says what it costs. Knows no Jinja (`models.template_limits`).
"""

from __future__ import annotations

import re
from string import Formatter
from typing import Any

from etude.models.template_budget import HOLDING, TooMuch, charge, paid_size, weight

_WIDTH, _NUMBER, _FORM, _DIRECTIVES = 10_000, 330, 200, 1000
"""Characters of a padding, of the longest number that is written out, of the form of a date; parts of a format."""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset((
        "capitalize", "casefold", "center", "count", "endswith", "find", "format", "format_map", "index", "isalnum",
        "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join",
        "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rjust", "rstrip", "split",
        "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill",
    )),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
}  # fmt: skip
"""By type; a search from the right is not among them, which Python does slowly. Others have none."""
_STRIPS = frozenset(("strip", "lstrip", "rstrip", "trim"))
_SEARCHES = frozenset(("count", "find", "index", "partition", "replace", "split"))
_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "indent", "tojson", "round"))
_PERCENT = re.compile(r"[^%]+|%%|%(\([^()%]*\))?[-#0 +]*(\d*)(?:\.(\d*))?[hlL]?[a-zA-Z]", re.ASCII)
_DATE = re.compile(r"(?:[^%]|%-?[a-zA-Z]|%%)*", re.ASCII)


def is_method(value: Any, name: str) -> bool | None:
    """Whether a value of Python's own types has this method for a template; None for a type that is not in the list."""
    return next((name in names for kind, names in METHODS.items() if isinstance(value, kind)), None)


def pay_growth(name: str, args: tuple[Any, ...]) -> None:
    """Pay for what a filter, or a method of a text, makes of its arguments, where that is more than they are.

    `join` is given the items first and what stands between them second, however it is called."""
    if name in _PADDING and any(isinstance(each, int) and abs(each) > _WIDTH for each in args[1:]):
        raise TooMuch(f"{name} to a width of more than {_WIDTH:,}")
    if name in _STRIPS:
        charge(_written(args[0]) * max(map(_written, args[1:]), default=0))
    elif name in _SEARCHES:
        sought = args[1:2] if name == "replace" else args[1:]
        pay_search(_written(args[0]), max(map(_written, sought), default=0))
    if name == "replace" and len(args) >= 3:
        known = all(isinstance(each, str) for each in args[:2])
        paid_size((args[0].count(args[1]) if known else _written(args[0])) * _written(args[2]))
    elif name == "join":
        paid_size((len(args[0]) if isinstance(args[0], (str, range, *HOLDING)) else 1) * _written(args[1]))
    elif name == "indent":
        width = max((_written(each) or each for each in args[1:] if isinstance(each, int | str)), default=4)
        paid_size(_written(args[0]) * width)


def pay_search(text: int, sought: int) -> None:
    """Pay for a search for so many characters in so many: the worst, in which all are compared at each place."""
    charge(text * sought if sought <= text else 0)


def pay_percent(form: Any, values: Any) -> None:
    """Pay for `form % values`: what its widths come to is known before, and none may stand in the values."""
    if not isinstance(form, str):
        raise TooMuch("only a text is a format")
    at = size = named = 0
    for _ in range(_DIRECTIVES):
        part = _PERCENT.match(form, at)
        if part is None:
            break
        at = part.end()
        if part[0][0] == "%":
            size += _NUMBER + _widths(part[2], part[3])
            named += part[1] is not None
    if at < len(form):
        raise TooMuch("a format holds other directives than plain ones, or very many")
    paid_size(len(form) + size + max(named, 1) * weight(values))


def pay_format(form: str, values: Any) -> None:
    """Pay for `form.format(…)`: its fields are names or numbers, and their widths plain."""
    size = fields = 0
    for _, field, spec, _ in Formatter().parse(form):
        fields += 1
        if fields > _DIRECTIVES or (field is not None and not re.fullmatch(r"\w*", field)) or set(spec or "") & {*"{}"}:
            raise TooMuch("a format names more in braces than a value and a width, or very many")
        size += _NUMBER + _widths(*re.findall(r"\d+", spec or ""))
    paid_size(len(form) + size + max(fields, 1) * weight(values))


def check_date(form: Any) -> None:
    """Refuse a form that makes more of a date than a line."""
    if isinstance(form, str) and (len(form) > _FORM or not _DATE.fullmatch(form)):
        raise TooMuch(f"a date has a form of at most {_FORM} characters, with plain directives such as %d")


def _widths(*digits: str | None) -> int:
    given = [each for each in digits if each]
    if any(len(each) > len(str(_WIDTH)) or int(each) > _WIDTH for each in given):
        raise TooMuch(f"a format to a width of more than {_WIDTH:,}")
    return sum(map(int, given))


def _written(value: Any) -> int:
    """The characters of a value where it is used as a text. Numbers, and none, are how often and how far."""
    return len(value) if isinstance(value, str) else 0 if isinstance(value, int | None) else weight(value)
