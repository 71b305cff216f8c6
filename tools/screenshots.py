"""Pictures of every page of the studio over real runs, light and dark, wide and narrow.

    python tools/screenshots.py RUN [RUN…] --out DIR      every picture
    python tools/screenshots.py RUN --out docs/studio --docs    those that the pages of docs show

Starts `etude studio` over the runs, enters with its printed address in Debian's Chromium, and opens each page. It needs
playwright (`pip install playwright`) and chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
WIDE, NARROW = {"width": 1360, "height": 860}, {"width": 400, "height": 800}
_DEADLINE_MS = 30_000


@contextlib.contextmanager
def studio(*places: Path) -> Iterator[str]:
    """A server over these runs; gives the address that lets one tab in."""
    command = [sys.executable, "-m", "etude.cli.main", "studio", *map(str, places), "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["open"]
        finally:
            process.terminate()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser, without a window."""
    found = shutil.which("chromium")
    if found is None:
        sys.exit("no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def asked(page: Page, path: str) -> Any:
    """What the server answers to the page's own token."""
    script = """async path => {
        const headers = {authorization: 'Bearer ' + sessionStorage['etude-token']};
        const answer = await fetch('/api/' + path, {headers});
        return answer.ok ? await answer.json() : null;
    }"""
    return page.evaluate(script, path)


def addresses(page: Page) -> dict[str, str]:
    """Every page by a name for its picture, over the runs there are."""
    runs = asked(page, "runs")["runs"]
    run = next((each for each in runs if each["trajectories"]), runs[0])
    id, steps = run["id"], max(1, run["steps"])
    found = {
        "runs": "/runs", "live": f"/run/{id}", "recipe": f"/run/{id}?tab=recipe", "versions": f"/run/{id}/versions",
        "plan": f"/run/{id}/plan", "bench": "/bench", "lost": "/nowhere",
        "step": f"/run/{id}/step/{steps}", "trajectories": f"/run/{id}/trajectories",
    }  # fmt: skip
    if len(runs) > 1:
        found["compare"] = "/runs?compare=" + ",".join(each["id"] for each in runs[:3])
    kept = asked(page, f"runs/{id}/trajectories?limit=200")
    if kept and kept["rows"]:
        rows = kept["rows"]
        row = next((each for each in rows if each["step"] is not None and each["solved"]), rows[0])
        one = f"/run/{id}/trajectory/{row['id'].replace('/', '~')}"
        found |= {f"trajectory-{tab}": f"{one}?tab={tab}" for tab in ("turns", "tokens", "files", "verifier", "task")}
        found["tokens-advantage"], found["tokens-version"] = (
            f"{one}?tab=tokens&by=advantage&token=130",
            f"{one}?tab=tokens&by=version&token=130",
        )
        found["tokens-entropy"] = f"{one}?tab=tokens&by=entropy&token=300"
        found["group"] = f"/run/{id}/group/{row['group_id']}"
    benches = (asked(page, "bench") or {}).get("runs", [])
    if len(benches) > 1:
        found["bench"] = f"/bench?a={benches[-1]['id']}&b={benches[0]['id']}"
    return found


def settled(page: Page) -> None:
    """Wait until nothing is loading any more."""
    expect(page.locator(".wait")).to_have_count(0, timeout=_DEADLINE_MS)  # the policy allows no script of a test's
    page.wait_for_timeout(400)


def taken(page: Page, base: str, names: dict[str, str], out: Path, suffix: str) -> None:
    """One picture of each address."""
    for name, address in names.items():
        page.goto(f"{base}/#{address}")
        settled(page)
        page.screenshot(path=out / f"{name}-{suffix}.png")


def main() -> int:
    parser = argparse.ArgumentParser(description="Pictures of every page of the studio")
    parser.add_argument("places", nargs="+", type=Path, help="directories of runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="names of pages, apart by commas")
    parser.add_argument("--docs", action="store_true", help="light, wide ones alone, named without a suffix")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with studio(*options.places) as address, chromium() as browser:
        base = address.partition("/#")[0]
        context = browser.new_context(viewport=WIDE, color_scheme="light")
        page = context.new_page()
        page.on("console", lambda said: said.type == "error" and print("console:", said.text, file=sys.stderr))
        page.goto(address)
        page.wait_for_selector("h1", timeout=_DEADLINE_MS)
        names = addresses(page)
        if options.only:
            names = {name: names[name] for name in options.only.split(",") if name in names}
        for scheme in ("light",) if options.docs else ("light", "dark"):
            for size, viewport in (("wide", WIDE),) if options.docs else (("wide", WIDE), ("narrow", NARROW)):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size(viewport)
                taken(page, base, names, options.out, f"{scheme}-{size}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
