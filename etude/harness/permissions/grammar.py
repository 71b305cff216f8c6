"""Where tree-sitter-bash is known to read a command line otherwise than a shell does: such a line is Unreadable.

Owns `check_reading`, `Unreadable`, and `has_lone_dash`, the one word that the grammar loses and that is read all the
same. The grammar was made to colour text. It passes over what it does not expect, and
sees operators where a shell sees one word. Each check here is a difference that was found by comparing it with bash and
dash (`benchmarks/permissions.py`). Which commands a line holds is `permissions.shell`'s to say.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from etude.harness.permissions.literals import text_of

if TYPE_CHECKING:
    from tree_sitter import Node


class Unreadable(Exception):
    """The command line cannot be judged piece by piece. The message says why, for whoever is asked instead."""


REDIRECTS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
_BLANK = re.compile(r"(?:[ \t\n]|(?<=[ \t\n])\\\n)*")
_BLANK_INSIDE = re.compile(r"(?<!\\)(?:\\\\)*[ \t\n]|\\\n")
_NUMBER = re.compile(rb"(?:^|[\s;&|(){}`])(?:\d+|\{\w+\})\Z")
_NUMBER_ENDS = b"0123456789}"
_EXPANSION = re.compile(rb"(?<!\\)(?:\\\\)*(?:\$[\w({\[@*#?!-]|`)")
_DASH = re.compile(r"[ \t]+-[ \t]+")
_ENDS_IN_A_COMMAND = ("list", "pipeline", "negated_command")
_EXPANSIONS = {"command_substitution", "arithmetic_expansion", "expansion", "simple_expansion"}


def check_reading(root: Node, source: bytes) -> None:
    """Raises Unreadable where a shell would, or could, read another line than this tree."""
    _check_tokens(root, source)
    _check_expansions(root, source)
    _check_nodes(root, source)


def _check_tokens(root: Node, source: bytes) -> None:
    """Between two tokens there may be blanks only: a line that goes on in the midst of a word is one word to a shell
    and two here."""
    regions = [root]
    while regions:
        region = regions.pop()
        at = region.start_byte if region is not root else 0
        for leaf in _leaves(region, regions):
            start = max(at - 1, 0)
            if leaf.type == "word" and _BLANK_INSIDE.search(text_of(leaf)):
                raise Unreadable("a word goes over the end of a line")
            if not _BLANK.fullmatch(source[start : leaf.start_byte].decode(errors="replace"), at - start):
                _check_dash(leaf, at, source[at : leaf.start_byte].decode(errors="replace"))
            at = max(at, leaf.end_byte)
        if region is root and source[at:].strip(b" \t\n"):
            raise Unreadable("it ends in something that is no command")


def _check_dash(leaf: Node, at: int, gap: str) -> None:
    """The grammar loses a lone `-` right before a here-document, as in `python3 - <<E`. It is accepted only where
    `has_lone_dash` gives it back to its command."""
    if "\\\n" in gap:
        raise Unreadable("a line is continued in the midst of a word")
    owner = leaf.parent
    command = _command_before(owner) if owner is not None and owner.start_byte == leaf.start_byte else None
    if command is None or command.end_byte != at or not _DASH.fullmatch(gap):
        raise Unreadable(f"it is not clear what {gap.strip()} belongs to")


def _command_before(node: Node) -> Node | None:
    """The command whose last word stands right before a here-document."""
    before = node.prev_sibling if node.type == "heredoc_redirect" else None
    while before is not None and before.type in _ENDS_IN_A_COMMAND:
        before = before.children[-1]
    whole = before is not None and before.type == "command" and before.children[-1].type not in REDIRECTS
    return before if whole else None


def has_lone_dash(command: Node) -> bool:
    """Whether a `-` that is no token stands between a command and the here-document behind it: its last word."""
    at, parent = command, command.parent
    while parent is not None and at.next_sibling is None and parent.type in _ENDS_IN_A_COMMAND:
        at, parent = parent, parent.parent
    behind = at.next_sibling
    if parent is None or behind is None or behind.type != "heredoc_redirect" or _command_before(behind) != command:
        return False
    gap = (parent.text or b"")[command.end_byte - parent.start_byte : behind.start_byte - parent.start_byte]
    return bool(_DASH.fullmatch(gap.decode(errors="replace")))


def _leaves(region: Node, regions: list[Node]) -> Iterator[Node]:
    """The tokens of a region in order. What is in quotes, blanks too, is one of them; the substitutions in it are
    further regions."""
    stack = list(reversed(region.children))
    while stack:
        node = stack.pop()
        if node.child_count == 0:
            yield node
        elif node.type in ("string", "heredoc_body"):
            yield node
            regions += _substitutions(node)
        else:
            stack.extend(reversed(node.children))


def _check_nodes(root: Node, source: bytes) -> None:
    """The grammar takes words of the command for a redirection's, and the number of one, if it is 0 or in braces, for a
    word."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.type == "test_command" and node.children[0].type in ("[", "[["):
            _check_test(node)
        if node.type not in REDIRECTS:
            continue
        numbers = [text_of(child) for child in node.children if child.type == "file_descriptor"]
        # the last byte first: a line may hold thousands of redirections, and the search begins at its beginning
        could_be = not numbers and source[node.start_byte - 1 : node.start_byte] in _NUMBER_ENDS
        if not all(map(str.isdecimal, numbers)) or (could_be and _NUMBER.search(source[: node.start_byte])):
            raise Unreadable("a word stands where the number of a redirection should")
        if any(child.type in ("<<", "<<-") and text_of(child) != child.type for child in node.children):
            raise Unreadable("- stands right before <<; put a blank between them")
        if node.type == "heredoc_redirect" and node.children_by_field_name("argument"):
            raise Unreadable("words follow a redirection")
        if node.type == "heredoc_redirect" and _ends_elsewhere(node, source):
            raise Unreadable("a here-document ends elsewhere than for the grammar")


def _check_test(node: Node) -> None:
    """What stands together in a test is one word, where the grammar sees an operator: `-x` is no `-` and x, and `[["a"`
    is a command of that name."""
    together = any(one.end_byte == other.start_byte for one, other in itertools.pairwise(node.children))
    if together and node.type != "parenthesized_expression":
        raise Unreadable("blanks are missing in a test")
    for child in node.children:
        if child.type.endswith("_expression"):
            _check_test(child)


def _check_expansions(root: Node, source: bytes) -> None:
    """What a shell could expand must be an expansion to the grammar too. It passes over one behind blanks in quotes and
    in here-documents, and takes single quotes within double ones for quotes."""
    rest, waiting = bytearray(source), [(root, False)]
    while waiting:
        node, within = waiting.pop()
        seen: list[Node] = []
        if node.type == "command_substitution" and text_of(node).startswith("$(("):
            raise Unreadable("it is not clear whether $(( is arithmetic, in which single quotes are none")
        if node.type == "command_substitution" and re.match(r"`(.|\n)*\\[$`\\]", text_of(node)):
            raise Unreadable("between backticks a backslash is taken off before the rest is read")
        if node.type in _EXPANSIONS:
            seen = [node.children[0], node.children[-1]] if node.type != "simple_expansion" else node.children[:1]
            within = within and not node.type.startswith("command")
        elif node.type in ("raw_string", "ansi_c_string") and not within:
            seen = [node]
        elif node.type == "heredoc_redirect" and is_quoted(node):
            seen = [child for child in node.children if child.type == "heredoc_body"]
        for each in seen:
            rest[each.start_byte : each.end_byte] = b" " * (each.end_byte - each.start_byte)
        waiting += [(child, within or node.type in ("string", "heredoc_body")) for child in node.children]
    if _EXPANSION.search(rest):
        raise Unreadable("a substitution stands where it cannot be read")


def is_quoted(node: Node) -> bool:
    """Whether a here-document is taken as it stands."""
    start = next((text_of(child) for child in node.children if child.type == "heredoc_start"), "")
    return any(mark in start for mark in "'\"\\")


def _ends_elsewhere(node: Node, source: bytes) -> bool:
    """The grammar passes over the last line of a here-document behind a bare `$`, and takes one with more on it."""
    ends = [child.end_byte for child in node.children if child.type == "heredoc_end"]
    if any(source[end : end + 1] not in (b"", b"\n") for end in ends):
        return True
    start = next((text_of(child) for child in node.children if child.type == "heredoc_start"), "")
    end = re.sub(r"['\"\\]", "", start)
    body = next((text_of(child) for child in node.children if child.type == "heredoc_body"), "")
    return any(line.lstrip("\t") == end for line in body.split("\n"))


def _substitutions(node: Node) -> Iterator[Node]:
    """The outermost substitutions below a node."""
    stack = list(node.children)
    while stack:
        child = stack.pop()
        if child.type in ("command_substitution", "process_substitution"):
            yield child
        else:
            stack.extend(child.children)
