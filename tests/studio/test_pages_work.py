"""Agents at work as a person has them in a browser: real sandboxes, scripted models, and what lands in the tree."""

import time

import pytest
from browser import DEADLINE_MS, Tab
from playwright.sync_api import expect
from test_pages_heavy import Watched
from test_studio_work import BEFORE, CHANGED, Reply, edit, eight, git, root, working  # noqa: F401 (a fixture)

LONG_MS = 4 * DEADLINE_MS
"""For eight agents to start their sandboxes, on a machine that is busy."""


def begin(tab, root, tasks, mode):  # noqa: F811
    tab.go("/work")
    tab.page.get_by_label("The top of a git repository").fill(str(root / "project"))
    tab.page.get_by_label("Tasks, one a line").fill("\n".join(tasks))
    tab.page.get_by_label("Ask me").select_option(mode)
    tab.page.get_by_role("button", name=f"Begin {len(tasks)} agent").click()
    expect(tab.page.locator("article.agent")).to_have_count(len(tasks), timeout=LONG_MS)


def test_hunks_that_are_taken_by_keyboard_land_in_the_tree_exactly(context, root, web):  # noqa: F811
    context.add_init_script(path=web / "web/node_modules/axe-core/axe.min.js")
    calls = [
        *edit(("line 3\n", "LINE 3\n"), ("line 30\n", "LINE 30\nand more\n"), ("line 59\nline 60\n", "line 59\n")),
        ("write_file", {"path": "new.txt", "content": "<b>hello</b>\n"}),
    ]
    with working(
        root, [*(Reply("", [call]) for call in calls), Reply("<i>Done.</i>"), Reply("More is done.")]
    ) as served:
        tab = Tab(context, served)
        begin(tab, root, ["Change it."], "auto")
        expect(tab.page.locator("article.agent")).to_contain_text("finished", timeout=LONG_MS)
        tab.page.get_by_role("link", name="Review").click()
        tab.is_at("What agent-1 changed")
        expect(tab.page.locator(".hunk")).to_have_count(4)
        assert tab.serious() == []
        press = tab.page.keyboard.press
        for key in ("x", "j", "j", "x", "j", "x"):  # new.txt, the first hunk is passed by, the second, the third
            press(key)
        expect(tab.page.locator(".hunk.taken")).to_have_count(3)
        assert (root / "project/text.txt").read_text() == BEFORE
        press("a")
        tab.see("In your tree now: new.txt, text.txt")
        assert (root / "project/text.txt").read_text() == CHANGED.replace("LINE 3\n", "line 3\n")
        assert (root / "project/new.txt").read_text() == "<b>hello</b>\n"
        (root / "project/text.txt").write_text("the user's own\n")
        press("a")
        tab.page.get_by_role("button", name="Take all").click()
        press("a")
        tab.see("conflicts with your changes")
        assert (root / "project/text.txt").read_text() == "the user's own\n"
        assert tab.out_of_reach() == []

        tab.go("/work")
        tab.page.get_by_role("link", name="Watch").click()
        tab.see("<i>Done.</i>")
        expect(tab.page.locator("article.call")).to_have_count(4)
        tab.page.get_by_label("Moment of the session").focus()
        tab.page.keyboard.press("Home")
        tab.see("Nothing has been said")
        assert tab.page.url.endswith("?event=1")
        tab.page.keyboard.press("End")
        tab.see("<i>Done.</i>")
        tab.page.get_by_role("button", name="Fork").click()
        tab.see("forked from")
        expect(tab.page.locator("article.call")).to_have_count(4, timeout=DEADLINE_MS)
        tab.page.get_by_label("Say something to the agent").fill("And more.")
        tab.page.get_by_label("Say something to the agent").press("Control+Enter")
        tab.see("More is done.")
        assert [fault for fault in tab.faults if "400" not in fault] == []


