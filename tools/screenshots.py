"""Pictures of every page of the studio over real runs, light and dark, wide and narrow.

    python tools/screenshots.py PLACE [PLACE…] --out DIR          every page
    python tools/screenshots.py PLACE --out docs/studio --docs    wide ones alone, as WebP: those of the docs

A place is a directory of runs, or of results of `etude bench run`. Starts `etude studio` over them, enters with its
address in Debian's Chromium, and opens each page. The pages of agents at work are of a small project that scripted
models work on, as in tests/studio. Needs playwright (in the extra `dev`) and chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/studio")]
from browser import Chromium, Tab  # noqa: E402
from made_run import Studio, studio  # noqa: E402
from playwright.sync_api import expect  # noqa: E402
from test_studio_work import BEFORE, eight, git, working  # noqa: E402

WIDE, NARROW = {"width": 1240, "height": 760}, {"width": 400, "height": 800}
_WORK_MS = 180_000


class Camera:
    """Takes each page in all the ways that were asked for."""

    def __init__(self, out: Path, docs: bool) -> None:
        self.out, self.docs = out, docs
        out.mkdir(parents=True, exist_ok=True)

    def take(self, tab: Tab, name: str) -> None:
        for scheme in ("light", "dark"):
            for size, viewport in (("wide", WIDE),) if self.docs else (("wide", WIDE), ("narrow", NARROW)):
                tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                tab.page.set_viewport_size(viewport)
                tab.page.wait_for_timeout(400)
                if not self.docs:
                    tab.page.screenshot(path=self.out / f"{name}-{scheme}-{size}.png")
                    continue
                with Image.open(io.BytesIO(tab.page.screenshot())) as picture:  # lossless: a palette changed colours
                    picture.convert("RGB").save(
                        self.out / f"{name}-{scheme}.webp", lossless=True, quality=100, method=6
                    )
        tab.page.set_viewport_size(WIDE)


def addresses(served: Studio) -> Iterator[tuple[str, str]]:
    """Every page about runs, by a name for its picture."""
    runs = [served.get(f"/runs/{each['id']}") for each in served.get("/runs")["runs"]]  # with what their archives have
    run = max(runs, key=lambda each: (each["trajectories"] or 0, each["steps"]))
    id = run["id"]
    yield from (("runs", "/runs"), ("live", f"/run/{id}"), ("recipe", f"/run/{id}?tab=recipe"))
    yield from (("versions", f"/run/{id}/versions"), ("plan", f"/run/{id}/plan"))
    if len(runs) > 1:
        yield "compare", "/runs?compare=" + ",".join(each["id"] for each in runs[:3])
    yield "trajectories", f"/run/{id}/trajectories"
    if rows := served.get(f"/runs/{id}/trajectories?solved=true&outcome=scored&step=1&order=-turns&limit=1")["rows"]:
        row = rows[0]  # of the first step, what took longest to solve: it has erred and mended
        yield "step", f"/run/{id}/step/1"
        one = row["id"].replace("/", "~")
        yield from of_one(f"/run/{id}/trajectory/{one}", *erred(served.get(f"/runs/{id}/trajectories/{one}")["turns"]))
        yield "group", f"/run/{id}/group/{row['group_id']}"
    benches: list[Any] = served.get("/bench")["runs"]
    chosen = f"?a={benches[-1]['id']}&b={benches[0]['id']}" if len(benches) > 1 else ""
    yield "bench", f"/bench{chosen}"


def erred(turns: list[dict[str, Any]]) -> tuple[int, int]:
    """The call that failed last, and a token of the next message, which mended it; the first where none failed."""
    calls = [(turn["n"], call) for turn in turns for call in turn["calls"]]
    failed = [(n, call) for n, call in calls if "[exit 1]" in (call["result"] or {"text": ""})["text"]]
    n, call = failed[-1] if failed else calls[0]
    return call["event"], turns[min(n + 1, len(turns) - 1)]["tokens"][1] + 8


def of_one(trajectory: str, event: int, token: int) -> Iterator[tuple[str, str]]:
    yield "trajectory-turns", f"{trajectory}?event={event}"
    for tab in ("files", "verifier", "task"):
        yield f"trajectory-{tab}", f"{trajectory}?tab={tab}"
    for way in ("advantage", "version", "entropy"):
        yield f"tokens-{way}", f"{trajectory}?tab=tokens&by={way}&token={token}"


def at_work(camera: Camera, chromium: Chromium) -> None:
    """A team of three, from its first question to what came of it."""
    root = Path(tempfile.mkdtemp(prefix="etude-", dir="/var/tmp"))  # a sandbox has a /tmp of its own
    project = root / "project"
    project.mkdir()
    (root / "runs").mkdir()
    (project / "text.txt").write_text(BEFORE)
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        git(project, *words)
    try:
        with working(root, eight) as served:
            tab = Tab(chromium.browser.new_context(viewport=WIDE), served)
            tab.go("/work")
            tab.page.get_by_label("The top of a git repository").fill(str(project))
            tasks = [f"This is task {number}. Write your line, and run its check." for number in (1, 2, 3)]
            tab.page.get_by_label("Tasks, one a line").fill("\n".join(tasks))
            tab.page.get_by_role("button", name="Begin 3 agents").click()
            expect(tab.page.locator("article.asked")).to_have_count(3, timeout=_WORK_MS)
            camera.take(tab, "work")
            for _ in tasks:
                tab.page.get_by_role("button", name="Deny").first.click()
            expect(tab.page.get_by_text("finished")).to_have_count(3, timeout=_WORK_MS)
            tab.page.get_by_role("link", name="Review").first.click()
            expect(tab.page.locator(".hunk")).to_have_count(1, timeout=_WORK_MS)
            tab.page.keyboard.press("x")
            camera.take(tab, "review")
            tab.go("/sessions")
            camera.take(tab, "sessions")
            tab.page.get_by_role("link", name="This is task 1.").click()
            tab.see("Done.")
            camera.take(tab, "session")
    finally:
        shutil.rmtree(root)


def main() -> int:
    parser = argparse.ArgumentParser(description="Pictures of every page of the studio")
    parser.add_argument("places", nargs="+", type=Path, help="directories of runs, and of benchmarks' results")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of pages, apart by commas")
    parser.add_argument("--docs", action="store_true", help="wide ones alone, as WebP without loss")
    options = parser.parse_args()
    camera, chromium = Camera(options.out, options.docs), Chromium()
    only = {name for name in options.only.split(",") if name}
    with tempfile.TemporaryDirectory() as home, studio(Path(home), *options.places) as served:
        tab = Tab(chromium.browser.new_context(viewport=WIDE), served)
        for name, address in addresses(served):
            if not only or name in only:
                if name == "plan":  # computed once, and for longer than a page is waited for
                    served.http.get(f"/api/runs/{address.split('/')[2]}/plan", timeout=600)
                tab.go(address)
                camera.take(tab, name)
    if not only or "work" in only:
        at_work(camera, chromium)
    chromium.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
