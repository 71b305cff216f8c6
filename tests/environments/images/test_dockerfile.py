"""Reading Dockerfiles: what is understood, and that everything else is an error with its line."""

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.environments.images.dockerfile import DockerfileError, parse_dockerfile
from etude.environments.images.expand import ExpansionError, expand, expand_literal, pairs
from etude.environments.images.ignore import Ignore
from etude.errors import ConfigError


def steps(text):
    return parse_dockerfile(f"FROM x\n{text}").stages[0].steps


def only(text):
    (step,) = steps(text)
    return step


def test_stages_args_and_platforms():
    text = "ARG V=1\nfrom --platform=linux/amd64 a:$V as Build\nRUN x\nFROM build AS two\nFROM scratch\n"
    parsed = parse_dockerfile(text)
    assert [arg.text for arg in parsed.args] == ["V=1"]
    assert [(s.base, s.name, s.platform, s.line) for s in parsed.stages] == [
        ("a:$V", "build", "linux/amd64", 2),
        ("build", "two", None, 4),
        ("scratch", None, None, 5),
    ]


def test_shell_and_exec_form():
    assert only("RUN echo  'a b' && true").shell_text == "echo  'a b' && true"
    assert only('RUN ["sh", "-c", "echo \\"x\\""]').words == ("sh", "-c", 'echo "x"')
    assert only("RUN [ -f /x ]").words is None  # the shell's own test, no JSON
    assert only('CMD ["a", 1]').words is None
    assert only("CMD []").words == ()


def test_lines_are_continued_over_comments_and_empty_lines():
    step = only("RUN one \\\n# a comment\n\n   two \\  \n  three\n")
    assert step.text == "one    two   three" and step.line == 2
    assert only("RUN a \\\\\n").text == "a \\\\"  # an escaped escape continues nothing
    assert only("RUN a\r\n").text == "a"


def test_the_escape_directive():
    parsed = parse_dockerfile("# escape=`\nFROM x\nRUN dir c:\\ `\n  more\n")
    assert parsed.escape == "`" and parsed.stages[0].steps[0].text == "dir c:\\   more"
    late = parse_dockerfile("# a comment\n# escape=`\nFROM x\nRUN a \\\n b")
    assert late.escape == "\\" and late.stages[0].steps[0].text == "a  b"
    assert parse_dockerfile("# syntax=docker/dockerfile:1\n#escape = \\\nFROM x").escape == "\\"


def test_here_documents():
    step = only("RUN <<EOF\nset -e\n# no comment\necho $x \\\nEOF\n")
    assert step.heredocs[0].content == "set -e\n# no comment\necho $x \\\n" and not step.heredocs[0].literal
    step = only("RUN cat <<-'A' <<B > /x\n\tone\n\tA\n\ttwo\nB\n")
    assert [(doc.name, doc.content, doc.literal) for doc in step.heredocs] == [
        ("A", "one\n", True),
        ("B", "\ttwo\n", False),
    ]
    assert step.shell_text == "cat <<-'A' <<B > /x\n\tone\n\tA\n\ttwo\nB"
    assert steps("RUN a '<<EOF' \"<<B\" $((1<<2)) <<<word\nRUN b")[0].heredocs == ()
    copy = only("COPY --chown=1:2 <<one <<two /d/\n1\none\n2\ntwo\n")
    assert [doc.content for doc in copy.heredocs] == ["1\n", "2\n"] and copy.flag("chown") == "1:2"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "there is no FROM"),
        ("RUN x\nFROM y", 1, "only ARG"),
        ("FROM x\n\nFRMO y", 3, "unknown instruction 'FRMO'"),
        ("FROM x\nVOLUME /data", 2, "VOLUME is not supported"),
        ("FROM x\nONBUILD RUN y", 2, "ONBUILD is not supported"),
        ("FROM x\nHEALTHCHECK NONE", 2, "HEALTHCHECK is not supported"),
        ("FROM x\nRUN --mount=type=cache,target=/c y", 2, "--mount is not supported: COPY what"),
        ("FROM x\nCOPY --link a b", 2, "--link is not supported"),
        ("FROM x\nCOPY --from a b", 2, "--from needs a value"),
        ("FROM x\nRUN \\\n\nUSER", 2, None),
        ("FROM x\nUSER", 2, "USER needs an argument"),
        ("FROM x\nRUN a\nRUN <<EOF\nx", 3, "EOF does not end"),
        ("FROM x AS\n", 1, "FROM takes"),
        ("FROM x AS y\nFROM z AS Y", 2, "a stage named 'y'"),
        ("FROM x AS 1", 1, "no name for a stage"),
        ("FROM x\nSHELL bash", 2, "SHELL takes a JSON list"),
        ("# escape=x\nFROM x", 1, "escape is"),
        ("# syntax=my/frontend\nFROM x", 1, "only docker/dockerfile"),
        ("# escape=`\n# escape=`\nFROM x", 2, "twice"),
    ],
)
def test_what_is_not_understood_names_its_line(text, line, said):
    if said is None:
        assert parse_dockerfile(text).stages[0].steps[0].text == "USER"  # Docker, too, continues over the empty line
        return
    with pytest.raises(DockerfileError) as error:
        parse_dockerfile(text, "D")
    assert str(error.value).startswith(f"D:{line}: ") and said in str(error.value)


