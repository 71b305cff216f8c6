"""Every page in a real browser, over what the writers of a run have written: seen, by keyboard, by axe, unharmed."""

import json
import re

import pytest
from browser import DEADLINE_MS, Tab, entrance
from hostile import TOKENS
from made_run import ROOT, add_steps, make_run, step_line, studio
from playwright.sync_api import expect

from etude.archive.contents import VERIFIER_CHARS
from etude.rollouts.lines import note

RULES = "{resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']}"


def pages(server):
    """Every page, by what it shows when it is there."""
    first, second = server.id("first"), server.id("second")
    before, after = (
        each["id"] for each in sorted(server.get("/bench")["runs"], key=lambda row: row["name"] == "after")
    )
    one, hostile = f"/run/{first}/trajectory/g1~0", f"/run/{first}/trajectory/h1~0"
    return {
        "/runs": "2 found",
        f"/runs?compare={first},{second}": "Where the recipes differ",
        f"/run/{first}": "Trainer–sampler difference",
        f"/run/{first}?tab=now": "only after reinforcement learning, and 0 only by the control",
        f"/run/{first}?tab=recipe": "trainer.optimizer.lr",
        f"/run/{first}?tab=counters": "Counters",
        f"/run/{first}?tab=notes": "restart",
        f"/run/{first}/step/1": "Rollouts by worker",
        f"/run/{first}/trajectories": "16 kept",
        one: "read_file",
        f"{one}?tab=tokens&by=advantage&token=3": "trainer less sampler",
        f"{one}?tab=files": "dates.py",
        f"{one}?tab=verifier": "What the verifier printed",
        f"{one}?tab=task": "Fix the parser of dates.",
        f"{hostile}?tab=findings": "2 findings",
        f"/run/{first}/group/g1": "they part ways at turn 1",
        f"/run/{first}/versions": "Bytes published",
        f"/run/{first}/plan": "Plan",
        "/bench": "95% interval",
        f"/bench?a={before}&b={after}": "The second against the first",
        "/sessions": "Sessions",
        "/nowhere": "There is no such page",
    }


@pytest.mark.parametrize(("scheme", "width"), [("light", 1360), ("dark", 400)])
def test_every_page_is_shown_and_axe_finds_nothing_serious(context, shown, web, scheme, width):
    context.add_init_script(path=web / "web/node_modules/axe-core/axe.min.js")
    tab = Tab(context, shown)
    tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    tab.page.set_viewport_size({"width": width, "height": 800})
    found = {}
    for address, text in pages(shown).items():
        tab.go(address)
        tab.see(text)
        for each in tab.in_page(f"async () => (await axe.run({RULES})).violations"):
            if each["impact"] in ("serious", "critical"):
                found[address, each["id"]] = [node["html"][:200] for node in each["nodes"]]
        too_wide = tab.in_page("document.documentElement.scrollWidth - innerWidth")
        if too_wide > 0:
            found[address, "wider than the window"] = too_wide
    assert found == {}, json.dumps({str(key): each for key, each in found.items()}, indent=1)
    assert [fault for fault in tab.faults if "400" not in fault] == []  # the plan of a run that has played nothing


OF_WORK = {"work", "review", "session", "sessions"}
"""Pages that test_pages_work.py looks at in the same way, as agents must be at work in them."""


THERE = set(re.findall(r"^  (\w+): \(\) => import\(", (ROOT / "web/src/pages.ts").read_text(), re.MULTILINE))
"""Every page but the first."""


def test_no_page_is_left_out(shown):
    looked_at = {re.sub(r"^/run/[^/?]+$", "live", address.partition("?")[0]) for address in pages(shown)}
    kinds = {each.removeprefix("/").partition("/")[2].partition("/")[2].partition("/")[0] or each for each in looked_at}
    assert len(THERE) > 10 and THERE - kinds - OF_WORK - {each.removeprefix("/") for each in kinds} == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_has_its_picture_in_the_docs(scheme):
    """Made by tools/screenshots.py; of a page of several parts, of one of them at least."""
    pictures = {path.name for path in (ROOT / "docs/studio").iterdir()}
    seen = {name for name in pictures if name.endswith(f"-{scheme}.webp")}
    lacking = [
        name
        for name in {"runs", *THERE}
        if not any(re.fullmatch(rf"{name}-(\w+-)?{scheme}.webp", each) for each in seen)
    ]
    assert lacking == []


