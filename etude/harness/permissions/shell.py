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

from etude.harness.permissions.grammar import REDIRECTS, Unreadable, check_reading, has_lone_dash, is_quoted
from etude.harness.permissions.literals import PATTERNS, WORDS, Word, text_of, word_of
from etude.plain import unseen

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_CHARS = 20_000
"""Longer lines are not read: a parser's time is the user's."""


@dataclass(frozen=True)
class Redirect:
    """Where a command's input comes from or its output goes to, by file."""

    target: Word
    writes: bool


@dataclass(frozen=True)
class SimpleCommand:
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
    chain: int = 0
    """Commands of one number, none but they between them, run each only where the one before succeeded; 0 is none."""
    astray: bool = False
    """Whether it runs in a directory that only a run would tell."""
    found_by: tuple[Word, ...] = ()
    """The `find` that puts what it finds in place of the words that are FOUND."""


FOUND = Word(None, "{}")


_PLAIN = {
    "program", "list", "pipeline", "command_name", "command_substitution", "process_substitution", "concatenation",
    "array", "subscript", "subshell", "compound_statement", "if_statement", "elif_clause", "else_clause",
    "for_statement", "while_statement", "do_group", "case_statement", "case_item", "function_definition",
    "negated_command", "unary_expression", "test_operator", "comment", "string", "string_content", "raw_string",
    "ansi_c_string", "word", "number", "simple_expansion", "expansion", "variable_name",
    "special_variable_name", "file_descriptor", "heredoc_start", "heredoc_body", "heredoc_content", "heredoc_end",
    "brace_expression", "variable_assignments", "regex", "extglob_pattern",
}  # fmt: skip
"""Kinds of node that mean what they say; the commands in them are found below them."""
RESERVED = {
    "!", "{", "}", "[[", "]]", "if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while",
    "until", "do", "done", "in", "function", "coproc",
}  # fmt: skip
"""Words that are no command's name. Where one seems to be, the parser and the shell do not read the same line."""
_OPENS_BRACE = re.compile(r"(?<!\$)\{")
_SUBSTITUTION = re.compile(r"`|\$\(|[<>]\(")


def read_script(text: str) -> list[SimpleCommand]:
    """Every command that running `text` could start, in the order they stand. Raises Unreadable."""
    if len(text) > MAX_CHARS:
        raise Unreadable(f"it is longer than {MAX_CHARS} characters")
    if hidden := unseen(text):
        raise Unreadable(f"it holds the invisible character {hidden!a}")
    for character in text:
        if character != " " and unicodedata.category(character) == "Zs":
            raise Unreadable(f"it holds {character!r}, which looks like a space and is none")
    source = text.encode()
    root = _parser().parse(source).root_node
    if root.has_error:
        raise Unreadable("its syntax is not plain")
    check_reading(root, source)
    try:
        return list(_commands(root))
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None


@cache
def _parser() -> Parser:
    import tree_sitter_bash  # only the product reads shell: a rollout does without
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def _commands(node: Node) -> Iterator[SimpleCommand]:
    """The commands at and below a node."""
    kind = node.type
    if kind == "command":
        yield from _command(node, (), None)
    elif kind == "list":
        yield from _listed(node)
    elif kind == "redirected_statement":
        yield from _redirected(node)
    elif kind in ("variable_assignment", "declaration_command", "unset_command"):
        yield from _declaration(node)
    elif kind == "file_redirect":
        yield SimpleCommand((), redirects=tuple(_file(node)), raw=text_of(node))  # `$(<file)`, or a function's
        yield from _below(node)
    elif kind in _REPEATED:
        yield from (replace(command, again=True) for command in _repeated(node))
    else:
        _check(node)
        if kind == "test_command" and node.children[0].type == "[":
            yield SimpleCommand(tuple(_operands(node)), raw=text_of(node))
        elif kind in ("test_command", "array"):  # a dash knows no `[[`, and looks for the files that its words match
            yield SimpleCommand((), tuple(("", word) for word in _operands(node)), raw=text_of(node), loops=True)
        for child in node.children:
            yield from _commands(child)


_LINKS = ("command", "redirected_statement", "pipeline", "test_command", "variable_assignment", "declaration_command")
_MOVES = ("cd", "pushd", "popd", ".", "source")


def _listed(node: Node) -> Iterator[SimpleCommand]:
    """The commands of a list. Those of `a && b && c` are a chain, up to the first that could end elsewhere than its
    `cd` says."""
    rights: list[tuple[str, Node]] = []
    at = node.start_byte + 1
    while node.type == "list" or _only_copies(node):
        if node.type == "list":
            _check(node)
            operator = next(child.type for child in node.children if child.type in ("&&", "||"))
            rights += [(operator, child) for child in reversed(node.children[1:]) if child.type != operator]
        node = node.children[0]
    chained = True
    for operator, each in [("&&", node), *reversed(rights)]:
        commands = list(_commands(each))
        moves = any(_name(command) in _MOVES for command in commands)
        plain = each.type in ("command", "redirected_statement") and [_name(command) for command in commands] == ["cd"]
        chained &= operator == "&&" and each.type in _LINKS and (plain or not moves)
        yield from (replace(command, chain=at) if chained and command.words else command for command in commands)


