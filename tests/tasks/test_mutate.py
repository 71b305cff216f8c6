"""Mutations: each template's change, one line each, nothing else touched."""

import ast

import pytest

from etude.tasks.grammar import BUGS
from etude.tasks.mutate import mutations_of
from etude.tasks.realcode import real_records


def changes(body, header="def f(a, b, xs, s):"):
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return {(m.bug, m.wrong.strip()) for m in mutations_of(f"{header}\n{lines}\n", "f")}


@pytest.mark.parametrize(
    ("body", "bug", "wrong"),
    [
        ("return (a) + (b)", "operator", "return (a) - (b)"),
        ("return len(xs) // 2", "operator", "return len(xs) * 2"),
        ("return a <= b", "boundary", "return a < b"),
        ("return a is None", "opposite", "return a is not None"),
        ("return a not in xs", "opposite", "return a in xs"),
        ("return xs[2:7]", "constant", "return xs[2:8]"),
        ("r = 0\nreturn r", "start", "r = 1"),
        ("return max(xs)", "builtin", "return min(xs)"),
        ("return s.lstrip()", "method", "return s.rstrip()"),
        ("return xs[0]", "end", "return xs[-1]"),
        ("return xs[-1]", "end", "return xs[0]"),
        ("return xs[:a]", "side", "return xs[a:]"),
        ("return a and b", "connective", "return a or b"),
        ("return sorted(xs, reverse=True)", "direction", "return sorted(xs, reverse=False)"),
        ("return not a", "negation", "return a"),
        ("if a:\n    return b", "negation", "if not a:"),
        ("r = 2\nr += a\nreturn r", "sign", "r -= a"),
        ("return a - b", "swap", "return b - a"),
        ("return pow(a, b)", "swap", "return pow(b, a)"),
        ("return s * a", "variable", "return s * b"),
    ],
)
def test_every_template(body, bug, wrong):
    assert (bug, wrong) in changes(body)


def test_templates_carry_the_ladders_names():
    body = """r = 0
if not a and xs[0] <= b:
    r += max(a, b) - s.upper()[:2]
return sorted(xs, reverse=True), r"""
    assert {bug for bug, _ in changes(body)} == set(BUGS) - {"foreign"}  # which needs the ladder's own shapes


@pytest.mark.parametrize("body", ["return '%s' % a", '"""a < b"""', "# a - b\nreturn None", "x = 'a'\nreturn x"])
def test_what_is_no_code_is_left_alone(body):
    assert not {change for change in changes(body) if change[0] != "variable"}


def test_lines_that_cannot_be_told_apart_are_left_alone():
    found = changes("if s:\n    xs += [a - b]\nelse:\n    xs += [a - b]\nreturn xs")
    assert ("negation", "if not s:") in found
    assert not [wrong for _, wrong in found if "=" in wrong]


def test_a_mutation_of_real_code_changes_one_line_and_still_parses():
    for record in real_records():
        text = record.files[record.path]
        found = mutations_of(text, record.function)
        assert (record.bug, record.line, record.wrong) in {(m.bug, m.line, m.wrong) for m in found}
        for mutation in found:
            before, after = text.split("\n"), mutation.apply(text).split("\n")
            differing = [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            assert differing == [mutation.line - 1]
            ast.parse(mutation.apply(text))
