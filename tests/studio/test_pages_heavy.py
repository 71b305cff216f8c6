"""What is too much for a page: megabytes in one output, ten thousand files, thousands of calls. It is shown, a part
at a time, and the tab answers meanwhile.

How long a tab was busy depends on the machine; what is asserted does not: that a key is answered, what came over the
wire, and how many elements the page holds. Long tasks are told of with `-rP`.
"""

import json
import time

import pytest
from browser import DEADLINE_MS, Tab
from hostile import CALLS, FILES, HUGE, huge
from made_run import make_run, studio
from playwright.sync_api import expect

from etude.harness.store import SessionStore
from etude.studio.trajectory import MOST_CALLS

ELEMENTS, BYTES = 5_000, 4_000_000
"""That a page may have at most, and that one answer may be."""
WATCH = """
window.tasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((each) => window.tasks.push(Math.round(each.duration))))
  .observe({ type: 'longtask', buffered: true });
"""


class Watched(Tab):
    """A tab that counts: how large each answer was, how long its tasks were, what the page holds."""

    def __init__(self, context, server):
        context.add_init_script(WATCH)
        self.sizes = {}
        super().__init__(context, server)
        self.page.on("response", self._answered)

    def _answered(self, answer):
        if "/api/" in answer.url and "/stream" not in answer.url:
            self.sizes[answer.url] = int(answer.headers.get("content-length", 0))

    def answers(self, address, text):
        """Goes to an address and, while it is still on its way, presses a key, which is answered. Then all is there."""
        self.page.evaluate("address => void (location.hash = address)", address)
        self.key_is_answered()
        self.see(text)
        self.key_is_answered()

    def key_is_answered(self):
        help = self.page.get_by_role("dialog", name="Keys on this page")
        self.page.keyboard.press("?")
        expect(help).to_be_visible(timeout=DEADLINE_MS)
        self.page.keyboard.press("Escape")
        expect(help).to_be_hidden(timeout=DEADLINE_MS)

    def holds_little(self):
        """Elements of the page, and the largest answer."""
        elements, tasks = self.in_page("[document.querySelectorAll('*').length, window.tasks]")
        largest = max(self.sizes.values(), default=0)
        print(f"{self.page.url.partition('#')[2]}: {elements} elements, {largest} bytes at most, long tasks {tasks} ms")
        assert elements < ELEMENTS and largest < BYTES
        assert self.in_page("window.hit") is None and self.page.locator("main script, main img").count() == 0
        assert not set(self.page.locator("main").inner_text()) & {*"\u202e\x1b\x00\u200b"}


@pytest.fixture
def watched(context, shown):
    tab = Watched(context, shown)
    yield tab
    assert tab.faults == []


def test_an_output_of_fifty_megabytes_is_read_from_both_ends(watched, shown):
    watched.answers(f"/run/{shown.id('first')}/trajectory/h4~0", "worse xxx")
    watched.holds_little()
    press = watched.page.get_by_role("button", name="Read all").click
    press()
    watched.key_is_answered()
    watched.see(f"of {HUGE // 10**6}\u202f000\u202f000 characters")
    watched.page.get_by_role("button", name="End").click()
    watched.key_is_answered()
    expect(watched.page.locator(".result pre")).to_contain_text("the very end", timeout=DEADLINE_MS)
    watched.holds_little()


def test_ten_thousand_files_are_walked_to_the_last(watched, shown):
    watched.answers(f"/run/{shown.id('first')}/trajectory/h2~0?tab=files", "src/f00000.py")
    for key in "jjk":
        watched.page.keyboard.press(key)
    expect(watched.page.locator(".onefile .filehead")).to_have_text("src/f00001.py")
    names = watched.page.locator(".filelist li")
    last, ends = f"src/f{FILES - 1:05}.py", time.monotonic() + 4 * DEADLINE_MS / 1000
    while last not in names.last.inner_text():  # each page of the list that comes makes it longer
        assert time.monotonic() < ends, f"the list ends with {names.last.inner_text()}"
        watched.in_page("document.querySelector('.filelist').scrollTo(0, 1e9)")
        watched.page.wait_for_timeout(50)
    assert names.count() < 60
    watched.key_is_answered()
    watched.page.get_by_role("button", name=last).click()
    expect(watched.page.locator(".onefile")).to_contain_text("Its lines were not kept")
    watched.holds_little()


def test_thousands_of_calls_in_a_message_come_some_at_a_time(watched, shown):
    watched.answers(f"/run/{shown.id('first')}/trajectory/h5~0", f"{CALLS} calls side by side")
    calls = watched.page.locator("article.call")
    expect(calls).to_have_count(50)
    watched.page.get_by_role("button", name="calls more").click()
    expect(calls).to_have_count(100)
    watched.see(f"{CALLS - MOST_CALLS} more calls were made in this message")
    watched.holds_little()
    watched.answers(f"/run/{shown.id('first')}/trajectory/h5~0?tab=task", "characters more")
    watched.holds_little()
    watched.answers(f"/run/{shown.id('first')}/group/h5", "1 member")
    watched.holds_little()


def test_a_session_with_a_line_of_megabytes_is_followed(context, tmp_path):
    home = tmp_path / "home"
    make_run(tmp_path / "runs/any", 1)
    store = SessionStore(home)
    lines = [
        {"kind": "session", "id": (id := store.new_id()), "workspace": str(tmp_path), "tools": []},
        {"kind": "prompt", "system": "", "user": "Build it.", "tokens": 1},
        {"kind": "completion", "turn": 1, "text": "I build.", "tokens": 1},
        {"kind": "tool_call", "turn": 1, "index": 0, "name": "run_terminal_cmd", "arguments": {"command": "make"}},
        {"kind": "tool_result", "turn": 1, "index": 0, "text": huge(), "error": False},
        {"kind": "end", "stop": "finished", "usage": {}},
    ]
    with store.open(id, new=True) as journal:
        for at, line in enumerate(lines):
            journal.append(json.dumps({"at": float(at), **line}, ensure_ascii=False).encode())
    with studio(home, tmp_path / "runs") as served:
        tab = Watched(context, served)
        tab.answers(f"/session/{id}", "characters more")
        tab.see("Ended: finished.")
        tab.page.get_by_role("button", name="characters more").click()
        tab.key_is_answered()
        tab.holds_little()
        assert tab.faults == []
