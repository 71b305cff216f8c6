"""Commands that only read and print: which they are, with which options they are something else, and what they open.

Owns `opens`. Its table is meant to be exact: an option that writes, runs a program, or names files in a file
(`sort -o`, `rg --pre`, `wc --files0-from`) is not there, and a command with a language of its own (sed, awk, jq) is
there only with texts that have no way out. Long options may be cut short, so whatever one could be meant by counts.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from etude.harness.permissions.finding import finds, roots_of_find

Opens: TypeAlias = Literal["nothing", "named", "lists", "below", "history", "tracked"]
"""What a command opens: nothing that its words name; what they name; every directory below that; every file too; what
git keeps; and what git tracks in the workspace."""


@dataclass(frozen=True)
class _Reader:
    """One command. A refused option makes of it something that is not read here."""

    opens: Opens = "named"
    short: str = ""
    """Letters of refused options, alone or in a cluster."""
    long: tuple[str, ...] = ()
    """Refused long options, and what they could be cut to. Words of `find` are long."""
    below: str = ""
    """Letters that make it go through all below what it names."""
    plain: str = ""
    """Letters of options without a value."""
    valued: str = ""
    """Letters of those that take the rest of their word, or the next. Where there are others, the words that name files
    are not certain."""
    only: str = ""
    """What every option must be; empty for any."""


_GREPS = ("grep", "egrep", "fgrep")
ONE_WORD = "\1"
"""In place of a word of a test that is certain to be one and no more, whatever it is."""
_NOTHING, _NAMED = _Reader("nothing"), _Reader("named")
_LISTS = _Reader("named", "c", ("--check",))
_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys((
        ":", "true", "false", "pwd", "cd", "echo", "printf", "test", "[", "basename", "dirname", "realpath", "readlink",
        "stat", "which", "type", "seq", "sleep", "id", "whoami", "uname", "exit", "return", "shift", "break",
        "continue", "wait", "export", "declare", "typeset", "readonly", "local", "unset", "tr", "read", "nproc", "arch",
        "printenv", "ps", "free", "uptime",
    ), _NOTHING),
    "hostname": _Reader("nothing", only=r"-[fsiId]|--(fqdn|short|ip-address|all-ip-addresses|domain)"),
    **dict.fromkeys((
        "cat", "head", "tail", "cmp", "comm", "cut", "nl", "tac", "paste", "fold", "column", "strings", "od", "hexdump",
        "rev", "expand", "unexpand", "df", "join",
    ), _NAMED),
    **dict.fromkeys(("md5sum", "sha1sum", "sha256sum", "sha512sum", "b2sum", "cksum"), _LISTS),
    "wc": _Reader("named", "", ("--files0-from",)),
    "date": _Reader("nothing", "sf", ("--set", "--file")),
    "file": _Reader("named", "CfmzZ", ("--compile", "--files-from", "--magic-file", "--uncompress",
                                        "--uncompress-noreport")),
    "ls": _Reader("named", below="R", plain="1aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ", valued="ITw"),
    "du": _Reader("lists", "", ("--files0-from",), plain="0abchHkLlmPsSx", valued="BdtX"),
    "diff": _Reader("below", "l", ("--paginate", "--from-file", "--to-file"), plain="abBcdeEiNnpqrstTuwyZ",
                    valued="CDFILSUWxX"),
    **dict.fromkeys(_GREPS, _Reader("named", below="rRd", plain="abcEFGhHiIlLnoPqrRsTUvVwxyzZ0123456789",
                                    valued="ABCdDefm")),
    "rg": _Reader("below", "z", ("--pre", "--search-zip", "--hostname-bin"), plain="acFHhIiLlNnoPpqSsUuvwx",
                  valued="ABCEefgjMmrtT"),
    "tree": _Reader("lists", "oRH", ("--fromfile", "--fromtabfile", "--info", "--output"),
                    plain="aACdDfFghilnNpqrsStuvxX", valued="ILPT"),
    "find": _Reader("lists", "", ("-delete", "-fprint", "-fprintf", "-fprint0", "-fls", "-files0-from")),
    "sort": _Reader("named", only=r"-[bcCdfghiMnRrsuVz]+|-[ktS]\S*|--(key|field-separator)=.*|--[a-z-]+-sort|--reverse|"
                    "--unique|--stable|--ignore-case|--zero-terminated|--ignore-leading-blanks"),
    "uniq": _Reader("named", only=r"-[cdDiuz]+|-[fsw]\d*|--count|--repeated|--unique|--ignore-case"),
    "xxd": _Reader("named", only=r"-[abcegilopsuCEd]+\d*"),
    "sed": _Reader("named", only=r"-[nErsuz]+|-[nErsuz]*e|--quiet|--silent|--regexp-extended|--posix|--expression"),
    "awk": _Reader("named", only=r"-F.*|-v"),
    "jq": _Reader("named", "Lf", ("--library-path", "--from-file", "--run-tests")),
    "git": _Reader("history"),
}  # fmt: skip
_VERSIONS = re.compile(r"(python[\d.]*|node|npm|pip3?|git|gcc|g\+\+|clang|cmake|make|bash|perl|rg|jq)")
"""Not those that run another of themselves where the project says so: cargo, go, yarn, pnpm."""
_GIT_HISTORY = {
    "log", "show", "blame", "ls-tree", "rev-parse", "rev-list", "merge-base", "shortlog", "cat-file", "show-ref",
    "for-each-ref", "name-rev", "check-ignore", "count-objects", "cherry", "diff-tree", "whatchanged",
}  # fmt: skip
_GIT_TRACKED = {"status", "diff", "grep", "ls-files", "describe", "diff-index", "diff-files"}
_GIT_LISTS: Mapping[str, str] = {
    "branch": r"(( |^)(-[arv]+|--all|--remotes|--list|--show-current|--verbose|--(contains|merged|no-merged) [^-]\S*))*"
    r"|--list [^-]\S*",
    "tag": r"|(-l|--list|-n\d*)( [^-]\S*)*|--sort=\S+( -l| --list)?",
    "remote": r"|-v|--verbose|get-url [^-]\S*",
    "stash": r"list( (-\d+|--oneline|--stat))*|show( (-p|--patch|--stat|--name-only))*( (stash@\{\d+\}|\d+))?",
    "submodule": r"|status( --cached| --recursive| --quiet)*",
    "reflog": r"|show( [^-]\S*)*|-\d+|HEAD",
    "symbolic-ref": r"((-q|--quiet|--short) )*HEAD",
    "worktree": r"list( --porcelain| -v)?",
    "config": r"--list|-l|(--local |--global )?(--get |--get-all )?[\w-]+(\.[\w-]+)+|--list --show-origin",
}
"""Commands that list in one form and change in another."""
_GIT_REFUSED = (
    "--output", "--ext-diff", "--textconv", "--no-index", "--exec", "--open-files-in-pager", "--show-signature",
    "--filters", "--help", "--pathspec-from-file", "--contents", "--untracked", "--eol", "--exclude-per-directory",
)  # fmt: skip
_COULD_BE_OF_INDEX = re.compile(r":|\0[:\"'\\${`]")
"""How `:name` begins, or a pattern or a variable (behind a NUL, as it stands) that could be one."""
_OF_INDEX = re.compile(r":([0-3]:)?[\w./@+ -]+")
_SIGNED = re.compile(r"%[-+ ]?G|%\(signature|^--(format|pretty)=.*[\"'$]", re.DOTALL)
"""In a form of printing: gpg is run for a signature."""
_GIT_UNTRACKED = {"add", "stage", "stash", "hash-object", "update-index", "grep", "diff", "ls-files"}
"""Commands that open files which git does not track, if not as they stand above; with `diff` and `grep`, --no-index."""
_SED_ADDRESS = r"(?:\d+|\$|/(?:[^/\\\n\[]|\\[^\nc])*/)"
_SED = re.compile(
    rf"(?:{_SED_ADDRESS}(?:,\+?{_SED_ADDRESS})?!?)?"
    r"(?:[pdqQ=]|s/(?:[^/\\\n\[]|\\[^\nc]|\[[^]/\\\n]+\])*/(?:[^/\\\n]|\\[^\nc])*/[gpiI\d]*)"
)
_AWK_WAYS_OUT = re.compile(
    r"print(.|\n)*>|[|@]|getline|system|ARG[VC]|SYMTAB|FUNCTAB|close|fflush|include|load|namespace"
)
_JQ_PLAIN = re.compile(
    r"-[CMSacejnrs]+|--(color|monochrome|compact|raw|ascii|join)-output|--(slurp|exit-status|sort-keys)"
)
"""Options of jq without a value."""
_JQ_WAYS_OUT = re.compile(r"\b(import|include|input_filename|modulemeta)\b")


def opens(words: Sequence[str | None]) -> Opens | None:
    """What a command that only reads opens; None for one that may do more. A word that is not known has no text: it
    could be an option."""
    name = words[0] or ""
    known = [word for word in words[1:] if word is not None]
    if _VERSIONS.fullmatch(name) and words[1:] in (["--version"], ["-V"]):
        return "nothing"
    if words == ["java", "-version"]:
        return "nothing"
    if name == "set":
        safe = known and len(known) == len(words) - 1
        return "nothing" if safe and all(re.fullmatch(r"[-+][euxo]+|pipefail", word) for word in known) else None
    if name == "env":
        return "nothing" if len(words) == 1 else None
    if name == "xargs":  # with -a it reads a file
        return "named" if any(re.match(r"-[^-]*a|--a", word or "-a") for word in words[1:]) else "nothing"
    if name == "command":
        return "nothing" if len(words) > 1 and words[1] in ("-v", "-V") else None
    reader = _READERS.get(name)
    if reader is None or not _fits(name, reader, words[1:], known):
        return None
    if name == "git":
        return _git(known)
    return ("lists" if name == "ls" else "below") if _walks(reader, known) else reader.opens


_FLAGS = {
    "--all", "--almost-all", "--apparent-size", "--brief", "--bytes", "--count", "--dirsfirst", "--du",
    "--extended-regexp", "--files", "--files-with-matches", "--files-without-match", "--fixed-strings", "--follow",
    "--heading", "--hidden", "--human-readable", "--ignore-case", "--invert-match", "--json", "--line-number",
    "--multiline", "--no-config", "--no-filename", "--no-heading", "--no-ignore", "--no-line-number",
    "--no-messages", "--noreport", "--null", "--only-matching", "--perl-regexp", "--pretty", "--quiet",
    "--recursive", "--side-by-side", "--smart-case", "--stats", "--summarize", "--text", "--total", "--vimgrep",
    "--with-filename", "--word-regexp",
}  # fmt: skip
"""Long options that take no word behind them, in whatever of these commands they are."""
_GIVEN = {
    "--after-context", "--before-context", "--binary-files", "--block-size", "--color", "--colour", "--context",
    "--exclude", "--exclude-dir", "--glob", "--iglob", "--include", "--max-columns", "--max-count", "--max-depth",
    "--sort", "--time", "--time-style", "--type", "--type-not", "--width",
}  # fmt: skip
"""Those that bring their word behind a `=`, and name neither a file to start at nor what is searched for."""


def roots(words: Sequence[str | None]) -> list[str]:
    """Among the words of a command that reads all below something: what that could be. Where it is not certain which
    words are options' or a pattern, all of them and `.`."""
    name, reader = words[0] or "", _READERS.get(words[0] or "")
    if reader is None or name == "git":
        return ["."]
    if name == "find":
        return roots_of_find(words)
    operands, certain, pattern = _operands(name, reader, words[1:])
    if pattern and operands:  # unquoted it could be several words, or none
        certain &= not operands[0].startswith("\0") or re.fullmatch(r'\0"[^"@*]*"', operands[0]) is not None
    return (operands[pattern:] or ["."]) if certain else [*operands, "."]


