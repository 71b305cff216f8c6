"""What a person waits for: the first paint, the curves beside TensorBoard's, a filter, a long trajectory."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

from browser import Chromium, Tab, entrance
from made_run import ROOT, Studio, make_run, studio
from playwright.sync_api import Browser, Page
from playwright.sync_api import Request as PageRequest
from studying import film, made, peer, watch

from etude.archive.reader import ArchiveReader

STATIC = ROOT / "etude/studio/static"
FILTERS = {
    "outcome": "outcome=cheated", "tool and reward": "tool=grep&reward=0.9..", "step": "step=100..110",
    "task": "task=t7", "a word in most": "text=parser", "a word in few": "text=zephyr",
    "two words": "text=parser digest", "best first": "solved=true&order=-reward",
    "worst first": "solved=true&order=reward", "left out": "dropped=stale&order=-seconds",
    "longest of a tool": "tool=list_dir&order=-turns", "a version": "version=700", "an early version": "version=3",
    "a finding": "finding=check reads", "a group": "group=g77", "of a task, longest first": "task=t7&order=-seconds",
    "nothing": "outcome=truncated&reward=0.5..",
    "nothing, longest first": "outcome=truncated&solved=true&order=-seconds",
    "a word in most, best first": "text=parser&order=-reward", "a word in few, best first": "text=zephyr&order=-reward",
    "best that was left out": "trained=false&outcome=scored&order=-reward",
    "words, tool and outcome": "text=parser digest&tool=grep&outcome=cheated&order=-sampled_tokens",
}  # fmt: skip
"""Of a figure, of words, of both; much, little and nothing that fits; in the order they are kept in, and in others."""
ROWS = """
const before = document.querySelector('tbody, .empty');
const ready = () => {
  const now = document.querySelector('tbody, .empty');
  return now && now !== before && (now.matches('.empty') || now.querySelector('tr')); // of few, some filters find none
};
"""
TOKENS = "const ready = () => document.querySelector(\"[data-at='AT']\");"
TURNS = "const ready = () => document.querySelectorAll('.turn').length >= 100;"
RUNS = "const ready = () => document.querySelector('tbody tr');"


def sizes(browser: Browser, served: Studio) -> dict[str, float]:
    """kB of script as the server sends it, gzipped: what the first page loads, and all there is."""
    loaded: list[PageRequest] = []
    with watch.fresh(browser) as context:
        page = context.new_page()
        page.on("requestfinished", lambda each: loaded.append(each))
        page.goto(entrance(served))
        page.locator("tbody tr").first.wait_for(timeout=watch.MOST_MS)
        page.wait_for_timeout(1000)  # what it loads once it is there
        first = [each.sizes()["responseBodySize"] for each in loaded if each.url.endswith(".js")]
    every = [served.http.get(f"/{path.relative_to(STATIC)}") for path in STATIC.rglob("*.js")]
    sent = [int(each.headers["content-length"]) for each in every]
    return {"first_js_kb_gz": round(sum(first) / 1000, 1), "all_js_kb_gz": round(sum(sent) / 1000, 1)}


def first_paint(browser: Browser, served: Studio, rounds: int) -> dict[str, Any]:
    painted = watch.painted_ms(browser, lambda: entrance(served), rounds)
    shown = watch.opened_ms(browser, lambda: entrance(served), RUNS, rounds)
    return {
        "first_paint_ms": watch.middle(painted), "first_paint_all_ms": [round(each) for each in painted],
        "runs_shown_ms": watch.middle(shown),
    }  # fmt: skip


def curves(browser: Browser, place: Path, rounds: int, programs: Path | None) -> dict[str, Any]:
    """Both servers have read their files; each is opened anew, by turns, in a tab that has nothing cached."""
    steps, charts = 10_000, len(made.FIGURES)
    made.run_with_curves(place / "runs/long", steps)
    programs = programs or peer.installed(place)
    logs = peer.write_events(programs, place, steps)
    ours, theirs = list[float](), list[float]()
    with studio(place / "home", place / "runs") as served, peer.tensorboard(programs, logs, charts) as url:
        address = f"/run/{served.id('long')}"
        served.get(f"/runs/{served.id('long')}/curves?names=reward")
        for turn in range(rounds + 1):  # the first warms both up
            here = film.drawn_ms(browser, lambda: f"{entrance(served)}&to={address}", ".uplot", charts)
            there = film.drawn_ms(browser, lambda: f"{url}/#timeseries", "line-chart", charts)
            if turn:
                ours, theirs = [*ours, here], [*theirs, there]
    mine, other = watch.middle(ours), watch.middle(theirs)
    return {
        "curves_ms": mine, "curves_tensorboard_ms": other, "curves_sooner": other / mine,
        "curves_all_ms": [round(each) for each in ours], "curves_tensorboard_all_ms": [round(each) for each in theirs],
    }  # fmt: skip


def filters(chromium: Chromium, place: Path, count: int, rounds: int) -> dict[str, Any]:
    """Every filter `rounds` times: until its first rows are in the page, and what the server took of that."""
    began = time.monotonic()
    made.run_with_trajectories(place / "runs/many", count)
    written = time.monotonic()
    with ArchiveReader(place / "runs/many") as reader:  # fills the index; a server that finds none does so first
        assert reader.count() >= count
    indexed = time.monotonic()
    with studio(place / "home", place / "runs") as served:
        run = served.id("many")
        with watch.fresh(chromium.browser) as context:
            page = Tab(context, served).page
            page.set_viewport_size({"width": 1360, "height": 860})
            took = {name: filtered_ms(page, run, words, rounds) for name, words in FILTERS.items()}
        at = f"/runs/{run}/trajectories"
        answered = {name: answered_ms(served, [f"{at}?{words}&limit=200"], rounds) for name, words in FILTERS.items()}
        counted = {
            name: answered_ms(served, [f"{at}/count?{of}", f"{at}/histogram?{of}"], rounds)
            for name, words in FILTERS.items()
            for of in (words.partition("&order=")[0],)
        }
    shown = {name: watch.middle(each) for name, each in took.items()}
    return {
        "filter_ms": max(shown.values()), "filter_most_ms": round(max(map(max, took.values())), 1),
        "filter_shown_ms": shown, "filter_answered_ms": answered, "filter_counted_ms": counted,
        "trajectories": count, "archived_s": round(written - began, 1), "indexed_s": round(indexed - written, 1),
    }  # fmt: skip


def filtered_ms(page: Page, run: str, words: str, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        watch.gone_ms(page, f"/run/{run}/trajectories", ROWS)
        page.wait_for_timeout(300)  # what the page asks for beside the rows is answered
        found.append(watch.gone_ms(page, f"/run/{run}/trajectories?{words}", ROWS))
        page.wait_for_timeout(300)
    return found


def answered_ms(served: Studio, paths: list[str], rounds: int) -> float:
    """One after the other."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for path in paths:
            served.get(path)
        found.append(1000 * (time.perf_counter() - began))
    return watch.middle(found)