def test_eight_agents_are_answered_in_one_inbox(context, root, web):  # noqa: F811
    context.add_init_script(path=web / "web/node_modules/axe-core/axe.min.js")
    with working(root, eight) as served:
        tab = Tab(context, served)
        begin(tab, root, [f"This is task {number}." for number in range(1, 9)], "ask")
        asked = tab.page.locator("article.asked")
        expect(asked).to_have_count(8, timeout=LONG_MS)
        assert tab.serious() == [] and tab.out_of_reach() == []
        first = tab.page.get_by_role("article", name="agent-1 asks")
        expect(first).to_contain_text("make all-1")
        first.get_by_role("button", name="Allow", exact=True).click()
        for number in range(2, 9):
            other = tab.page.get_by_role("article", name=f"agent-{number} asks")
            words = other.get_by_label("Words for the model")
            words.fill(f"Not now, {number}.")
            if number == 2:
                words.press("Enter")
            else:
                other.get_by_role("button", name="Deny").click()
            expect(other).to_have_count(0, timeout=DEADLINE_MS)
        expect(tab.page.get_by_text("finished")).to_have_count(8, timeout=LONG_MS)
        expect(tab.page.locator("main")).to_contain_text("28 pairs of agents changed the same places", timeout=LONG_MS)
        tab.page.get_by_role("article", name="agent-3").get_by_role("link", name="Watch").click()
        tab.see("Not now, 3.")
        tab.go("/sessions")
        expect(tab.page.get_by_role("link", name="This is task 3.")).to_be_visible(timeout=DEADLINE_MS)
        assert tab.serious() == [] and tab.out_of_reach() == []
        tab.page.get_by_role("link", name="This is task 2.").click()
        tab.see("Not now, 2.")
        assert tab.serious() == [] and tab.out_of_reach() == []
        tab.go("/work")
        tab.page.get_by_role("button", name="End the team").click()
        expect(tab.page.locator("main")).to_contain_text("ended", timeout=LONG_MS)
        assert git(root / "project", "status", "-s") == ""
        assert tab.faults == []


MANY = 10_000
WRITE = f"mkdir many && cd many && seq {MANY} | split -l 1 -a 4 -d - f"


@pytest.mark.proof(60)
def test_ten_thousand_changed_files_are_reviewed_and_all_but_one_taken(context, root):  # noqa: F811
    """Each page of them comes as one goes on; the tab answers meanwhile, and holds what is in view."""
    with working(root, [Reply("", [("run_terminal_cmd", {"command": WRITE})]), Reply("Done.")]) as served:
        tab = Watched(context, served)
        begin(tab, root, ["Write them."], "auto")
        expect(tab.page.locator("article.agent")).to_contain_text("finished", timeout=LONG_MS)
        tab.page.get_by_role("link", name="Review").click()
        tab.see("10\u202f000 files, of which 200 are here")
        tab.key_is_answered()
        changes, names = tab.page.get_by_role("group", name="Changes"), tab.page.locator(".reviewlist .filehead")
        ends = time.monotonic() + 4 * DEADLINE_MS / 1000
        while (last := names.last.inner_text()) < "many/f0999":  # four pages more
            assert time.monotonic() < ends, f"the list ends with {last}"
            changes.evaluate("each => each.scrollTo(0, 1e9)")
            tab.page.wait_for_timeout(50)
        tab.key_is_answered()
        tab.holds_little()
        changes.evaluate("each => each.scrollTo(0, 0)")
        tab.page.get_by_role("button", name="Take all").click()
        expect(tab.page.get_by_role("button", name="files more into my tree")).to_be_visible()
        tab.page.get_by_role("checkbox").first.click()  # all but the first file
        tab.page.keyboard.press("a")
        tab.key_is_answered()
        tab.see("and 9979 more")
        brought = {path.name for path in (root / "project/many").iterdir()}
        assert len(brought) == MANY - 1 and "f0000" not in brought
        assert (root / "project/many/f9999").read_text() == f"{MANY}\n"
        tab.key_is_answered()
        tab.holds_little()
        assert tab.faults == []