def _operands(name: str, reader: _Reader, words: Sequence[str | None]) -> tuple[list[str], bool, bool]:
    """The words that are no options, nor their values; whether that is certain; whether the first is a pattern."""
    operands, certain, at, searches = list[str](), None not in words, 0, name in (*_GREPS, "rg")
    pattern = searches
    while at < len(words):
        word, takes_next = words[at] or "", False
        at += 1
        if word == "--":
            return operands + [each for each in words[at:] if each], certain, pattern
        if word.startswith("--"):
            bare, given, _ = word.partition("=")
            pattern &= bare not in ("--files", "--regexp")
            takes_next = searches and not given and bare in _GIVEN and not bare.startswith("--col")
            certain &= takes_next or bare in (_GIVEN | {"--regexp"} if given else _FLAGS)
        elif word.startswith("-") and word != "-":
            letters = word[1:].lstrip(reader.plain)
            pattern &= letters[:1] not in ("e", "f")
            certain &= not letters or (letters[0] in reader.valued and not (letters[1:] and name == "tree"))
            takes_next = len(letters) == 1
        elif word:
            operands.append(word)
        if takes_next:  # which must be one word
            certain &= at < len(words) and not (words[at] or "").startswith("\0")
            at += 1
    return operands, certain, pattern


_FOLLOWS: Mapping[str, str] = {
    "grep": "R", "egrep": "R", "fgrep": "R", "rg": "L", "find": "LH", "ls": "LH", "du": "LDH", "tree": "l",
}  # fmt: skip