def _name(command: SimpleCommand) -> str | None:
    return command.words[0].text if command.words else ""


def _only_copies(node: Node) -> bool:
    """Whether it is a list with a redirection that opens nothing: the grammar takes `a && b 2>&1` for one."""
    if node.type != "redirected_statement" or node.children[0].type != "list":
        return False
    return all(child.type == "file_redirect" and not _file(child) for child in node.children[1:])


_REPEATED = ("for_statement", "while_statement", "function_definition")


def _repeated(node: Node) -> Iterator[SimpleCommand]:
    _check(node)
    if node.type == "for_statement":
        names = [text_of(child) for child in node.children if child.type == "variable_name"]
        values = [word_of(child) for child in node.children if child.type in WORDS]
        if "in" not in [child.type for child in node.children] or any(
            child.type == "command_substitution" for child in node.children
        ):
            values = [Word(None, "$@")]
        yield SimpleCommand(
            (), tuple((name, value) for name in names for value in values or [Word("", "")]), loops=True
        )
    for child in node.children:
        yield from _commands(child)


def _check(node: Node) -> None:
    kind = node.type
    if kind in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
        return
    if kind == "compound_statement" and node.children[0].type == "((":
        raise Unreadable("(( )) is arithmetic to one shell and commands to another")
    if kind == "arithmetic_expansion":
        if re.search(r"[A-Za-z_]|\$[\d@*{]", text_of(node)):
            raise Unreadable("arithmetic on variables can run what they hold")
        return
    if kind in ("test_command", "binary_expression", "parenthesized_expression"):
        bare = " ".join(_bare(node)) if kind == "test_command" else ""
        if kind == "test_command" and "\n" in text_of(node):
            raise Unreadable("a test that goes over the end of a line ends there for a shell")
        if re.search(r"(^| )~", bare):
            raise Unreadable("a test that names a home is a command to one shell, and its words are patterns")
        if (
            kind == "test_command"
            and not re.search(r"[\"'\\$`]", text_of(node))
            and bare.split() != text_of(node).split()
        ):
            raise Unreadable("the words of a test are not those that a shell takes")
        if re.search(r"[&|<>();]", bare):
            raise Unreadable("a test with operators in it is read differently by different shells")
        if re.search(r"(^| )-[vR] |^\[\[.* -(eq|ne|lt|le|gt|ge) ", bare):
            raise Unreadable("a test of numbers or of names can run what they hold")
        return
    if kind == "array" and re.search(r"[\s(]\[(?!\d+\]).*\]\+?=", text_of(node), re.DOTALL):
        raise Unreadable("an index that is no number can run what it holds")
    if kind == "expansion" and any(child.type in ("@", "!") for child in node.children):
        raise Unreadable("${…@…} and ${!…} can run what a variable holds")
    if kind == "expansion" and re.match(r"\$\{\w+:(?![-=+?]|[ \d:-]+\})", text_of(node)):
        raise Unreadable("an offset that is no number can run what it holds")
    if kind == "subscript" and not re.fullmatch(r"\w+\[(\d+|@|\*)\]", text_of(node)):
        raise Unreadable("an index that is no number can run what it holds")
    if node.is_named and kind not in _PLAIN:
        raise Unreadable(f"it holds a {kind.replace('_', ' ')}")
    if node.child_count == 0 and kind in ("word", "extglob_pattern", "regex") and _SUBSTITUTION.search(text_of(node)):
        raise Unreadable("a substitution stands where it cannot be read")


def _operands(node: Node) -> Iterator[Word]:
    """The words of a `[`, which the grammar takes for more than a command, and of what is like it."""
    for child in node.children:
        if child.type in WORDS or child.type == "command_substitution" or child.child_count == 0:
            known = child.child_count == 0 and child.type not in (*WORDS, *PATTERNS)
            yield Word(text_of(child), text_of(child)) if known else word_of(child)
        else:
            yield from _operands(child)


def _bare(node: Node) -> Iterator[str]:
    """The tokens below a node that stand neither in quotes nor in a substitution."""
    for child in node.children:
        if child.type in ("string", "raw_string", "command_substitution", "expansion", "simple_expansion"):
            yield "_"
        elif child.child_count == 0:
            yield text_of(child)
        else:
            yield from _bare(child)


