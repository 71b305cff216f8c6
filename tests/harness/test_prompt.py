"""The bytes of the prompt are part of every trained model; changing them is a decision, so they stand here in full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.harness.prompt import parse_results, render_calls, render_results, system_prompt
from etude.harness.tools import TOOLS


def test_the_system_prompt() -> None:
    assert system_prompt(TOOLS) == (
        "You are Etude, a coding agent in /workspace.\n"
        "read_file(path, start?, end?)\n"
        "edit_file(path, old, new)\n"
        "write_file(path, content)\n"
        "list_dir(path?)\n"
        "grep(pattern, path?)\n"
        "run_terminal_cmd(command)\n"
        "Calls in one message run in parallel. To finish, answer without a call."
    )


def test_calls_and_results() -> None:
    assert render_calls([("f", {"a": "1", "b": "x\ny"}), ("g", {})]) == (
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call>"
    )
    assert render_results(["ok", "a\n"]) == (
        "<tool_response>\nok\n</tool_response>\n<tool_response>\na\n\n</tool_response>"
    )


@given(st.lists(st.text()), st.text(alphabet="<>|\nuser"))
def test_results_are_read_back(texts: list[str], around: str) -> None:
    assert parse_results(f"{around}{render_results(texts)}{around}") == texts
