"""What somebody who comes from other tools reaches for: keys that are not lost, a list that is as it was left, an
address that holds what is looked at, figures that are smoothed and rows that are ordered."""

import re
from dataclasses import replace

import pytest
from browser import DEADLINE_MS, Tab
from made_run import TASK, add_steps, kept, make_run, studio
from playwright.sync_api import expect

from etude.archive.writer import ArchiveWriter


def test_keys_hold_beside_a_box_that_was_ticked(tab):
    tab.go("/runs")
    tab.page.get_by_role("checkbox", name="Compare first").click()
    tab.page.keyboard.press("x")  # the row that has the box
    expect(tab.page.get_by_role("checkbox", name="Compare first")).not_to_be_checked()
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("b")
    tab.is_at("Bench")


def test_a_list_is_walked_and_gone_back_to_as_it_was_left(tab, shown):
    press = tab.page.keyboard.press
    tab.go(f"/run/{shown.id('first')}/trajectories?solved=true&order=kept&step=1..2")
    expect(tab.page.locator("tbody tr.pick")).to_have_count(2)
    press("j")
    press("Enter")
    tab.is_at("g1/0")
    expect(tab.page.get_by_role("button", name="Before")).to_be_disabled()
    press("5")
    press("]")
    tab.is_at("g2/0")
    expect(tab.page.get_by_role("tab", name="Findings")).to_have_attribute("aria-selected", "true")
    press("[")
    tab.is_at("g1/0")
    press("Escape")
    tab.is_at("Trajectories")
    assert "solved=true" in tab.page.url and "order=kept" in tab.page.url
    tab.go(f"/run/{shown.id('second')}/trajectory/g1~0")
    expect(tab.page.get_by_role("button", name="Next")).to_have_count(0)  # it was in no list
    expect(tab.page.locator(".crumb")).to_contain_text("group g1")
    tab.go(f"/run/{shown.id('first')}/trajectory/after~eval-1~0")
    expect(tab.page.locator(".crumb")).to_have_text("eval-1")  # an evaluation plays each task once: it has no group


def test_an_address_holds_the_steps_the_figures_and_how_smooth_they_are(tab, shown):
    chart = tab.page.get_by_role("img", name="Reward.")
    tab.go(f"/run/{shown.id('first')}?from=3&to=6")
    expect(chart).to_have_accessible_name(re.compile("steps 3 to 6$"), timeout=DEADLINE_MS)
    before = tab.page.locator(".chart canvas").first.evaluate("each => each.toDataURL()")
    tab.page.get_by_label("Smooth").select_option("0.9")
    tab.page.get_by_role("button", name="snapshot_ms", exact=True).click()
    expect(tab.page.get_by_role("img", name="snapshot_ms.")).to_be_visible()
    assert tab.page.locator(".chart canvas").first.evaluate("each => each.toDataURL()") != before
    tab.page.reload()
    expect(tab.page.get_by_role("img", name="snapshot_ms.")).to_be_visible(timeout=DEADLINE_MS)
    expect(chart).to_have_accessible_name(re.compile("steps 3 to 6$"), timeout=DEADLINE_MS)
    expect(tab.page.get_by_label("Smooth")).to_have_value("0.9")
    tab.page.get_by_role("button", name="snapshot_ms", exact=True).click()
    expect(tab.page.get_by_role("img", name="snapshot_ms.")).to_have_count(0)
    tab.page.locator("h1").click()
    tab.page.keyboard.press("0")
    expect(chart).to_have_accessible_name(re.compile("steps 1 to 12$"), timeout=DEADLINE_MS)
    assert "from=" not in tab.page.url and "smooth=0.9" in tab.page.url


def test_a_step_is_gone_to_by_its_number(tab, shown):
    tab.go(f"/run/{shown.id('first')}/step")
    tab.is_at("Step 12")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("3")
    tab.page.keyboard.press("Enter")
    tab.is_at("Step 3")
    tab.page.keyboard.press("]")  # the field was left
    tab.is_at("Step 4")


def test_a_row_that_is_chosen_by_a_key_comes_into_view_and_escape_leads_back_to_its_step(tab, shown):
    tab.page.set_viewport_size({"width": 1240, "height": 400})
    tab.go(f"/run/{shown.id('first')}/step/1")
    group = tab.page.get_by_role("link", name="g1", exact=True)
    expect(group).not_to_be_in_viewport()
    tab.page.keyboard.press("j")
    expect(group).to_be_focused()
    expect(group).to_be_in_viewport()
    tab.page.keyboard.press("Enter")
    tab.is_at("group g1")
    tab.page.keyboard.press("Escape")
    tab.is_at("Step 1")


