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
