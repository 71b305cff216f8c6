"""`etude agent` as a person has it: the real command on a real pseudo-terminal, against a real HTTP server."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pseudo_terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, TAB
from scripted_openai import Json, Reply, ScriptedServer
from terminal_setting import Setting

BILL = r"turns? ·"


@pytest.fixture
def here() -> Iterator[Setting]:
    root = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))  # the sandbox has a /tmp of its own
    yield Setting(root)
    shutil.rmtree(root)


def run(command: str) -> tuple[str, dict[str, str]]:
    return "run_terminal_cmd", {"command": command}


def colours(written: bytes) -> set[bytes]:
    """The parameters of every escape sequence that sets a colour."""
    given = {part for found in re.findall(rb"\x1b\[([0-9;]*)m", written) for part in found.split(b";")}
    return {part for part in given if re.fullmatch(rb"(3|4|9|10)[0-8]", part)}


def test_a_first_session(here: Setting) -> None:
    """What is read stands in a line, edits are diffs, commands print as they run, and what it cost is told."""
    todos = [{"content": "mend f", "status": "completed"}, {"content": "test it", "status": "in_progress"}]
    edit = ("edit_file", {"path": "a.py", "old": "x - 1", "new": "x + 1"})
    script = [
        Reply("I **look** first.", [("read_file", {"path": "a.py"}), ("grep", {"pattern": "return"})]),
        Reply("", [edit, ("todo_write", {"todos": todos})]),
        Reply("", [run("seq 1 40; exit 3")]),
        Reply("It is mended."),
    ]
    with ScriptedServer(script) as server:
        price = ("--set", "prices.m={input=2.0,output=10.0}", "--set", "endpoint.stream=true")
        with here.terminal(server, *price, "--allow", "run(seq *)", "Mend f.") as terminal:
            terminal.see("› Mend f.")
            terminal.see("^I look first.$")
            terminal.see(r"^● Read a.py  2 lines$")
            terminal.see(r"^● Search return  1 line$")
            terminal.see(r"^● Edit a.py  \+1 -1$")
            terminal.see(r"^ +2 -     return x - 1$")
            terminal.see(r"^ +2 \+     return x \+ 1$")
            terminal.see(r"☑ mend f$")
            terminal.see(r"▸ test it$")
            terminal.see(r"^\$ seq 1 40; exit 3$")
            terminal.see(r"^  1$")
            terminal.see(r"^  … 22 lines$")
            terminal.see(r"^  40$")
            terminal.see(r"\[exit 3\]")
            terminal.see("^It is mended.$")
            terminal.see(r"^4 turns · 400 in, 40 out · \$0.0012 · context 0% of 128k")
            terminal.say("/undo")
            terminal.see("took back “Mend f.”")
            terminal.see("a.py  written back")
            assert "x - 1" in (here.project / "a.py").read_text()
            terminal.say("/redo")
            terminal.see("brought back what was undone")
            terminal.say("/diff")
            terminal.see(r"^\+    return x \+ 1$")
            terminal.say("/cost")
            terminal.see(r"this session: 400 in, 40 out · \$0.0012")
            terminal.say("/nonsense")
            terminal.see("there is no /nonsense; /help lists what there is")
            terminal.type(CTRL_D)
            assert terminal.end() == 0
            assert terminal.written.count(b"It is mended.") == 1, "what was written once is never written again"
            assert b"\x1b[2J" not in terminal.written and b"\x1b[?1049h" not in terminal.written
            assert b"32" in colours(bytes(terminal.written)) and "etude agent -r" in terminal.text


def test_permissions(here: Setting) -> None:
    """All of a turn at once, with the rule; once, for the session, for good, or no, with a word to the model."""
    script = [
        Reply("", [run("git push origin x"), run("make one")]),
        Reply("", [run("make one && pr -t a.py")]),
        Reply("", [run("make one -k")]),
        Reply("", [run("pr -n a.py")]),
        Reply("Done."),
        Reply("", [("write_file", {"path": ".env", "content": "A=1\n"})]),
        Reply("Well."),
    ]
    with ScriptedServer(script) as server, here.terminal(server) as terminal:
        terminal.say("Go.")
        terminal.see(r"^\? 1\. \$ git push origin x$")
        terminal.see(r"git push origin x: rule ask run\(git push \*\), which is built in")
        terminal.see(r"^\? 2\. \$ make one$")
        terminal.see(r"e each by itself")
        terminal.see(r"allow\?$")  # what is typed before it is no answer
        terminal.type("e" + ENTER)
        terminal.see(r"^\? 1\.")
        terminal.see(r"allow\?$")
        terminal.type("use the mirror" + ENTER)
        terminal.see(r"^\? 2\.")
        terminal.see(r"allow\?$")
        terminal.type("s" + ENTER)
        terminal.see("pr -t a.py: no rule matches; commands are asked about by default")
        terminal.see(r"s and a allow run\(pr \*\)$")
        terminal.see(r"allow\?$")
        terminal.type("a" + ENTER)
        terminal.see("^Done.$")
        terminal.say("And the environment.")
        terminal.see(r"^\? Write .env$")
        terminal.see(r"^  \+ A=1$")
        terminal.see(r"allow\?$")
        terminal.type("n" + ENTER)
        terminal.see("✗ Write .env: the user refused this")
        terminal.see(BILL)
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    told = [each["content"] for each in server.bodies[1]["messages"] if each["role"] == "tool"]
    assert told[0] == "error: the user refused this, and said: use the mirror" and "make" in told[1]
    assert (here.root / "config" / "etude" / "permissions.toml").read_text().count("run(pr *)") == 1
    assert "make" not in (here.root / "config" / "etude" / "permissions.toml").read_text()
    assert not (here.project / ".env").exists()


PLANTS = (
    ("write_file", {"path": ".vscode/tasks.json", "content": "{}"}),
    run("mkdir -p .vscode && echo {} > .vscode/tasks.json"),
    ("write_file", {"path": ".git/hooks/pre-commit", "content": "x"}),
)


@pytest.mark.proof(3)
def test_what_the_guard_refuses_is_said_and_not_asked(here: Setting) -> None:
    """No answer would help: the user is told the one thing that does, and it does."""
    config = here.root / "config" / "etude" / "agent.toml"
    with ScriptedServer([Reply("", PLANTS[:2]), Reply("", PLANTS[2:]), Reply("Well.")]) as server:
        with here.terminal(server, columns=300) as terminal:
            terminal.say("Set the editor up.")
            terminal.see(r"^✗ Write .vscode/tasks.json: not permitted: \S+: the sandbox's guard refuses it")
            terminal.see(rf"^✗ mkdir .*\[workspace\] unguarded = \[\"\.vscode\"\]` in {re.escape(str(config))} lets")
            terminal.see(r"^✗ Write .git/hooks/pre-commit: .*no setting gives it up; write it yourself$")
            terminal.see(BILL)
            assert "allow?" not in terminal.text and "always" not in terminal.text
            terminal.type(CTRL_D)
            assert terminal.end() == 0
        told = [each["content"] for each in server.bodies[1]["messages"] if each["role"] == "tool"]
        assert all("the sandbox's guard refuses it" in each for each in told) and len(told) == 2
    assert not (here.project / ".vscode").exists()
    config.parent.mkdir(parents=True)
    config.write_text('[workspace]\nunguarded = [".vscode"]\n')
    with ScriptedServer([Reply("", PLANTS[:1]), Reply("Well.")]) as server, here.terminal(server) as terminal:
        terminal.say("Set the editor up.")
        terminal.see(r"^\? Write .vscode/tasks.json$")
        terminal.see(r"allow\?$")
        terminal.type("y" + ENTER)
        terminal.see("^Well.$")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert (here.project / ".vscode" / "tasks.json").read_text() == "{}\n"


def test_interrupting_going_on_and_coming_back(here: Setting) -> None:
    sleep = run("echo one >> ledger; echo begun; sleep 100; echo two >> ledger")
    script = [Reply("", [sleep]), Reply("I went on."), Reply("Slow.", stall_s=100), Reply("", [sleep])]
    with ScriptedServer(script) as server:
        with here.terminal(server, "--allow", "run") as terminal:
            terminal.say("Go.")
            terminal.see("^  begun$")
            terminal.type(CTRL_C)
            terminal.see("^stopped. What was done stays")
            terminal.say("/continue")
            terminal.see("^I went on.$")
            terminal.say("Again.")
            terminal.wait(lambda: len(server.requests) == 3, "the request to be made")
            terminal.type(CTRL_C)
            terminal.see("^stopped")
            terminal.say("Once more.")
            terminal.see("^  begun$")
            terminal.type(CTRL_C)
            terminal.see("^stopped")
            terminal.see("› *$")
            terminal.type(CTRL_C)
            terminal.see("etude agent -r")
            assert terminal.end() == 0
        assert (here.project / "ledger").read_text() == "one\none\n", "what was stopped does not go on behind"
        with here.terminal(server, "-c") as terminal:
            terminal.see("3 prompts, 3 turns")
            terminal.see("^› Once more.$")
            terminal.see("it was cut short; /continue goes on with it")
            terminal.see("› *$")
            terminal.type("half a line" + CTRL_C + CTRL_C)
            terminal.see("ctrl-c once more leaves")
            terminal.type(CTRL_C)
            assert terminal.end() == 0
    roles = [(each["role"], str(each["content"])[:20]) for each in server.bodies[1]["messages"]]
    assert roles[-1] == ("tool", "error: interrupted: ")


EVIL = "\x1b]0;owned\x07\x1b[13;37H\x1b[?1049h\x9b5m\x1bP+q\x1b\\\u202e\x1b]52;c;aGk=\x07"
MARKS = [b"\x1b]", b"\x1b[13;37H", b"\x1b[?1049h", b"\xc2\x9b", b"\x1bP", "\u202e".encode(), b"\x07"]


def test_nothing_that_a_model_or_a_tool_says_drives_the_terminal(here: Setting) -> None:
    (here.project / "evil.txt").write_bytes(EVIL.encode())
    todos = [{"content": f"do {EVIL}", "status": "pending"}]
    script = [
        Reply(f"Words {EVIL} and\rmore.\n", [("read_file", {"path": f"none{EVIL}"}), (f"tool{EVIL}", {"x": EVIL})]),
        Reply("", [("write_file", {"path": f"new{EVIL[-4:]}.txt", "content": EVIL}), ("todo_write", {"todos": todos})]),
        Reply("", [run(f"cat evil.txt; printf '50%%\\r100%%\\n' # {EVIL}")]),
        Reply(status=400, body={"error": {"message": f"no {EVIL}"}}),
        Reply("Fine.", reasoning=EVIL),
    ]
    with ScriptedServer(script) as server, here.terminal(server, columns=100) as terminal:
        terminal.say("Go.")
        terminal.see("Words ␛]0;owned␇␛")
        terminal.see(r"^\? \$ cat evil.txt")
        terminal.see(r"allow\?$")
        terminal.type("y" + ENTER)
        terminal.see("␛]0;owned.*50%␍100%$")  # what stood there would not be seen else
        terminal.see("✗ .*does not take the request")
        terminal.see(r"^  ␛]0;owned.*\)$")
        terminal.say("/continue")
        terminal.see("^Fine.$")
        terminal.see(BILL)
        terminal.say("/todos")
        terminal.see("☐ do ␛]0")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert [mark for mark in MARKS if mark in terminal.written] == []


def test_narrow_and_without_colours(here: Setting) -> None:
    words = "This answer is longer than the narrow terminal is wide.\n\n- a point that needs two lines\n\n`code`"
    script = [
        Reply(words, [("edit_file", {"path": "a.py", "old": "x - 1", "new": "x + 1  # " + "y" * 40})]),
        Reply("Ok."),
    ]
    with ScriptedServer(script) as server, here.terminal(server, env={"NO_COLOR": "1"}, columns=32) as terminal:
        terminal.say("Go.")
        terminal.see("^This answer is longer than the$")
        terminal.see("^narrow terminal is wide.$")
        terminal.see("^- a point that needs two lines$")
        terminal.see("^`code`$")
        terminal.see(r"^ +2 \+     return x \+ 1  # y")
        terminal.see(BILL)
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert colours(bytes(terminal.written)) == set()


def test_sessions_models_and_summaries(here: Setting) -> None:
    replies = ["One.", "The summary.", "Two.", "Three.", "Four."]
    with ScriptedServer([Reply(text) for text in replies]) as server:
        with here.terminal(server) as terminal:
            terminal.say("First task.")
            terminal.see("^One.$")
            terminal.say("/compact")
            terminal.see(r"summarised, as you asked: 110 tokens before, [\d,]+ after")
            terminal.say("/model")
            terminal.see("^  scripted$")
            terminal.say("/model other")
            terminal.see("from the next message on: other")
            terminal.see("› *$")
            terminal.type("Second" + ALT_ENTER + "task." + ENTER)
            terminal.see("^Two.$")
            terminal.say("/fork")
            terminal.see("forked; the session before stays as it is")
            terminal.see("^… task.$|^  task.$|^task.$")
            terminal.say("In the fork.")
            terminal.see("^Three.$")
            terminal.say("/resume")
            terminal.see("  1  .*First task.")
            terminal.say("/resume 1")
            terminal.see("2 prompts, 2 turns")
            terminal.say("/resume nowhere")
            terminal.see("✗ session nowhere is not in")
            terminal.see("2 prompts, 2 turns")
            terminal.say("/new")
            terminal.see("/help lists commands")
            terminal.type("/hel" + TAB)
            terminal.see("› /help$")
            terminal.type(ENTER)
            terminal.see("^ctrl-d")
            terminal.type("Look at @a" + TAB)
            terminal.see("Look at @a.py$")
            terminal.type(" please." + ENTER)
            terminal.see("^Four.$")
            terminal.see(BILL)
            terminal.say("/quit")
            assert terminal.end() == 0
        said = [body["messages"][-1]["content"] for body in server.bodies]
        assert "Then you were asked:\nSecond\ntask.\n\n" in said[2], "in two lines, as it was typed"
        assert "The summary." in said[2] and said[3] == "In the fork." and said[4] == "Look at a.py please."
        assert [body["model"] for body in server.bodies] == ["m", "m", "other", "m", "m"]
        with here.terminal(server) as terminal:
            terminal.see("/help lists commands")
            terminal.type("\x1b[A")  # up: what was typed last, in a process that is gone
            terminal.see("› /quit")
            terminal.type(CTRL_C + CTRL_D)
            assert terminal.end() == 0
    assert (here.root / "home" / "history").stat().st_mode & 0o077 == 0


def test_a_full_context_is_announced_and_sigterm_gives_the_keys_back(here: Setting) -> None:
    read = Reply("", [("read_file", {"path": "a.py"})], prompt_tokens=6600)
    script = [read, Reply("I have read it."), Reply("Mended."), Reply("Never.", stall_s=100)]
    with ScriptedServer(script) as server, here.terminal(server, "--set", "context_tokens=8192", "Go.") as terminal:
        assert terminal.echoes
        terminal.see(r"summarised, the context was full: 6,6\d\d tokens before, [\d,]+ after")
        terminal.see("^Mended.$")
        assert "I have read it" not in terminal.text, "what the model writes for itself is not told as an answer"
        terminal.say("Again.")
        terminal.wait(lambda: len(server.requests) == 4, "the request to be made")
        assert not terminal.echoes
        terminal.process.terminate()
        assert terminal.end() == 130 and terminal.echoes and "etude agent -r" in terminal.text


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_without_a_terminal_it_says_what_to_do(here: Setting, more: Sequence[str]) -> None:
    with ScriptedServer([]) as server:
        done = subprocess.run(
            here.argv(server, *more), env=here.env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    assert done.returncode == 42 and "--print" in done.stderr and len(done.stderr.splitlines()) == 1


def test_escape_stops_and_what_was_typed_is_the_next_prompt(here: Setting) -> None:
    script = [Reply("", [run("echo begun; sleep 100")]), Reply("It goes on.")]
    with ScriptedServer(script) as server, here.terminal(server, "--allow", "run") as terminal:
        terminal.say("Go.")
        terminal.see("^  begun$")
        terminal.type("And then?\x1b[D\x1b[D")  # the arrow keys' codes begin with an escape too
        terminal.type("\x1b")
        terminal.see("^stopped. What was done stays")
        terminal.see(r"› And then\?$")
        terminal.type(ENTER)
        terminal.see("^It goes on.$")
        terminal.type("\x1b" + CTRL_D)
        assert terminal.end() == 0
    assert "And then?" in server.bodies[1]["messages"][-1]["content"]


def test_what_is_typed_while_it_works_is_seen_and_sent(here: Setting) -> None:
    """Beside the status where a command runs, below the line where words come; and a question does not take it."""
    gate = here.project / "gate"

    def slowly() -> Iterator[Json]:
        for words in ("So it", " is, "):
            yield {"choices": [{"index": 0, "delta": {"content": words}}]}
        while not gate.exists():
            yield {"choices": []}
        yield {"choices": [{"index": 0, "delta": {"content": "and stays."}, "finish_reason": "stop"}]}

    wait = run("echo begun; until [ -e gate ]; do sleep 0.1; done; rm gate; make it")
    script = [Reply("", [wait]), Reply(events=slowly(), pace_s=0.05), Reply("", [run("make it")]), Reply("Done.")]
    with ScriptedServer(script) as server, here.terminal(server) as terminal:
        terminal.say("Go.")
        terminal.see(r"allow\?$")
        terminal.type("y" + ENTER)
        terminal.see("^  begun$")
        terminal.type("And thenx\x7f?")
        terminal.wait(lambda: "› And then?" in terminal.text, "what is typed to be seen")
        gate.touch()
        terminal.see("^So it")
        terminal.wait(lambda: re.search("^So it.*\n.*› And then\\?$", terminal.text, re.M), "it to stand below words")
        terminal.type(" More." + ENTER + "Last.")
        terminal.wait(lambda: "› And then? More.⏎Last." in terminal.text, "all of it to be seen")
        gate.touch()
        terminal.see(r"› And then\? More\.$")
        assert "So it is, and stays.\n" in terminal.text, "what was written goes on where it was"
        terminal.see(r"allow\?$")
        terminal.type("n" + ENTER)
        terminal.see("^Done.$")
        terminal.see("› Last.$")
        terminal.type("\x15" + CTRL_D)
        assert terminal.end() == 0
    assert server.bodies[2]["messages"][-1]["content"] == "And then? More."


def test_after_escape_it_takes_two_interrupts_to_leave(here: Setting) -> None:
    """The first may come while it still stops, or where a line is waited for; it never leaves without a word."""
    sleep = run("trap '' TERM; echo begun; sleep 100")
    with ScriptedServer([Reply("", [sleep])] * 2) as server, here.terminal(server, "--allow", "run") as terminal:
        terminal.say("Go.")
        terminal.see("^  begun$")
        terminal.type("\x1b")
        terminal.see("^stopped. What was done stays")
        terminal.see("› *$")
        terminal.type(CTRL_C)
        terminal.see("^ctrl-c once more leaves$")
        terminal.say("Again.")
        terminal.see("^  begun$")
        terminal.type("\x1b")
        terminal.wait(lambda: "stopping" in terminal.text or terminal.text.count("stopped.") == 2, "it to stop")
        terminal.type(CTRL_C)
        terminal.see("ctrl-c once more leaves$")
        terminal.see("› *$")
        terminal.type(CTRL_C)
        assert terminal.end() == 0


def test_an_answer_that_became_a_loop_is_cut_and_said_to_be(here: Setting) -> None:
    loop = Reply("Wait, I look once more.\n" * 2000, piece=200)
    with ScriptedServer([loop, loop, Reply("Done.")]) as server, here.terminal(server) as terminal:
        terminal.say("Go.")
        for _ in range(2):
            terminal.see("^the answer was cut off, because it repeated the same 24 characters")
        terminal.see("^stopped: the model repeats itself. Say something to go on$")
        terminal.say("Go on.")
        terminal.see("^Done.$")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_the_line_of_status(here: Setting) -> None:
    """Model, context, cost, branch and mode, as they are when a line is asked for."""
    subprocess.run(["git", "init", "-q", "-b", "feature/x", str(here.project)], check=True)
    price = ("--set", "prices.m={input=2.0,output=10.0}", "--set", "context_tokens=8000")
    with ScriptedServer([Reply("Hello.", prompt_tokens=800)]) as server, here.terminal(server, *price) as terminal:

        def shown(status: str) -> None:
            terminal.wait(lambda: terminal.lines[-1:] == [status], status)

        shown(" m · context 0% of 8k · feature/x · mode ask")
        terminal.say("Hi.")
        terminal.see("^Hello.$")
        shown(" m · context 10% of 8k · $0.0017 · feature/x · mode ask")
        subprocess.run(["git", "-C", str(here.project), "symbolic-ref", "HEAD", "refs/heads/other"], check=True)
        terminal.say("/mode auto")
        shown(" m · context 10% of 8k · $0.0017 · other · mode auto")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_a_slash_command_of_the_users_own(here: Setting) -> None:
    """It is listed, completed and played; one that has the name of the terminal's own is not reached."""
    folder = here.root / "config" / "etude" / "commands"
    folder.mkdir(parents=True)
    (folder / "review.md").write_text("# Look at one file\nRead $ARGUMENTS.")
    (folder / "undo.md").write_text("Never.")
    with ScriptedServer([Reply("Read.")]) as server, here.terminal(server) as terminal:
        terminal.say("/help")
        terminal.see("^/undo .TURNS. +take back")
        terminal.see("^/review +Look at one file$")
        terminal.see("^ctrl-d")
        terminal.type("/rev" + TAB)
        terminal.see("› /review$")
        terminal.type(" @a.py" + ENTER)
        terminal.see("^Read.$")
        terminal.say("/undo")
        terminal.see("took back")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert server.bodies[0]["messages"][-1]["content"] == "# Look at one file\nRead a.py."


def test_a_command_of_the_users_own_is_run_and_told_to_nobody(here: Setting) -> None:
    with ScriptedServer([Reply("Hello.")]) as server, here.terminal(server) as terminal:
        terminal.say("!pwd; read line; echo got $line > own; exit 3")
        terminal.see(f"^{here.project}$")
        terminal.type(f"it{ENTER}")
        terminal.see("^exit 3$")
        terminal.say("!echo begun; sleep 100")
        terminal.see("^begun$")
        terminal.type(CTRL_C)
        terminal.see("^exit 130$")
        terminal.say("Hi.")
        terminal.see("^Hello.$")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert (here.project / "own").read_text() == "got it\n", "outside the sandbox, with this terminal's keys"
    assert "pwd" not in str(server.bodies)