def _command(node: Node, redirects: tuple[Redirect, ...], fed: Word | None) -> Iterator[SimpleCommand]:
    words, variables, own = [], [], []
    end = -1
    for child in node.children:
        if child.start_byte == end and child.type not in REDIRECTS:
            raise Unreadable("it is not clear where a word ends")
        end = child.end_byte
        if child.type == "variable_assignment":
            variables.append(_assignment(child))
        elif child.type == "file_redirect":
            own += _file(child)
        elif child.type == "herestring_redirect":
            fed = word_of(child.children[-1])
        elif child.type == "command_name":
            words.append(word_of(child.children[0]))
        elif child.type == "comment":
            continue
        else:
            words.append(word_of(child))
    if words and words[0].text in RESERVED:
        raise Unreadable(f"{words[0].raw} stands where a command's name should")
    raw = text_of(node)
    if has_lone_dash(node):
        words.append(Word("-", "-"))
        raw += " -"
    yield SimpleCommand(tuple(words), tuple(variables), (*own, *redirects), fed, raw)
    yield from _below(node)


def _redirected(node: Node) -> Iterator[SimpleCommand]:
    """The redirections of a statement are each of its commands': none of them may be judged without."""
    redirects: list[Redirect] = []
    fed: Word | None = None
    body = None
    for child in node.children:
        if child.type == "file_redirect":
            redirects += _file(child)
        elif child.type == "herestring_redirect":
            fed = word_of(child.children[-1])
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
        opened = SimpleCommand((), (), tuple(redirects), None, text_of(node))
        yield opened
        if body is not None:
            # a here-document may feed any command of a group, and a shell among them would run it
            yield from (_fed(command, fed) for command in _commands(body))
            yield opened
    for child in node.children:
        if child is not body:
            yield from _below(child)


def _declaration(node: Node) -> Iterator[SimpleCommand]:
    """A bare assignment, or `export` and its like. Only plain names: an index in one of them is run, and so is one in
    what `-i` and `-n` are given."""
    if node.type == "variable_assignment":
        yield SimpleCommand((), (_assignment(node),), raw=text_of(node))
    else:
        keyword, *rest = node.children
        for child in rest:
            named = child.type in ("variable_assignment", "variable_name")
            if not named and not re.fullmatch(r"-[a-hj-mo-zA-Z]+|\w+", text_of(child)):
                raise Unreadable(f"{text_of(keyword)} {text_of(child)}: a name that is computed can run something")
        variables = tuple(_assignment(child) for child in rest if child.type == "variable_assignment")
        # behind a command bash makes several words of `X={a,b}`, each an assignment
        variables = tuple((name, Word(None, name) if _OPENS_BRACE.search(to.raw) else to) for name, to in variables)
        if any(re.match(r"-.*[^-xrgpft]", text_of(child)) for child in rest):
            # an attribute can change what an assignment means: `-n` makes another variable of it, `-l` other letters
            names = [text_of(child) for child in rest if child.type == "variable_name"]
            variables = tuple((name, Word(None, name)) for name in [*(name for name, _ in variables), *names])
        bare = [child for child in rest if child.type != "variable_assignment"]
        words = tuple(Word(text_of(child), text_of(child)) for child in (keyword, *bare))
        yield SimpleCommand(words, variables, raw=text_of(node))
    yield from _below(node)


def _below(node: Node) -> Iterator[SimpleCommand]:
    """The commands inside the words, values and targets of a node."""
    for child in node.children:
        if child.type == "variable_assignment":
            yield from _below(child)
        else:
            yield from _commands(child) if child.type not in REDIRECTS else _below(child)


def _fed(command: SimpleCommand, fed: Word | None) -> SimpleCommand:
    if fed is None or command.input is not None:
        return command
    return SimpleCommand(command.words, command.variables, command.redirects, fed, command.raw)


def _assignment(node: Node) -> tuple[str, Word]:
    name = next((text_of(child) for child in node.children if child.type in ("variable_name", "subscript")), "")
    last = node.children[-1]
    if not re.fullmatch(r"[A-Za-z_]\w*(\[(\d+|@|\*)\])?", name, re.ASCII):
        raise Unreadable(f"{name} is no name of a variable: a shell takes all of it for a command's")
    if any(child.type == "+=" for child in node.children):
        return name, Word(None, text_of(node))
    return name, Word("", "") if last.type in ("=", "+=") else word_of(last)


def _file(node: Node) -> list[Redirect]:
    """The files a redirection opens; copying and closing descriptors opens none."""
    operator = next((child.type for child in node.children if not child.is_named), "")
    targets = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
    # tree-sitter hangs further words on a redirection, which a shell gives to the command
    if len(targets) != (0 if operator in (">&-", "<&-") else 1):
        raise Unreadable("words follow a redirection")
    if not targets:
        return []
    if operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", text_of(targets[0])):
        return []
    if operator not in (">", ">>", ">|", "&>", "&>>", "<", ">&", "<&"):
        raise Unreadable(f"it holds the redirection {operator}")
    return [Redirect(word_of(targets[0]), writes=">" in operator)]


def _here_document(node: Node) -> Word:
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if body is None:
        return Word("", "")
    expands = any(child.is_named and child.type != "heredoc_content" for child in body.children)
    raw = text_of(body)
    return Word(raw if is_quoted(node) or not (expands or "\\" in raw) else None, raw)