def follows(words: Sequence[str | None]) -> bool:
    """Whether a command that reads all below something goes where links lead."""
    letters = _FOLLOWS.get(words[0] or "")
    known = [word for word in words[1:] if word is not None]
    short = {letter for word in known if re.match(r"-[^-]", word) for letter in word[1:]}
    long = any(re.match(r"-follow|--follow|--d", word) for word in known)
    return letters is None or long or bool(short & set(letters) if words[0] != "find" else {"-L", "-H"} & set(known))


_RG_PLAIN = re.compile(
    r"-[acFHhIiLlNnoPpqSsvwxe]+|-[ABCm]\d*|-g.*|--(glob|files|count|color|heading|no-heading|line-number|"
    r"files-with-matches|ignore-case|smart-case|word-regexp|fixed-strings|max-count|context)(=.*)?",
    re.DOTALL,
)
"""With these alone ripgrep passes over what a dot hides, and with globs over every file, but for what one takes. A type
is not among them: what is of it, such as `.env.yaml`, is searched."""
_CHOSEN = re.compile(r"--(in|ex)clude=([\w.*?-]*)(?:\{([\w.*?,-]+)\})?([\w.*?-]*)")
_ALONE = re.compile(r"[ef]?grep|-[nrRilLhHwEFPIoscvqaz]+|--((in|ex)clude|exclude-dir|color)=.*|[^-].*")
"""What takes no word behind it."""


