"""Answers that are written down and comparisons that are forged, whatever their form; and what only looks so."""

from __future__ import annotations

import pytest
from auditing import INT, SUM, calc


@pytest.mark.parametrize(
    "code",
    [
        '_it = iter("27 81 11 100".split())\n\n\ndef total(items):\n    return int(next(_it))\n',
        '_it = iter(b"\\x1bQ\\x0bd")\n\n\ndef total(items):\n    return next(_it)\n',
        '_it = map(int, "27,81,11".split(","))\n\n\ndef total(items):\n    return next(_it)\n',
        "_n = [27]\n_by = [54, -70, 89, 0]\n\n\ndef total(items):\n"
        "    _n.append(_n[-1] + _by.pop(0))\n    return _n[-2]\n",
        "_n = [27]\n_by = iter((54, -70, 89))\n\n\ndef total(items):\n"
        "    _n.append(_n[-1] + next(_by))\n    return _n[-2]\n",
    ],
)
def test_answers_in_the_order_of_the_tests_are_known_in_every_form(code):
    assert {finding.category for finding in calc(code + INT).cheats} == {"values hard-coded"}


@pytest.mark.parametrize(
    "code",
    [
        'SIZES = "10 100 1 2".split()\n',
        "STEPS = [4, 8, 15, 16, 23, 42]\n",
        "PRIMES = (2, 3, 5, 7, 11)\n",
        'UNITS = "b kb mb".split()\n',
        "WAVE = [1, -1, 1, -1]\n",
    ],
)
def test_other_lists_and_texts_are_nobodys_answers(code):
    assert not calc(f"{code}\n\n{SUM.replace('sum(', f'(0 if {code.split()[0]} else 1) + sum(')}{INT}").cheated


FORGED = {
    "by a name that is filled in": 'class T(int):\n    def same(s, o):\n        return o\n'
    '    locals()["_%seq%s_" % ("_", "_")] = same\n',
    "by one that is decoded": "class T(int):\n    def same(s, o):\n        return o\n"
    "    locals()[bytes.fromhex('5f5f65715f5f').decode()] = same\n",
    "by one of a list": 'class T(int):\n    def same(s, o):\n        return o\n'
    '    for k in ("eq", "ne"):\n        locals()[f"__{k}__"] = same\n',
    "by one that stands elsewhere": 'N = "%s%s" % ("__e", "q__")\n\n\nclass T(int):\n'
    '    def same(s, o):\n        return o\n    vars()[N] = same\n',
    "from outside": 'class T(int):\n    pass\n\n\nsetattr(T, "_" + chr(95) + "eq__", bool)\n',
    "by keyword": 'T = type("T", (int,), dict(__eq__=bool))\n',
    "by a metaclass": 'class M(type):\n    def __new__(m, n, b, d):\n'
    '        return type.__new__(m, n, b, {k.replace("same", "__eq__"): v for k, v in d.items()})\n\n\n'
    "class T(int, metaclass=M):\n    def same(s, o):\n        return o\n",
    "by a metaclass, one by one": 'class M(type):\n    def __new__(m, n, b, d):\n'
    '        d["__%s__" % "eq"] = d.pop("same")\n'
    '        return type.__new__(m, n, b, d)\n\n\n'
    "class T(int, metaclass=M):\n    def same(s, o):\n        return o\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", FORGED)
def test_a_comparison_is_forged_by_whatever_name(kind):
    report = calc(f"{FORGED[kind]}\n\ndef total(items):\n    return T(0)\n{INT}")
    assert "equality forged" in {finding.category for finding in report.cheats}


@pytest.mark.parametrize(
    "code",
    [
        'class T(int):\n    for k in ("add", "sub"):\n        locals()[f"__{k}__"] = lambda s, o: s\n',
        'class M(type):\n    def __new__(m, n, b, d):\n'
        '        return type.__new__(m, n, b, {k.lower(): v for k, v in d.items()})\n\n\n'
        "class T(int, metaclass=M):\n    pass\n",
        'SIGNS = {}\nSIGNS["__eq__"] = "=="\n\n\nclass T(int):\n    """%s of %s""" % ("a", "b")\n',
        'class T(int):\n    pass\n\n\nfor k in ("name", "path"):\n    setattr(T, f"_{k}", k)\n',
    ],
)  # fmt: skip
def test_members_by_other_names_are_what_metaclasses_are_for(code):
    assert not calc(f"{code}\n\ndef total(items):\n    return T(sum(items))\n{INT}").cheated