def test_every_control_of_every_page_is_reached_without_a_mouse(tab, shown):
    missed = {}
    for address in pages(shown):
        tab.go(address)
        if found := tab.out_of_reach():
            missed[address] = found
    assert missed == {}, json.dumps(missed, indent=1)
    tab.faults[:] = [fault for fault in tab.faults if "400" not in fault]  # the plan of a run that has played nothing


def test_what_answers_to_a_mouse_alone_would_be_found(tab):
    tab.go("/runs")
    tab.in_page(
        """() => {
        const made = document.createElement('span');
        made.textContent = 'press here';
        made.addEventListener('click', () => {});
        document.querySelector('main').append(made);
        }"""
    )
    assert tab.out_of_reach() == ["<span>press here</span>"]


def test_every_page_is_gone_to_by_its_keys(tab, shown):
    tab.go(f"/run/{shown.id('first')}")
    of_a_run = {"s": "Step 12", "t": "Trajectories", "v": "Versions", "p": "Plan", "l": "first"}
    for key, heading in {**of_a_run, "b": "Bench", "e": "Sessions", "r": "Runs"}.items():
        tab.page.keyboard.press("g")
        tab.page.keyboard.press(key)
        tab.is_at(heading)
    tab.faults[:] = [fault for fault in tab.faults if "400" not in fault]  # the plan of a run that has played nothing


WORK = ["--work", "--agent-set", 'endpoint.url="http://127.0.0.1:9/v1"', "--agent-set", 'endpoint.model="m"']
"""Nothing is asked of this model."""


def test_a_run_is_found_read_and_left_by_keyboard_alone(tab):
    press, write = tab.page.keyboard.press, tab.page.keyboard.type
    tab.go("/runs")
    press("/")
    write("another")
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    press("Escape")
    press("j")
    press("Enter")
    tab.is_at("second")
    press("g")
    press("t")
    tab.see("7 kept")
    press("/")
    write("tool:read_file outcome:scored")
    press("Enter")
    tab.see("3 found")
    assert "tool=read_file" in tab.page.url and "outcome=scored" in tab.page.url
    press("Escape")
    expect(tab.page.locator("tbody tr.pick")).to_have_count(3)
    press("j")
    press("j")
    press("Enter")
    tab.is_at("g2/0")
    press("2")
    expect(tab.page.get_by_role("tab", name="Tokens")).to_have_attribute("aria-selected", "true")
    press("o")
    tab.is_at("group g2")
    press("?")
    expect(tab.page.get_by_role("dialog", name="Keys on this page")).to_be_visible()
    press("Escape")
    press("Control+k")
    expect(tab.page.get_by_role("combobox", name="Command or run")).to_be_focused()
    write("versions")
    press("Enter")
    tab.is_at("Versions")
    press("Escape")
    tab.is_at("second")


def test_a_key_pressed_as_the_help_closes_is_answered(tab):
    tab.go("/runs")
    help = tab.page.get_by_role("dialog", name="Keys on this page")
    tab.page.keyboard.press("?")
    expect(help).to_be_visible()
    tab.in_page(
        """{
        const asked = new MutationObserver(() => {
          asked.disconnect();
          window.dispatchEvent(new KeyboardEvent('keydown', { key: '?' }));
        });
        asked.observe(document.querySelector('dialog[open]'), { attributeFilter: ['open'] });
        }"""
    )
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_timeout(300)  # what the closing has still to say
    expect(help).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(help).to_be_hidden()


def test_a_timeline_and_tokens_are_walked_by_keyboard(tab, shown):
    press = tab.page.keyboard.press
    tab.go(f"/run/{shown.id('first')}/step/1")
    tab.page.get_by_role("application").focus()
    press("ArrowRight")
    tab.see("g1/0 on here/1: scored, reward 1")
    press("ArrowDown")
    tab.see("g1/1 on here/2: scored, reward 0")
    press("Enter")
    tab.is_at("g1/1")
    press("2")
    tab.page.get_by_role("application").focus()
    for _ in range(4):
        press("ArrowRight")
    about = tab.page.locator(".about")
    expect(about).to_contain_text("yes")  # the fifth token is the second that was sampled
    expect(about).to_contain_text("\u22120.500")


