"""The report of a run, as a reader gets it."""

import json
from dataclasses import replace
from html.parser import HTMLParser

from etude.bench.page import write_page
from etude.bench.results import session_path
from etude.bench.summary import compare, summarise
from etude.cli.main import main
from etude.harness.events import read_events, write_events


class Seen(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.said = set(), set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        found = dict(attrs)
        self.ids |= {found["id"]} if "id" in found else set()
        self.links += [found[key] for key in ("href", "src") if key in found]

    def handle_data(self, data):
        self.said.append(data)


def test_every_attempt_leads_to_its_session_and_nothing_is_fetched_or_run(bench):
    run = bench(tasks={"ladder": 2}, attempts=2)
    path = session_path(run.directory, run.attempts[0].task, 0)
    events = [replace(event, data={**event.data, "text": "<script>alert(1)</script><img src=x>"})
              if event.kind == "tool_result" else event for event in read_events(path)]  # fmt: skip
    path.unlink()
    write_events(path, [*events, *(replace(event, data={}) for event in events)])  # a stranger's may say nothing
    summary = summarise(run)
    seen = Seen(write_page(run, summary, compare(run, run)).read_text())
    assert not seen.tags & {"script", "img", "link", "iframe"}
    assert len(seen.links) == run.planned and all(link[0] == "#" and link[1:] in seen.ids for link in seen.links)
    said = "".join(seen.said)
    assert f"{summary['pass']['1']['rate']:.1%}" in said and "No difference" in said
    assert "<script>alert(1)</script>" in said, "it is shown as text"


def test_the_command_reports_what_was_played(bench, capsys):
    run = bench(tasks={"ladder": 1})
    assert main(["bench", "report", str(run.directory), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["judged"] == 8 and told["pass"] == summarise(run)["pass"]
    assert (run.directory / "report.html").stat().st_size > 2000