def test_a_run_that_is_over_and_has_no_archive_says_why_no_trajectory_is_there(context, tmp_path):
    make_run(tmp_path / "runs/over", summary=True)
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        tab = Tab(context, served)
        tab.go(f"/run/{served.id('over')}/trajectories")
        tab.see("it was made without one, its chunks were removed or not copied")


def test_rows_are_ordered_by_a_press_on_a_head(tab):
    tab.go("/runs")
    head, first = tab.page.get_by_role("columnheader", name="Steps"), tab.page.locator("tbody tr").first
    press = head.get_by_role("button").press
    press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(first).to_contain_text("first")  # 12 steps
    press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(first).to_contain_text("second")  # 5
    press("Enter")
    expect(head).to_have_attribute("aria-sort", "none")
    tab.page.get_by_label("Look for a run").fill("another")
    tab.page.reload()
    expect(tab.page.get_by_label("Look for a run")).to_have_value("another", timeout=DEADLINE_MS)


def test_a_word_that_is_no_filter_is_told_of(tab, shown):
    tab.go(f"/run/{shown.id('first')}/trajectories")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("rewrd:>0.5")
    tab.see("“rewrd:” is no filter, and is looked for as text. There are outcome, task, tool,")
    tab.page.get_by_label("Filter", exact=True).fill("reward:>0.5")
    expect(tab.page.get_by_text("is no filter")).to_have_count(0)


@pytest.mark.parametrize("steps", [1000, 2300])
def test_of_a_long_run_all_versions_are_there_and_the_newest_first(context, tmp_path, steps):
    """The server gives a thousand at once."""
    run = make_run(tmp_path / "runs/long", steps)
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        tab = Tab(context, served)
        tab.go(f"/run/{served.id('long')}/versions")
        newest = tab.page.locator("tbody tr").first
        expect(newest).to_contain_text(f"v{steps}", timeout=DEADLINE_MS)
        tab.see(f"{steps + 1} versions")
        add_steps(run, [steps + 1])
        expect(newest).to_contain_text(f"v{steps + 1}", timeout=DEADLINE_MS)
        tab.go(f"/run/{served.id('long')}")
        tab.see("etude train RECIPE --resume goes on")
        assert tab.faults == []


BEYOND = """
[...document.querySelectorAll('main :is(h1, h2, a, bdi, dd, pre, button, .badge, .mono, .k)')]
  .filter((each) => !each.closest('.scroll, .tall, .members, .tabs, .clip')) // these have more beside what is seen
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 200))
"""


def test_on_a_narrow_screen_long_names_stay_within_it_and_one_sees_where_one_is(context, tmp_path):
    name, group = "a-run-with-a-long-name-" * 4, "a-group-with-a-long-name-" * 4
    path = make_run(tmp_path / "runs" / name, 2, summary=True)
    tool = ("a_tool_of_a_server_with_quite_a_long_name__and_more", {"an_argument_with_a_long_name": "x" * 300})
    with ArchiveWriter(path) as writer:
        writer.keep(kept(f"{group}/0", task=replace(TASK, id="a_task_without_an_end_" * 10), calls=[tool]))
    make_run(tmp_path / "runs" / f"{name}second", 2, summary=True)
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        tab, run = Tab(context, served), served.id(name)
        tab.page.set_viewport_size({"width": 390, "height": 800})
        one = f"/run/{run}/trajectory/{group}~0"
        both = f"/runs?compare={run},{served.id(name + 'second')}"
        beyond = {}
        for address in (
            both,
            f"/run/{run}",
            f"/run/{run}/trajectories",
            one,
            f"{one}?tab=task",
            f"/run/{run}/group/{group}",
        ):
            tab.go(address)
            if found := tab.in_page(BEYOND):
                beyond[address] = found
        assert beyond == {}
        for address in (f"{one}?tab=task", f"/run/{run}/versions"):
            tab.go(address)
            expect(tab.page.locator(".nav [aria-current]")).to_be_in_viewport(ratio=0.9)
        tab.go(f"{one}?tab=task")
        expect(tab.page.get_by_role("tab", name="Task")).to_be_in_viewport(ratio=0.9)
        assert tab.faults == []
