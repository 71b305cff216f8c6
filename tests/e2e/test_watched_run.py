"""A real run, watched in a real browser while it goes on, until it is killed."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from killing import Victim
from small import ROOT, left

sys.path.append(str(ROOT / "tests/studio"))
from browser import Chromium, Tab
from made_run import studio
from playwright.sync_api import expect

from etude.archive.reader import ArchiveReader
from etude.environments.store import default_state_dir, sweep

pytestmark = pytest.mark.timeout(1800)
LONG_MS = 600_000
"""Until a run on a busy machine has made its first step."""


def pages_of(served, run):
    """Every page about a run, and what it shows of this one."""
    at = f"/run/{served.id(run)}"
    row = served.get(f"/runs/{served.id(run)}/trajectories?trained=true&outcome=scored&limit=1")["rows"][0]
    one = f"{at}/trajectory/{row['id'].replace('/', '~')}"
    return {
        at: "Trainer–sampler difference",
        f"{at}?tab=recipe": "trainer.optimizer.lr",
        f"{at}?tab=counters": "Counters",
        f"{at}/step/{row['step']}": "Rollouts by worker",
        one: "check.py",
        f"{one}?tab=tokens&token=3": "trainer less sampler",
        f"{one}?tab=files": "",
        f"{one}?tab=verifier": "What the verifier printed",
        f"{one}?tab=task": row["task_id"],
        f"{at}/group/{row['group_id']}": row["id"],
        f"{at}/versions": "Bytes published",
        f"{at}/plan": "Plan",
    }


@pytest.mark.proof(60)
def test_a_run_is_watched_from_its_first_rollout_until_it_is_killed(tmp_path):
    runs: Path = tmp_path / "runs"
    runs.mkdir()
    chromium = Chromium()
    recipe = ("rollouts.max_steps=1000", "rollouts.max_minutes=60")
    with studio(tmp_path / "home", runs) as served, Victim(runs / "one", *recipe) as run:
        tab = Tab(chromium.browser.new_context(), served)
        tab.go("/runs")
        tab.page.get_by_role("link", name="one").click(timeout=LONG_MS)
        tab.is_at("one")
        expect(tab.page.get_by_role("heading", name="under way")).to_be_visible(timeout=LONG_MS)
        expect(tab.page.get_by_role("log")).to_contain_text("python3 check.py", timeout=LONG_MS)  # the one it watches
        expect(tab.page.get_by_role("img", name="Reward.")).to_be_visible(timeout=LONG_MS)  # the first step
        tab.page.get_by_role("link", name="Trajectories", exact=True).first.click()
        newer = tab.page.get_by_role("button", name="new or changed")
        newer.click(timeout=LONG_MS)
        expect(tab.page.locator("tbody tr")).not_to_have_count(0)
        run.kill_all()
        tab.page.get_by_role("link", name="Live").click()
        expect(tab.page.get_by_text("stopped", exact=True)).to_be_visible(timeout=LONG_MS)
        index = runs / "one/archive/index.sqlite"
        os.truncate(index, index.stat().st_size // 2)
        tab.page.get_by_role("link", name="Trajectories", exact=True).first.click()
        expect(tab.page.locator("tbody tr")).not_to_have_count(0, timeout=LONG_MS)
        kept = tmp_path / "copy"
        shutil.copytree(runs / "one/archive/chunks", kept / "archive/chunks")
        with ArchiveReader(kept) as reader:
            assert served.get(f"/runs/{served.id('one')}/trajectories/count")["count"] == reader.count() > 0
        for address, text in pages_of(served, "one").items():
            tab.go(address)
            tab.see(text)
            assert tab.page.locator(".fault").count() == 0, address
        assert [fault for fault in tab.faults if "400" not in fault] == []  # a plan, of too few samples
    chromium.close()
    sweep(default_state_dir())  # as the next run that starts here does
    assert left() == []
