"""A run as one file: opened from disk by a real browser that has no network."""

import subprocess
import sys

import pytest
from browser import DEADLINE_MS
from made_run import ROOT
from playwright.sync_api import expect


def test_a_report_shows_its_run_from_disk_alone(chromium, places, tmp_path):
    out = tmp_path / "report.html"
    line = [sys.executable, "-m", "etude.cli.main", "studio", places / "first", "--export", out, "--json"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "<script>window.hit" not in out.read_text(), "what a run says is in no markup"
    with chromium.new_context(offline=True) as context:
        page, asked, faults = context.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: said.type == "error" and faults.append(said.text))
        page.goto(f"file://{out}")
        expect(page.get_by_role("heading", level=1)).to_have_text("first", timeout=DEADLINE_MS)
        page.keyboard.press("Control+k")
        expect(page.get_by_role("dialog")).to_contain_text("Versions of this run", timeout=DEADLINE_MS)
        for elsewhere in ("Bench", "Sessions", "Plan"):
            expect(page.get_by_role("dialog")).not_to_contain_text(elsewhere)
        page.keyboard.press("Escape")
        exam = page.get_by_role("region", name="Held-out tasks")
        expect(exam).to_contain_text("held-out ladder 0%, against 50% after reinforcement learning")
        expect(exam.get_by_role("row", name="ladder").first).to_contain_text("100.0%")
        expect(page.get_by_role("img", name="Reward.")).to_be_visible(timeout=DEADLINE_MS)
        beside = page.get_by_role("region", name="Side by side")
        expect(beside).to_contain_text("2 were solved only after reinforcement learning, and 0 only by the control")
        expect(beside.get_by_role("row").nth(1)).to_contain_text("read_file")
        page.get_by_role("region", name="Sessions to read").get_by_role("link", name="after/eval-1/0").click()
        expect(page.locator("main")).to_contain_text("python3 check.py", timeout=DEADLINE_MS)
        page.get_by_role("link", name="Step", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Step 12", timeout=DEADLINE_MS)
        page.keyboard.press("/")
        page.keyboard.type("1")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Trajectories of this step").click(timeout=DEADLINE_MS)
        expect(page.locator("tbody tr.pick")).to_have_count(2, timeout=DEADLINE_MS)
        page.get_by_role("button", name="step:1").click()
        page.get_by_role("link", name="h1/0").click(timeout=DEADLINE_MS)
        expect(page.locator("main")).to_contain_text("<img src=x onerror=window.hit=1>", timeout=DEADLINE_MS)
        page.get_by_role("tab", name="Tokens").click()
        expect(page.locator("[data-at='9']")).to_be_visible(timeout=DEADLINE_MS)
        page.get_by_role("tab", name="Files").click()
        expect(page.locator(".dl.minus").first).to_contain_text("old", timeout=DEADLINE_MS)
        assert page.evaluate("window.hit") is None
        assert [url for url in asked if not url.startswith("file://")] == [] and faults == []


@pytest.mark.parametrize(
    ("run", "out", "said"),
    [
        (".", "report.html", "a report is of one run"),
        ("nowhere", "report.html", "nowhere: no such directory"),
        ("first", "nowhere/report.html", "name a file, in a directory that is there"),
        ("first", ".", "name a file, in a directory that is there"),
    ],
)
def test_a_report_that_cannot_be_is_refused(places, tmp_path, run, out, said):
    line = [sys.executable, "-m", "etude.cli.main", "studio", places / run, "--export", tmp_path / out]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert said in done.stderr and "Traceback" not in done.stderr and not list(tmp_path.parent.glob("*.partial"))