def test_a_key_counts_from_the_moment_its_page_is_seen(tab, shown):
    tab.go(f"/run/{shown.id('first')}/step/1")
    tab.in_page("""() => new MutationObserver((_, seen) => {
        if (document.querySelector('h1')?.textContent !== 'g1/1') return;
        seen.disconnect();
        document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '2', bubbles: true }));
    }).observe(document.body, { childList: true, subtree: true, characterData: true })""")
    tab.in_page(f"() => {{ location.hash = '/run/{shown.id('first')}/trajectory/g1~1' }}")
    expect(tab.page.get_by_role("tab", name="Tokens")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("part", ["turns", "files", "verifier", "findings", "task"])
def test_hostile_content_is_only_ever_text(tab, shown, part):
    tab.go(f"/run/{shown.id('first')}/trajectory/h1~0?tab={part}")
    tab.see("word word" if part == "verifier" else "<img src=x onerror=window.hit=1>")
    assert tab.in_page("window.hit") is None
    assert tab.page.locator("main script, main img").count() == 0
    text = tab.page.locator("main").inner_text()
    assert not set(text) & {*"\u202e\x1b\x00\u200b"}
    if part == "files":
        assert "new␊line.py" in text and "‹RLO›gnp.exe" in text
    if part != "verifier":
        assert "user‹RLO›txt.exe" in text and "␛[31mred␀" in text


def test_long_output_is_read_a_window_at_a_time(tab, shown):
    tab.go(f"/run/{shown.id('first')}/trajectory/h1~0?tab=verifier")
    tab.page.get_by_role("button", name="Read all").click()
    tab.page.get_by_role("button", name="End").click()
    end = f"{VERIFIER_CHARS // 1000}\u202f{VERIFIER_CHARS % 1000:03}"
    tab.see(f"to {end} of {end} characters")
    assert 1000 < len(tab.page.locator(".result").inner_text()) < 60_000


def test_of_many_tokens_some_are_in_the_page_and_each_has_an_address(tab, shown):
    one = f"/run/{shown.id('first')}/trajectory/h3~0?tab=tokens"
    tab.go(one)
    expect(tab.page.locator("[data-at='0']")).to_be_visible(timeout=DEADLINE_MS)
    tab.go(f"{one}&token=15000")
    expect(tab.page.locator(".at[data-at='15000']")).to_be_in_viewport(timeout=DEADLINE_MS)
    expect(tab.page.locator(".about")).to_contain_text("\u22120.750")  # its log-probability
    tab.page.get_by_role("application").focus()
    tab.page.keyboard.press("End")
    expect(tab.page.locator(f".at[data-at='{TOKENS - 1}']")).to_be_in_viewport(timeout=DEADLINE_MS)
    assert tab.page.locator("[data-at]").count() < 6000


def test_a_file_opens_whatever_its_name(tab, shown):
    tab.go(f"/run/{shown.id('first')}/trajectory/h1~0?tab=files")
    for name in ("new␊line.py", "‹RLO›gnp.exe", "<b>.py"):
        tab.page.get_by_role("button", name=name).click()
        expect(tab.page.locator(".filehead")).to_have_text(name)
        expect(tab.page.locator(".dl.minus").first).to_contain_text("old")


def up_to(step):
    """What a chart says of itself that ends at this step."""
    return re.compile(rf"steps 1 to {step}$")


def test_what_is_new_comes_by_itself_and_survives_the_server(context, tmp_path):
    """A run that goes on: the server dies and comes back, and no step that was made meanwhile is missed."""
    run = make_run(tmp_path / "runs/going", 1)
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        tab = Tab(context, served)
        tab.go(f"/run/{served.id('going')}")
        chart = tab.page.get_by_role("img", name="Reward.")
        expect(chart).to_have_accessible_name(up_to(1), timeout=DEADLINE_MS)
        add_steps(run, [2])
        expect(chart).to_have_accessible_name(up_to(2), timeout=DEADLINE_MS)
        served.stop(9)
        gone = tab.page.get_by_text("Not connected.")
        expect(gone).to_be_visible(timeout=DEADLINE_MS)
        note(run / "metrics.jsonl", "step", {**step_line(3), "reward": 7.0})
    with studio(tmp_path / "home", tmp_path / "runs", port=served.port):
        expect(gone).to_have_count(0, timeout=DEADLINE_MS)
        add_steps(run, [4])
        expect(chart).to_have_accessible_name(re.compile(r"to 7\S*, steps 1 to 4$"), timeout=DEADLINE_MS)
        assert tab.page.locator(".fault").count() == 0


def test_a_tab_without_a_code_sees_nothing_and_a_code_works_once(context, shown):
    page = context.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(shown.url)))
    page.goto(f"{shown.url}/")
    expect(page.get_by_text("This tab has not been let in yet.")).to_be_visible(timeout=DEADLINE_MS)
    assert [path for path in asked if path.startswith("/api/")] == []
    address = entrance(shown)
    page.goto(address)  # in a tab that is open already, only what is behind the # changes
    expect(page.get_by_role("heading", name="Runs")).to_be_visible(timeout=DEADLINE_MS)
    assert "code" not in page.url
    with context.browser.new_context() as other:
        late = other.new_page()
        late.goto(address)
        expect(late.get_by_text("used before")).to_be_visible(timeout=DEADLINE_MS)


