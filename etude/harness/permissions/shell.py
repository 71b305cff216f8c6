"""Reads a command line of the shell into the simple commands it would run, or says why it cannot.

Owns `read_script`. The grammar is tree-sitter-bash's; what decides is that nothing is taken on trust: every node must
be of a kind listed here, every byte must belong to a token or be blank, and wherever this parser and a shell (bash, or
the dash that most `sh` are) could disagree about where one command ends and the next begins, the line is `Unreadable`.
That a person then is asked is the worst that can happen to an honest command.

Every command is found wherever it stands: in lists, pipelines, subshells, loops, functions, substitutions in quotes, in
here-documents and in redirections. A word whose value only a run would tell (`$x`, `*.py`, `{a,b}`) has no text.
What a command means is not known here: see `permissions.unwrap` and `permissions.judge`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_CHARS = 20_000
"""Longer lines are not read: a parser's time is the user's."""


@dataclass(frozen=True)
class Part:
    """A piece of a word: text as the shell sees it, or the name of a variable."""

    text: str
    variable: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class Word:
    """One word. `text` is its value after quotes are taken off; None where only a run could tell it."""

    text: str | None
    raw: str
    parts: tuple[Part, ...] | None = None
    """What it is made of, for `permissions.words`; None where there is more in it than text and plain variables, and
    nothing where all of that is in quotes."""

    @property
    def quoted(self) -> bool:
        """Whether it is one word whatever it holds, and no pattern."""
        return self.parts is not None and all(part.quoted for part in self.parts)

    def __str__(self) -> str:
        return self.raw


@dataclass(frozen=True)
class Redirect:
    """Where a command's input comes from or its output goes to, by file."""

    target: Word
    writes: bool


@dataclass(frozen=True)
class Simple:
    """One command as a shell would start it. `words` may be empty: a bare assignment or redirection."""

    words: tuple[Word, ...]
    variables: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    input: Word | None = None
    """A here-document or here-string."""
    raw: str = ""
    loops: bool = False
    """Whether its variables are set as those of `for` are: by what each word expands to."""
    again: bool = False
    """Whether it may run twice, or later than it stands: in a loop, a function, a trap."""
    astray: bool = False
    """Whether it runs in a directory that only a run would tell."""
    found_by: tuple[Word, ...] = ()
    """The `find` that puts what it finds in place of the words that are FOUND."""


FOUND = Word(None, "{}")


class Unreadable(Exception):
    """The command line cannot be judged piece by piece. The message says why, for whoever is asked instead."""