LINES = st.sampled_from(
    [
        "FROM a",
        "FROM a AS b",
        "RUN x \\",
        "RUN <<E",
        "E",
        "# c",
        "",
        "\\",
        "COPY a b",
        "ENV a=b",
        "# escape=`",
        "x y",
        " \t",
    ]
)


@given(st.one_of(st.text(max_size=80), st.lists(LINES, max_size=8).map("\n".join)))
@settings(max_examples=300)
def test_any_text_is_read_or_refused_with_a_line_of_its_own(text):
    try:
        parsed = parse_dockerfile(text, "D")
    except DockerfileError as error:
        match = re.match(r"D:(\d+): ", str(error))
        assert match and 1 <= int(match[1]) <= max(len(text.split("\n")), 1)
    else:
        assert parsed.stages and all(step.keyword.isupper() for stage in parsed.stages for step in stage.steps)


WORD = st.text("abc=/.-_:$'\"", min_size=1, max_size=6).filter(lambda word: not word.startswith("--"))


@given(st.lists(st.lists(WORD, min_size=1, max_size=4), min_size=1, max_size=4), st.data())
@settings(max_examples=150)
def test_how_an_instruction_is_broken_into_lines_does_not_matter(instructions, data):
    text = "FROM x\n"
    for words in instructions:
        breaks = st.sampled_from([" ", " \\\n", " \\  \n# a comment\n", " \\\n\n"])
        text += data.draw(st.sampled_from(["run ", "RUN ", "  Run \\\n"]))
        text += "".join(word + data.draw(breaks) for word in words[:-1]) + words[-1]
        text += data.draw(st.sampled_from(["\n", "\n\n# comment \\\n", "  \n"]))
    found = parse_dockerfile(text).stages[0].steps
    assert [step.text.split() for step in found] == instructions


VARIABLES = {"a": "1", "b": "", "long_name": "x y"}
PLAIN = ["$a", "$b", "$none", "${a}", "${long_name}", "/", "-", ".", "'$a'", '"$a"', "'\"'", '"x y"', "\\$a", "\\\\"]
FORMS = ["${none:-d}", "${b:-d}", "${b-d}", "${none-$a}", "${a:+p}", "${b:+p}", "${b+p}", "${none+p}", "${none:-${a}z}"]
PIECES = st.sampled_from([*PLAIN, *FORMS, '"\\$a"'])


@given(st.lists(PIECES, max_size=6))
@settings(max_examples=60)
def test_variables_expand_as_a_shell_expands_them(pieces):
    word = "".join(pieces)
    script = (
        "".join(f"{name}='{value}'; " for name, value in VARIABLES.items()) + f"IFS=; printf %s {word or chr(39) * 2}"
    )
    said = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, env={}, timeout=10, check=True)
    assert expand(word, VARIABLES) == said.stdout


def test_expansion_that_cannot_be_done_is_an_error():
    for word, said in [("${a", "brace"), ("'a", "quote"), ("${a#x}", "not supported"), ("${none:?say}", "say")]:
        with pytest.raises(ExpansionError, match=said):
            expand(word, VARIABLES)
    assert expand_literal("a \"$a\" 'b' \\$a \\n", VARIABLES) == "a \"1\" 'b' $a \\n"
    assert expand("`$a$b", VARIABLES, escape="`") == "$a"


def test_pairs_of_env_and_label():
    assert pairs("A=1 B='x y' C=\"$a z\" D=a\\ b", VARIABLES) == [("A", "1"), ("B", "x y"), ("C", "1 z"), ("D", "a b")]
    assert pairs("OLD the rest of it", VARIABLES) == [("OLD", "the rest of it")]
    for wrong in ("A", "A=1 B", "A=1 =2"):
        with pytest.raises(ExpansionError):
            pairs(wrong, VARIABLES)


@pytest.mark.parametrize(
    ("patterns", "seen", "hidden"),
    [
        ("*.log", ["a/b.log", "a"], ["b.log"]),
        ("**/*.log", ["a"], ["b.log", "a/b.log", "a/c/b.log"]),
        ("node_modules/\n", ["a/node_modules"], ["node_modules", "node_modules/x/y"]),
        ("*\n!keep\n", ["keep", "keep/x"], ["a", "a/keep"]),
        ("/a/b", ["b"], ["a/b", "a/b/c"]),
        ("# a\n\na?c\n[x-z]1", ["ac", "a/c", "w1"], ["abc", "y1"]),
        ("a/**", ["a", "b/a/c"], ["a/b", "a/b/c"]),
    ],
)
def test_dockerignore(patterns, seen, hidden):
    ignore = Ignore(patterns)
    assert [path for path in seen if ignore.ignores(path)] == []
    assert [path for path in hidden if not ignore.ignores(path)] == []


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="no pattern"):
        Ignore("[z-a]")