def test_a_tab_that_is_in_lets_in_what_is_opened_from_it(context, tab, shown):
    """By a click with Ctrl, as one opens several trajectories, and by an address that was kept; nobody else is."""
    tab.go("/runs")
    with context.expect_page(timeout=DEADLINE_MS) as opened:
        tab.page.get_by_role("link", name="first").click(modifiers=["Control"])
    second = opened.value
    expect(second.get_by_role("heading", level=1)).to_have_text("first", timeout=DEADLINE_MS)
    tab.page.close()  # the one that is left lets others in
    third = context.new_page()
    third.goto(f"{shown.url}/#/run/{shown.id('first')}/step/3")
    expect(third.get_by_role("heading", level=1)).to_have_text("Step 3", timeout=DEADLINE_MS)
    second.close()
    third.close()
    with context.browser.new_context() as other:
        page = other.new_page()
        page.goto(f"{shown.url}/#/runs")
        expect(page.get_by_text("This tab has not been let in yet.")).to_be_visible(timeout=DEADLINE_MS)


def test_notes_are_written_only_where_work_is_allowed(context, tab, shown, places, tmp_path):
    tab.go(f"/run/{shown.id('second')}/trajectory/g1~0")
    assert tab.page.get_by_role("button", name="Note on this call of grep").count() == 0
    with studio(tmp_path / "home", places, more=WORK) as served:
        writing = Tab(context, served)
        writing.go(f"/run/{served.id('second')}/trajectory/g1~0")
        writing.page.get_by_role("button", name="Note on this call of grep").click()
        writing.page.get_by_label("Note", exact=True).fill("<b>look</b> here")
        writing.page.keyboard.press("Enter")
        expect(writing.page.locator(".note")).to_contain_text("<b>look</b> here", timeout=DEADLINE_MS)
        writing.page.reload()
        expect(writing.page.locator(".note")).to_contain_text("<b>look</b> here", timeout=DEADLINE_MS)
        writing.page.get_by_role("button", name="Take the note away").click()
        expect(writing.page.locator(".note")).to_have_count(0, timeout=DEADLINE_MS)


def test_the_pages_are_small(context, shown):
    """What comes over the wire for the first page, and all there is."""
    static = ROOT / "etude/studio/static"
    loaded = []
    page = context.new_page()
    page.on("requestfinished", lambda each: loaded.append(each))
    page.goto(entrance(shown))
    expect(page.locator("tbody tr")).to_have_count(2)
    scripts = [each for each in loaded if each.url.endswith(".js")]
    assert 0 < sum(each.sizes()["responseBodySize"] for each in scripts) <= 60_000
    every = [shown.http.get(f"/{path.relative_to(static)}") for path in static.rglob("*.js")]
    assert 0 < sum(int(each.headers["content-length"]) for each in every) <= 250_000
