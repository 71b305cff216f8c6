"""Help ends with an example that works, and a shell completes what help lists."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_packages import program
from proofs import one_of_each

from etude.cli.completion import SHELLS
from etude.cli.examples import EXAMPLES
from etude.cli.main import main
from etude.cli.parser import COMMANDS, Parser, actions_of, parser_of

sys.path.insert(0, str(Path(__file__).parents[1] / "product"))
from pseudo_terminal import TAB, Terminal

WHOLE = parser_of(COMMANDS)


def below(parser: Parser) -> Iterator[Parser]:
    yield parser
    for _, each in actions_of(parser):
        yield from below(each)


PARSERS = {parser.prog: parser for parser in below(WHOLE)}


def test_every_command_and_action_has_one_example():
    assert EXAMPLES.keys() == PARSERS.keys()


@pytest.mark.parametrize("prog", PARSERS)
def test_an_example_is_of_its_command_and_parses(prog):
    words = shlex.split(EXAMPLES[prog].partition(" > ")[0])
    assert words[: len(prog.split())] == prog.split()
    WHOLE.parse_args(words[1:])
    assert PARSERS[prog].format_help().splitlines()[-1] == f"example: {EXAMPLES[prog]}"


@pytest.mark.parametrize("words", [[], ["tasks"], ["tasks", "mine"]], ids=" ".join)
def test_the_command_shows_it(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"example: {EXAMPLES[' '.join(['etude', *words])]}"


TYPED = {
    "etude ta": "etude tasks",
    "etude tasks mi": "etude tasks mine",
    "etude bench run --attem": "etude bench run --attempts",
    "etude agent --output-format j": "etude agent --output-format json",
    "etude train qui": "etude train quick.toml",
}


@pytest.mark.parametrize("shell", one_of_each(20, SHELLS))
def test_a_shell_completes(shell, tmp_path, capsys):
    """A real shell, with the script that the command prints for it, in a directory with a recipe."""
    assert main(["completion", shell]) == 0
    file = tmp_path / ("_etude" if shell == "zsh" else "etude")
    file.write_text(capsys.readouterr().out)
    (tmp_path / "quick.toml").write_text("")
    program(shell, shell)
    if shell == "fish":
        for typed, wanted in TYPED.items():
            asked = f"source {file}; cd {file.parent}; complete -C {shlex.quote(typed)}"
            done = subprocess.run([shell, "-N", "-c", asked], capture_output=True, text=True, timeout=60)
            assert wanted.split()[-1] in [line.partition("\t")[0] for line in done.stdout.splitlines()], done
        return
    start, load = {
        "bash": (["--norc", "--noprofile", "-i"], f"source {file}"),
        "zsh": (["-f", "-i"], f"fpath=({file.parent} $fpath); autoload -Uz compinit; compinit -u -D"),
    }[shell]
    env = {"PATH": os.environ["PATH"], "HOME": str(file.parent), "PS1": "> "}

    def reads() -> bool:  # what is typed before that, the terminal shows as well
        return len(terminal.lines) > done and terminal.lines[-1] == ">" and not terminal.echoes

    done = 0  # lines

    with Terminal([shutil.which(shell), *start], env, columns=120) as terminal:
        terminal.type(f"{load}; cd {file.parent}; echo re''ady\r")
        terminal.see("^ready$")
        for typed, wanted in TYPED.items():
            terminal.wait(reads, "an empty prompt of a shell that reads keys")
            terminal.type(typed + TAB)
            terminal.see(f"^> {wanted}( |$)")
            done = len(terminal.lines)
            terminal.type("\x15\r")  # nothing is run