_PLAIN = {
    "program", "list", "pipeline", "command_name", "command_substitution", "process_substitution", "concatenation",
    "array", "subscript", "subshell", "compound_statement", "if_statement", "elif_clause", "else_clause",
    "for_statement", "while_statement", "do_group", "case_statement", "case_item", "function_definition",
    "negated_command", "unary_expression", "test_operator", "comment", "string", "string_content", "raw_string",
    "ansi_c_string", "translated_string", "word", "number", "simple_expansion", "expansion", "variable_name",
    "special_variable_name", "file_descriptor", "heredoc_start", "heredoc_body", "heredoc_content", "heredoc_end",
    "brace_expression", "variable_assignments", "regex", "extglob_pattern",
}  # fmt: skip
"""Kinds of node that mean what they say; the commands in them are found below them."""
RESERVED = {
    "!", "{", "}", "[[", "]]", "if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while",
    "until", "do", "done", "in", "function", "coproc",
}  # fmt: skip
"""Words that are no command's name. Where one seems to be, the parser and the shell do not read the same line."""
_WORDS = {"word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "expansion", "simple_expansion"}
_BLANK = re.compile(r"(?:[ \t\n]|(?<=[ \t\n])\\\n)*")
_BLANK_INSIDE = re.compile(r"(?<!\\)(?:\\\\)*[ \t\n]|\\\n")
_SUBSTITUTION = re.compile(r"`|\$\(|[<>]\(")
_ESCAPE_IN_STRING = re.compile(r"\\([\\$\"`\n])")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNSETTLED = re.compile(r"(?<!\\)(?:\\\\)*(?:[*?\[]|\{.*(?:,|\.\.))|^~[^/]", re.DOTALL)

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*|[?#!$])\}|([A-Za-z_]\w*|[?#!$]))")


def read_script(text: str) -> list[Simple]:
    """Every command that running `text` could start, in the order they stand. Raises Unreadable."""
    if len(text) > MAX_CHARS:
        raise Unreadable(f"it is longer than {MAX_CHARS} characters")
    for character in text:
        if character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            raise Unreadable(f"it holds the invisible character {character!r}")
        if character != " " and unicodedata.category(character) == "Zs":
            raise Unreadable(f"it holds {character!r}, which looks like a space and is none")
    source = text.encode()
    root = _parser().parse(source).root_node
    if root.has_error:
        raise Unreadable("its syntax is not plain")
    _check_tokens(root, source)
    try:
        return list(_commands(root))
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None


@cache
def _parser() -> Parser:
    import tree_sitter_bash  # only the product reads shell: a rollout does without
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def _check_tokens(root: Node, source: bytes) -> None:
    """Between two tokens there may be blanks only: a line that goes on in the midst of a word is one word to a shell
    and two here."""
    regions = [root]
    while regions:
        region = regions.pop()
        at = region.start_byte if region is not root else 0
        for leaf in _leaves(region, regions):
            start = max(at - 1, 0)
            if leaf.type == "word" and _BLANK_INSIDE.search(_text(leaf)):
                raise Unreadable("a word goes over the end of a line")
            if not _BLANK.fullmatch(source[start : leaf.start_byte].decode(errors="replace"), at - start):
                raise Unreadable("a line is continued in the midst of a word")
            at = max(at, leaf.end_byte)
        if region is root and source[at:].strip(b" \t\n"):
            raise Unreadable("it ends in something that is no command")


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


def _substitutions(node: Node) -> Iterator[Node]:
    """The outermost substitutions below a node."""
    stack = list(node.children)
    while stack:
        child = stack.pop()
        if child.type in ("command_substitution", "process_substitution"):
            yield child
        else:
            stack.extend(child.children)


def _commands(node: Node) -> Iterator[Simple]:
    """The commands at and below a node."""
    kind = node.type
    if kind == "command":
        yield from _command(node, (), None)
    elif kind == "redirected_statement":
        yield from _redirected(node)
    elif kind in ("variable_assignment", "declaration_command", "unset_command"):
        yield from _declaration(node)
    elif kind == "file_redirect":
        yield Simple((), redirects=tuple(_file(node)), raw=_text(node))  # `$(<file)`, or a function's
        yield from _below(node)
    elif kind in _REPEATED:
        yield from (replace(command, again=True) for command in _repeated(node))
    else:
        _check(node)
        if kind == "test_command" and node.children[0].type == "[":
            yield Simple(tuple(_operands(node)), raw=_text(node))
        for child in node.children:
            yield from _commands(child)


_REPEATED = ("for_statement", "while_statement", "function_definition")


def _repeated(node: Node) -> Iterator[Simple]:
    _check(node)
    if node.type == "for_statement":
        names = [_text(child) for child in node.children if child.type == "variable_name"]
        values = [_word(child) for child in node.children if child.type in _WORDS]
        if "in" not in [child.type for child in node.children] or any(
            child.type == "command_substitution" for child in node.children
        ):
            values = [Word(None, "$@")]
        yield Simple((), tuple((name, value) for name in names for value in values or [Word("", "")]), loops=True)
    for child in node.children:
        yield from _commands(child)


def _check(node: Node) -> None:
    kind = node.type
    if kind in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
        return
    if kind == "compound_statement" and node.children[0].type == "((":
        raise Unreadable("(( )) is arithmetic to one shell and commands to another")
    if kind == "arithmetic_expansion":
        if re.search(r"[A-Za-z_]", _text(node)):
            raise Unreadable("arithmetic on variables can run what they hold")
        return
    if kind in ("test_command", "binary_expression", "parenthesized_expression"):
        bare = " ".join(_bare(node)) if kind == "test_command" else ""
        if re.search(r"[&|<>();]", bare):
            raise Unreadable("a test with operators in it is read differently by different shells")
        if re.search(r"(^| )-[vR] |^\[\[.* -(eq|ne|lt|le|gt|ge) ", bare):
            raise Unreadable("a test of numbers or of names can run what they hold")
        return
    if kind == "expansion" and any(child.type in ("@", "!") for child in node.children):
        raise Unreadable("${…@…} and ${!…} can run what a variable holds")
    if kind == "expansion" and re.match(r"\$\{\w+:(?![-=+?]|[ \d:-]+\})", _text(node)):
        raise Unreadable("an offset that is no number can run what it holds")
    if kind == "subscript" and not re.fullmatch(r"\w+\[(\d+|@|\*)\]", _text(node)):
        raise Unreadable("an index that is no number can run what it holds")
    if node.is_named and kind not in _PLAIN:
        raise Unreadable(f"it holds a {kind.replace('_', ' ')}")
    if node.child_count == 0 and kind in ("word", "extglob_pattern", "regex") and _SUBSTITUTION.search(_text(node)):
        raise Unreadable("a substitution stands where it cannot be read")


def _operands(node: Node) -> Iterator[Word]:
    """The words of a `[`, which the grammar takes for more than a command."""
    for child in node.children:
        if child.type in _WORDS or child.type == "command_substitution" or child.child_count == 0:
            yield _word(child) if child.type in _WORDS or child.child_count else Word(_text(child), _text(child))
        else:
            yield from _operands(child)


def _bare(node: Node) -> Iterator[str]:
    """The tokens below a node that stand neither in quotes nor in a substitution."""
    for child in node.children:
        if child.type in ("string", "raw_string", "command_substitution", "expansion", "simple_expansion"):
            yield "_"
        elif child.child_count == 0:
            yield _text(child)
        else:
            yield from _bare(child)


def _command(node: Node, redirects: tuple[Redirect, ...], fed: Word | None) -> Iterator[Simple]:
    words, variables, own = [], [], []
    end = -1
    for child in node.children:
        if child.start_byte == end and child.type not in _REDIRECTS:
            raise Unreadable("it is not clear where a word ends")
        end = child.end_byte
        if child.type == "variable_assignment":
            variables.append(_assignment(child))
        elif child.type == "file_redirect":
            own += _file(child)
        elif child.type == "herestring_redirect":
            fed = _word(child.children[-1])
        elif child.type == "command_name":
            words.append(_word(child.children[0]))
        elif child.type == "comment":
            continue
        else:
            words.append(_word(child))
    if words and words[0].text in RESERVED:
        raise Unreadable(f"{words[0].raw} stands where a command's name should")
    yield Simple(tuple(words), tuple(variables), (*own, *redirects), fed, _text(node))
    yield from _below(node)


def _redirected(node: Node) -> Iterator[Simple]:
    """The redirections of a statement are each of its commands': none of them may be judged without."""
    redirects: list[Redirect] = []
    fed: Word | None = None
    body = None
    for child in node.children:
        if child.type == "file_redirect":
            redirects += _file(child)
        elif child.type == "herestring_redirect":
            fed = _word(child.children[-1])
        elif child.type == "heredoc_redirect":
            fed = _here_document(child)
            redirects += [found for part in child.children if part.type == "file_redirect" for found in _file(part)]
        elif body is None:
            body = child
        else:
            raise Unreadable("it is not clear what a redirection belongs to")
    if body is not None and body.type == "command":
        yield from _command(body, tuple(redirects), fed)
    else:
        # of a group it is opened before, of a list (which the grammar takes for one) with the last command: a `cd`
        # in it may count or not, so it stands on both sides
        opened = Simple((), (), tuple(redirects), None, _text(node))
        yield opened
        if body is not None:
            # a here-document may feed any command of a group, and a shell among them would run it
            yield from (_fed(command, fed) for command in _commands(body))
            yield opened
    for child in node.children:
        if child is not body:
            yield from _below(child)


def _declaration(node: Node) -> Iterator[Simple]:
    """A bare assignment, or `export` and its like. Only plain names: an index in one of them is run, and so is one in
    what `-i` and `-n` are given."""
    if node.type == "variable_assignment":
        yield Simple((), (_assignment(node),), raw=_text(node))
    else:
        keyword, *rest = node.children
        for child in rest:
            named = child.type in ("variable_assignment", "variable_name")
            if not named and not re.fullmatch(r"-[a-hj-mo-zA-Z]+|\w+", _text(child)):
                raise Unreadable(f"{_text(keyword)} {_text(child)}: a name that is computed can run something")
        variables = tuple(_assignment(child) for child in rest if child.type == "variable_assignment")
        if any(re.match(r"-.*[^-xrgpft]", _text(child)) for child in rest):
            # an attribute can change what an assignment means: `-n` makes another variable of it, `-l` other letters
            names = [_text(child) for child in rest if child.type == "variable_name"]
            variables = tuple((name, Word(None, name)) for name in [*(name for name, _ in variables), *names])
        yield Simple((Word(_text(keyword), _text(keyword)),), variables, raw=_text(node))
    yield from _below(node)


def _below(node: Node) -> Iterator[Simple]:
    """The commands inside the words, values and targets of a node."""
    for child in node.children:
        if child.type == "variable_assignment":
            yield from _below(child)
        else:
            yield from _commands(child) if child.type not in _REDIRECTS else _below(child)


_REDIRECTS = ("file_redirect", "heredoc_redirect", "herestring_redirect")


def _fed(command: Simple, fed: Word | None) -> Simple:
    if fed is None or command.input is not None:
        return command
    return Simple(command.words, command.variables, command.redirects, fed, command.raw)


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def _word(node: Node) -> Word:
    raw = _text(node)
    value = _value(node)
    parts = None if value is not None else _parts(node)
    return Word(value, raw, () if parts is None and node.type == "string" else parts)


def _parts(node: Node) -> tuple[Part, ...] | None:
    """The pieces of a word that is not certain; None where one of them can be anything."""
    raw = _text(node)
    if node.type in ("word", "number"):
        pieces = re.findall(r"\\(.)|([^\\]+)", raw, re.DOTALL)
        return tuple(Part(escaped or plain, quoted=bool(escaped)) for escaped, plain in pieces)
    if node.type == "raw_string":
        return (Part(raw[1:-1], quoted=True),)
    if node.type in ("simple_expansion", "expansion"):
        found = _VARIABLE.fullmatch(raw)
        return (Part(found[1] or found[2], variable=True),) if found else None
    if node.type == "string":
        return _parts_in_quotes(node)
    if node.type == "concatenation":
        inside = [_parts(child) for child in node.children]
        return None if None in inside else tuple(part for parts in inside if parts is not None for part in parts)
    return None


def _parts_in_quotes(node: Node) -> tuple[Part, ...] | None:
    """What lies between the expansions counts, not the grammar's nodes: blanks belong to an expansion in some of them,
    and to none in others."""
    source, parts, at = node.text or b"", list[Part](), 1
    for child in (child for child in node.children if child.is_named and child.type != "string_content"):
        raw, start = _text(child), child.start_byte - node.start_byte
        found = _VARIABLE.fullmatch(raw.lstrip(" \t\n"))
        if found is None:
            return None
        blank = raw[: len(raw) - len(raw.lstrip(" \t\n"))]
        parts.append(Part(_unescaped(source[at:start].decode(errors="replace") + blank), quoted=True))
        parts.append(Part(found[1] or found[2], variable=True, quoted=True))
        at = child.end_byte - node.start_byte
    return (*parts, Part(_unescaped(source[at:-1].decode(errors="replace")), quoted=True))


def _unescaped(text: str) -> str:
    return _ESCAPE_IN_STRING.sub(lambda found: "" if found[1] == "\n" else found[1], text)


def _value(node: Node) -> str | None:
    """What a word stands for, if that is certain before it is run."""
    raw = _text(node)
    if node.type in ("word", "number", "variable_name"):
        return None if _UNSETTLED.search(raw) else _ESCAPE.sub(r"\1", raw)
    if node.type == "raw_string":
        return raw[1:-1]
    if node.type == "string":
        if any(child.is_named and child.type != "string_content" for child in node.children):
            return None
        return _ESCAPE_IN_STRING.sub(lambda found: "" if found[1] == "\n" else found[1], raw[1:-1])
    if node.type == "concatenation":
        bare = [_text(child) for child in node.children if child.type not in ("string", "raw_string")]
        if _UNSETTLED.search("".join(bare)):
            return None
        values = [_value(child) for child in node.children]
        return None if None in values else "".join(value for value in values if value is not None)
    return None


def _assignment(node: Node) -> tuple[str, Word]:
    name = next((_text(child) for child in node.children if child.type in ("variable_name", "subscript")), "")
    last = node.children[-1]
    if any(child.type == "+=" for child in node.children):
        return name, Word(None, _text(node))
    return name, Word("", "") if last.type in ("=", "+=") else _word(last)


def _file(node: Node) -> list[Redirect]:
    """The files a redirection opens; copying and closing descriptors opens none."""
    operator = next((child.type for child in node.children if not child.is_named), "")
    targets = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
    if operator in (">&-", "<&-"):
        return []
    if operator in (">&", "<&") and len(targets) == 1 and re.fullmatch(r"\d+-?|-", _text(targets[0])):
        return []
    if operator not in (">", ">>", ">|", "&>", "&>>", "<", ">&", "<&"):
        raise Unreadable(f"it holds the redirection {operator}")
    # tree-sitter hangs further words on a redirection, which a shell gives to the command
    if len(targets) != 1:
        raise Unreadable("words follow a redirection")
    return [Redirect(_word(targets[0]), writes=">" in operator)]


def _here_document(node: Node) -> Word:
    if any(child.type in _WORDS for child in node.children):
        raise Unreadable("words follow a redirection")
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if body is None:
        return Word("", "")
    expands = any(child.is_named and child.type != "heredoc_content" for child in body.children)
    start = next((_text(child) for child in node.children if child.type == "heredoc_start"), "")
    quoted = any(mark in start for mark in "'\"\\")
    raw = _text(body)
    if "`" in raw and not quoted:
        raise Unreadable("a substitution stands where it cannot be read")
    return Word(raw if quoted or not (expands or "\\" in raw) else None, raw)