def passes_over(words: Sequence[str | None], name: str) -> bool:
    """Whether a command that reads all below something is certain to open no file of this name there."""
    known = [(word or "").removeprefix("\0") for word in words]
    if known[0] == "find":
        return not finds(words).match(name)
    if known[0] == "rg":
        plain = all(map(_RG_PLAIN.fullmatch, (word for word in known if word[:1] == "-")))
        globs = [after for before, after in itertools.pairwise(known) if before in ("-g", "--glob")]
        globs += [glob for word in known for glob in re.findall(r"(?s)^(?:-g|--glob=)(.+)", word)]
        chosen = name.startswith(".") or any(not glob.startswith("!") for glob in globs)
        return plain and chosen and not any(_takes(glob, name) for glob in globs)
    globs = [_CHOSEN.fullmatch(word) for at, word in enumerate(known) if chooses(known, at)]
    found = [glob for glob in globs if glob is not None]
    unread = None in words or any(word.startswith(("--in", "--ex")) and not _ALONE.fullmatch(word) for word in known)
    if unread or not found or len(found) < sum(_CHOSEN.fullmatch(word) is not None for word in known):
        return False
    matching = [glob[1] for glob in found if any(fnmatch.fnmatchcase(name, each) for each in _each(glob))]
    return (matching[-1] == "ex") if matching else found[0][1] == "in"  # the last counts, as GNU grep has it


