"""When the charts of a page are drawn, by its frames: the same for any page, whatever draws on it, and where.

The browser films the tab from before its navigation on. At the end, when nothing has moved for a while, it is asked
where the charts are. Those are drawn from the first frame on in which all of them look as they do at the end.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser
from studying.watch import MOST_MS, fresh, until

WIDTH, HEIGHT = 960, 1300
"""Of a frame: half of the window's."""
STILL_S = 3.0
UNLIKE, STEP = 0.005, 32
"""Share of a chart's pixels that may differ, and by how much each before it does."""
BOXES = """
(() => {
  const found = [...document.querySelectorAll('CHART')].map((each) => each.getBoundingClientRect());
  const whole = found.filter((each) => each.width > 100 && each.bottom <= innerHeight);
  return whole.length >= COUNT ? whole.map((each) => [each.left, each.top, each.right, each.bottom]) : null;
})()
"""
Frame = tuple[float, np.ndarray]
"""Unix seconds, and grey pixels [HEIGHT, WIDTH]."""


def drawn_ms(browser: Browser, address: Callable[[], str], chart: str, count: int) -> float:
    """From the beginning of a navigation, in a tab that has nothing yet, to the frame from which on `count` charts
    stand. `chart` selects their elements. Raises SystemExit where they never do."""
    with fresh(browser) as context:
        page = context.new_page()
        session = context.new_cdp_session(page)
        taken: list[tuple[float, str]] = []

        def keep(frame: dict[str, Any]) -> None:
            taken.append((frame["metadata"]["timestamp"], frame["data"]))
            session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

        session.on("Page.screencastFrame", keep)
        session.send("Page.startScreencast", {"format": "png", "maxWidth": WIDTH, "maxHeight": HEIGHT})
        page.goto(address(), timeout=MOST_MS)
        boxes = until(page, BOXES.replace("CHART", chart).replace("COUNT", str(count)))
        ends = time.monotonic() + MOST_MS / 1000
        while not taken or time.time() - taken[-1][0] < STILL_S:
            if time.monotonic() > ends:
                raise SystemExit(f"{chart}: the page still moves after {MOST_MS / 1000:.0f} s")
            page.wait_for_timeout(200)
        boxes = until(page, BOXES.replace("CHART", chart).replace("COUNT", str(count)))
        began = float(page.evaluate("performance.timeOrigin")) / 1000
        window = page.viewport_size or {"width": 2 * WIDTH}
        session.send("Page.stopScreencast")
    frames = [(at, _pixels(data)) for at, data in taken if at >= began]
    scale = frames[-1][1].shape[1] / window["width"]
    places = [tuple(round(edge * scale) for edge in box) for box in boxes]
    return 1000 * (_from_when(frames, places) - began)


def _pixels(data: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L"), np.int16)


def _from_when(frames: Sequence[Frame], places: Sequence[tuple[int, ...]]) -> float:
    """The first of the frames at the end in all of which the charts look as in the last."""
    last = frames[-1][1]
    if blank := [place for place in places if np.ptp(_cut(last, place)) < STEP]:
        raise SystemExit(f"{len(blank)} of {len(places)} charts are blank at the end")
    since = frames[-1][0]
    for at, pixels in reversed(frames):
        if pixels.shape != last.shape or not all(_alike(_cut(pixels, box), _cut(last, box)) for box in places):
            return since
        since = at
    return since


def _cut(pixels: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
    left, top, right, bottom = place
    return pixels[top:bottom, left:right]


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((np.abs(one - other) > STEP).mean() <= UNLIKE)
