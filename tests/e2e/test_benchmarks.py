"""Each benchmark runs, at small size, and ends with its JSON line. Their peers are not installed here."""

import json
import subprocess
import sys

import pytest
from small import ROOT, variables

pytestmark = pytest.mark.timeout(300)


def last_line(script, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_etudes_half_of_the_trl_comparison_trains():
    figures = last_line("quickstart_vs_trl.py", "--only", "etude", "--minutes", "0.75")
    assert figures["etude_samples_per_s"] > 0
    assert figures["etude_informative_per_s"] > 0
    assert figures["ratio"] is None


def test_the_codec_is_smaller_than_xor_and_zstd():
    figures = last_line("weights_codec.py", "--elements", "1048576", "--repeats", "1")
    for update in ("rl", "muon"):
        assert figures[update]["etude"]["ratio"] > figures[update]["xor_zstd3"]["ratio"] > 1


def test_the_base_plays_every_rung():
    model = str(ROOT / "models" / "etude-tiny")
    figures = last_line("rungs.py", model, "--per-rung", "6")
    assert len(figures[model]["rates"]) == 5
    assert 0 < sum(figures[model]["rates"]) < 5