def _takes(glob: str, name: str) -> bool:
    """Whether ripgrep could search a file, be it hidden by a dot, because of this glob."""
    plain = _CHOSEN.fullmatch(f"--include={glob}")
    return not glob.startswith("!") and (plain is None or any(fnmatch.fnmatchcase(name, each) for each in _each(plain)))


def chooses(words: Sequence[str | None], at: int) -> bool:
    """Whether this word is a glob by which grep chooses among what it comes to. It names no file then."""
    known = [(word or "").removeprefix("\0") for word in words[: at + 1]]
    grep = at > 0 and known[0] in ("grep", "egrep", "fgrep") and "--" not in known
    return grep and bool(_CHOSEN.fullmatch(known[at]) and _ALONE.fullmatch(known[at - 1]))


def _each(chosen: re.Match[str]) -> list[str]:
    """bash makes several options of one with braces, dash and quotes leave it: to exclude, those are not counted on."""
    if chosen[3] is None or chosen[1] == "ex":
        return [chosen[2] + (f"{{{chosen[3]}}}{chosen[4]}" if chosen[3] else "")]
    return [f"{chosen[2]}{middle}{chosen[4]}" for middle in chosen[3].split(",")]


def _fits(name: str, reader: _Reader, words: Sequence[str | None], known: Sequence[str]) -> bool:
    if name in ("find", "rg", "jq", "git", "sed", "awk", "sort", "uniq", "xxd", "tree", "hostname") and None in words:
        return False
    if name in ("date", "printf", "wait", "read", "unset") and words and words[0] is None:
        return False
    if name in ("test", "[") and not _tests(words):
        return False
    options = [word for word in known if word.startswith("-") and word != "-"]
    if any(_refused(option, reader) for option in options):
        return False
    operands = [word for word in known if word not in options]
    pairs = [(before, word) for before, word in zip(("", *known), known, strict=False) if word in operands]
    if name in ("uniq", "xxd"):  # what stands behind a file's name is what xxd writes, an option as well
        return not operands or operands == list(known[-1:])
    if name == "hostname":  # a word that is no option is the new one
        return not operands
    if name == "sed":
        return _sed(known)
    if name == "awk":
        return _awk(known)
    if name == "strings":  # a word that begins with @ names a file of words
        return None not in words and all(re.match(r"\0?[\w./~]|-", word) for word in known if word)
    if name == "date":  # a time alone sets the clock
        takes = ("-d", "-r", "--date", "--reference")
        one_each = not any(word is None or word.startswith("\0") for word in words)
        return one_each and all(word.startswith("+") or before in takes for before, word in pairs)
    return name != "jq" or _jq(operands, options)


def _refused(option: str, reader: _Reader) -> bool:
    if reader.only:
        return re.fullmatch(reader.only, option) is None
    bare = option.partition("=")[0]
    if any(bare == long or (len(bare) > 2 and long.startswith(bare)) for long in reader.long):
        return True
    return not option.startswith("--") and bool(set(option[1:]) & set(reader.short))


def _walks(reader: _Reader, known: Sequence[str]) -> bool:
    short = [word for word in known if re.match(r"-[^-]", word)]
    long = ("--recursive", "--dereference-recursive", "--directories")
    cut = [word.partition("=")[0] for word in known if re.match(r"--\w", word)]
    return any(set(word[1:]) & set(reader.below) for word in short) or (
        bool(reader.below) and any(name.startswith(word) for word in cut for name in long)
    )