def long_trajectory(chromium: Chromium, place: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """Of so many tokens: until those at the beginning are in the page, those in the middle, and its turns."""
    run = make_run(place / "runs/long-trajectory", 1, "long-trajectory", summary=True)
    shutil.copytree(ROOT / "models/etude-tiny", run / "model", ignore=lambda _, names: _weights(names))
    id = made.keep_long(run, tokens).replace("/", "~")
    kinds = {"tokens": ("tab=tokens", TOKENS.replace("AT", "0")), "turns": ("", TURNS)}
    kinds["middle"] = (f"tab=tokens&token={tokens // 2}", TOKENS.replace("AT", str(tokens // 2)))
    found: dict[str, list[float]] = {name: [] for name in kinds}
    with studio(place / "home", place / "runs") as served, watch.fresh(chromium.browser) as context:
        at = f"/run/{served.id(run.name)}"
        page = Tab(context, served).page
        page.set_viewport_size({"width": 1360, "height": 860})
        for _ in range(rounds + 1):
            for name, (more, ready) in kinds.items():
                watch.gone_ms(page, f"{at}/trajectories", ROWS)
                page.wait_for_timeout(200)
                took = watch.gone_ms(page, f"{at}/trajectory/{id}?{more}", ready)
                found[name].append(took)
    first = round(found["tokens"][0], 1)  # with the page's own code, and the tokenizer
    found = {name: each[1:] for name, each in found.items()}
    return {
        "open_trajectory_first_ms": first,
        "open_trajectory_ms": watch.middle(found["tokens"]), "open_trajectory_turns_ms": watch.middle(found["turns"]),
        "open_trajectory_middle_ms": watch.middle(found["middle"]), "trajectory_tokens": tokens,
    }  # fmt: skip


def _weights(names: list[str]) -> list[str]:
    """A tokenizer is all that is shown with."""
    return [name for name in names if re.search(r"\.(safetensors|bin)$", name)]
