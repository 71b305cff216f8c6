"""The studio as its users meet it: Debian's Chromium, and tabs of it that were let in by a server of ours.

Every tab is watched: a script that failed, a policy that was broken or a file that did not come is a fault of the page.
"""

from __future__ import annotations

import shutil
from typing import Any

from debian_packages import program
from made_run import Studio
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

DEADLINE_MS = 100_000
"""For whatever a page is waited for: a busy machine is no fault."""
expect.set_options(timeout=DEADLINE_MS)  # where a test names none, it would be five seconds


_REACHABLE = """
(() => {
  const kinds = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
  const open = (each) => !each.disabled && each.tabIndex >= 0 && each.checkVisibility({ visibilityProperty: true });
  const one = (each) => each.type !== 'radio' || each.checked; // arrows lead to the others of its group
  window.wanted = [...document.querySelectorAll(kinds)].filter((each) => open(each) && one(each));
  window.reached = new Set();
  document.addEventListener('focusin', (event) => window.reached.add(event.target));
  document.activeElement.blur();
  return window.wanted.length;
})()
"""
_MISSED = "window.wanted.filter((each) => each.isConnected && !window.reached.has(each)).map((each) => each.outerHTML)"
_FOR_A_MOUSE = """
[...document.querySelectorAll('body :not(.u-wrap)')] // what is dragged over in a chart can be written beside it
  .filter((each) => getEventListeners(each).click?.length && each.checkVisibility())
  .filter((each) => !each.matches('a[href], button, input, select, summary, dialog, [tabindex="0"], [role="option"]'))
  .filter((each) => !each.querySelector('a[href], button, input')) // a row that leads where its link does
  .map((each) => each.outerHTML)
"""


def entrance(studio: Studio) -> str:
    """An address that lets one more tab in."""
    return f"{studio.url}/#code={studio.http.post('/api/codes').json()['code']}"


class Tab:
    """A tab that was let in. `faults` are what its console said that no page may cause."""

    def __init__(self, context: BrowserContext, studio: Studio) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(DEADLINE_MS)
        self.studio = studio
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.faults.append(said.text))
        self.page.goto(entrance(studio))
        expect(self.page.get_by_text("connected", exact=True)).to_be_attached(timeout=DEADLINE_MS)

    def go(self, address: str) -> None:
        """To a page; returns when it has loaded what it shows."""
        self.page.goto(f"{self.studio.url}/#{address}")
        expect(self.page.locator("h1, .empty, .fault").first).to_be_visible(timeout=DEADLINE_MS)
        expect(self.page.locator(".wait")).to_have_count(0, timeout=DEADLINE_MS)

    def see(self, text: str) -> None:
        expect(self.page.locator("main")).to_contain_text(text, timeout=DEADLINE_MS)

    def is_at(self, heading: str) -> None:
        expect(self.page.get_by_role("heading", level=1)).to_have_text(heading, timeout=DEADLINE_MS)

    def out_of_reach(self) -> list[str]:
        """What the Tab key does not lead to on this page, or answers to a mouse alone."""
        presses, found = self.in_page(_REACHABLE) + 3, None
        for _ in range(2):  # a page that takes the focus itself, when it is there, begins anew
            if found != []:
                for _ in range(presses):
                    self.page.keyboard.press("Tab")
                found = self.in_page(_MISSED)
        session = self.page.context.new_cdp_session(self.page)
        asked = {"expression": _FOR_A_MOUSE, "includeCommandLineAPI": True, "returnByValue": True}
        told = session.send("Runtime.evaluate", asked)
        session.detach()
        return [each[:200] for each in [*(found or ()), *told["result"]["value"]]]

    def serious(self) -> list[Any]:
        """What axe, which the context has, finds serious on this page, light and dark."""
        found = []
        for scheme in ("dark", "light"):
            self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # ty: ignore[invalid-argument-type]
            found += self.in_page(
                "async () => (await axe.run()).violations.filter(each => /serious|critical/.test(each.impact))"
            )
        return found

    def in_page(self, script: str) -> Any:
        """What a script says there. The policy of the page does not hold for it."""
        return self.page.evaluate(script)


class Chromium:
    """The browser, without a window."""

    def __init__(self) -> None:
        program("chromium", "chromium")
        self._playwright = sync_playwright().start()
        args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        self.browser = self._playwright.chromium.launch(executable_path=shutil.which("chromium"), args=args)

    def close(self) -> None:
        self.browser.close()
        self._playwright.stop()
