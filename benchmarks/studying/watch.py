"""When a page shows what it was opened for: told by the page itself, at the frame that has it.

A script looks at each frame whether all is there, so that what the browser's driver costs is in no figure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

VIEWPORT = {"width": 1920, "height": 2600}
"""Room for twelve charts, of either page: what is out of view may be left for later."""
MOST_MS = 120_000

LOOK = """
(() => {
  READY
  const look = () => (ready() ? (window.shownAt = performance.now()) : requestAnimationFrame(look));
  requestAnimationFrame(look);
})();
"""
GO = """
(address) => new Promise((resolve, reject) => {
  READY
  const began = performance.now();
  location.hash = address;
  const look = () => {
    if (ready()) requestAnimationFrame(() => resolve(performance.now() - began));
    else if (performance.now() - began > MOST) reject(new Error(`${address} was not shown within MOST ms`));
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})
"""


def opened_ms(browser: Browser, address: Callable[[], str], ready: str, rounds: int) -> list[float]:
    """Of a tab that has nothing yet: from the beginning of its navigation to the frame that shows all."""
    found = []
    for _ in range(rounds):
        with fresh(browser) as context:
            context.add_init_script(LOOK.replace("READY", ready))
            page = context.new_page()
            page.goto(address(), timeout=MOST_MS)
            found.append(float(until(page, "window.shownAt")))
    return found


def painted_ms(browser: Browser, address: Callable[[], str], rounds: int) -> list[float]:
    """The first paint that has content, as the browser itself tells of it."""
    found = []
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    for _ in range(rounds):
        with fresh(browser) as context:
            page = context.new_page()
            page.goto(address(), timeout=MOST_MS)
            found.append(float(until(page, script)))
    return found


def until(page: Page, script: str) -> Any:
    """What a script says there, as soon as that is something. Raises SystemExit after `MOST_MS`."""
    ends = time.monotonic() + MOST_MS / 1000
    while not (found := page.evaluate(script)):  # the page's policy lets no string be run by the page itself
        if time.monotonic() > ends:
            raise SystemExit(f"{page.url.partition('#')[0]}: {script} says nothing after {MOST_MS / 1000:.0f} s")
        page.wait_for_timeout(50)
    return found


def gone_ms(page: Page, address: str, ready: str) -> float:
    """From a change of address in an open tab to the frame that shows it."""
    return float(page.evaluate(GO.replace("READY", ready).replace("MOST", str(MOST_MS)), address))


def fresh(browser: Browser) -> BrowserContext:
    """Nothing is cached in it."""
    return browser.new_context(viewport=VIEWPORT, color_scheme="light")  # ty: ignore[invalid-argument-type]


def middle(values: Sequence[float]) -> float:
    return round(statistics.median(values), 1)


def heap_mb(page: Page) -> float:
    """What its scripts hold, after what they do not is swept up."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.detach()
    return _metrics(page)["JSHeapUsedSize"] / 1e6


def _metrics(page: Page) -> dict[str, Any]:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    found = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    return {each["name"]: each["value"] for each in found}