def _tests(words: Sequence[str | None]) -> bool:
    """An index in the name that `-v` tests is run: no word that could be `-v` may stand before one that could be it."""
    if None in words or "-v" in words or "-R" in words:
        return False
    pairs = itertools.pairwise(word or "" for word in words)
    return not any(a == ONE_WORD and (b.startswith(("\0", ONE_WORD)) or "[" in b) for a, b in pairs)


def _sed(words: Sequence[str]) -> bool:
    scripts, at, given = [], 0, any(re.fullmatch(r"-[nErsuz]*e|--expression", word) for word in words)
    while at < len(words):
        if re.fullmatch(r"-[nErsuz]*e|--expression", words[at]):
            scripts += words[at + 1 : at + 2]
            at += 1
        elif not words[at].startswith("-") and not given and not scripts:
            scripts.append(words[at])
        at += 1
    return bool(scripts) and all(_SED.fullmatch(part.strip()) for script in scripts for part in _pieces(script))


def _pieces(script: str) -> list[str]:
    """The commands of a sed script; one with a `;` in its text is cut there, and does not fit any more."""
    return [piece for piece in script.split(";") if piece.strip()] or [script]


def _jq(operands: Sequence[str], options: Sequence[str]) -> bool:
    """The name of a file is no filter: none may be a pattern's but behind the first word that is no option's value."""
    patterns = any(word.startswith("\0") for word in operands)
    if patterns and (operands[0].startswith("\0") or not all(map(_JQ_PLAIN.fullmatch, options))):
        return False
    return not any(_JQ_WAYS_OUT.search(word) for word in operands)


def _awk(words: Sequence[str]) -> bool:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-F", "-v") else 1
    if any(word.startswith("\0") for word in words[: at + 1]):  # a file whose name is a program
        return False
    values = [word for word, option in zip(words[1:], words, strict=False) if option == "-v"]
    texts = [re.sub(r"(?<!\|)\|\|(?!\|)|>=", " ", word) for word in (*words[at : at + 1], *values)]
    return at < len(words) and not any(_AWK_WAYS_OUT.search(text) for text in texts)


def takes_untracked(words: Sequence[str | None]) -> bool:
    """Whether a git command that is not one of those that only read opens files which git does not track."""
    return bool(_GIT_UNTRACKED & set(words[1:]))


def _git(words: Sequence[str]) -> Opens | None:
    at = 0
    while at < len(words) and words[at] in ("--no-pager", "-P", "--no-optional-locks", "-C"):
        at += 2 if words[at] == "-C" else 1
    name, rest = words[at] if at < len(words) else "", words[at + 1 :]
    if any("\0" in word for word in words[:at]):
        return None
    if name in _GIT_LISTS:
        return "history" if re.fullmatch(_GIT_LISTS[name], " ".join(rest)) else None
    if name not in _GIT_HISTORY | _GIT_TRACKED:
        return None
    options = [word.partition("=")[0] for word in rest if word.startswith("-")]
    refused = [name for name in options if len(name) > 2 and any(long.startswith(name) for long in _GIT_REFUSED)]
    pager = any(re.match(r"-\w*O", option) for option in options)
    signed = any(_SIGNED.search(word) for word in rest)
    # for `:name` git reads its index, and takes a file that it finds unchanged there for what is committed
    from_index = any(map(_COULD_BE_OF_INDEX.match, rest))
    told = filter(_COULD_BE_OF_INDEX.match, itertools.takewhile(lambda word: word != "--", rest))
    if name in _GIT_HISTORY and not all(map(_OF_INDEX.fullmatch, told)):  # it could match any
        return None
    return None if refused or pager or signed else "tracked" if name in _GIT_TRACKED or from_index else "history"
