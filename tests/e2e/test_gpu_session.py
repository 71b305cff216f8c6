"""The session of all GPU questions, without a GPU: its parts small, one killed, one past its deadline; and its page."""

import contextlib
import json
import subprocess
import sys
import time

import psutil
import pytest
from small import ROOT, variables

sys.path.append(str(ROOT / "benchmarks/gpu"))
import parts
import session
from page import page_of

from etude.rollouts.plan.machines import KNOWN

pytestmark = pytest.mark.timeout(400)
NAMES = [part.name for part in parts.PARTS]


def started(out, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks/gpu/session.py"), "--out", str(out), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process, within_s=380):
    try:
        said, _ = process.communicate(timeout=within_s)
    finally:
        process.kill()
    return process.returncode, said


def part_of(process, name, within_s=120.0):
    """The process of a part, as soon as it is there."""
    end = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < end:
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                if any(name in word for word in child.cmdline()):
                    return child
        time.sleep(0.05)
    raise AssertionError(f"no process of {name} within {within_s:.0f} s: {ended(process)}")


def test_a_part_that_is_killed_is_written_down_and_the_next_is_played(tmp_path):
    process = started(tmp_path / "out", "--parts", "low_precision", "deltas", "prime_rl")
    part_of(process, "low_precision.py").kill()
    status, said = ended(process)
    assert status == 1, said
    found = json.loads(said.splitlines()[-1])
    assert found == json.loads((tmp_path / "out/session.json").read_text())
    killed, played, left_out = (found["parts"][name] for name in ("low_precision", "deltas", "prime_rl"))
    assert (killed["outcome"], killed["reason"], killed["figures"]) == ("failed", "was ended by SIGKILL", {})
    assert played["outcome"] == "played small" and 0 < played["figures"]["changed"] < 1
    assert "interpreter" in played["figures"]["device"]
    assert left_out["outcome"] == "left out" and "no package index" in left_out["reason"]
    assert found["machine"]["device"] is None and found["small"]
    would = said.partition("Here the parts are played small")[0]
    assert "torch sees no CUDA device" in would and "deltas: python benchmarks/gpu/deltas.py\n" in would
    page = (tmp_path / "out/results.md").read_text()
    assert "**Nothing here is a measurement.**" in page and "failed: was ended by SIGKILL" in page
    assert f"| changed | {played['figures']['changed']:.4g} |" in page
    assert "| at least 0.4 |" in page and "met" not in page and "missed" not in page


def test_a_part_past_its_deadline_is_ended_and_so_is_a_session_that_is_asked_to(tmp_path):
    status, said = ended(started(tmp_path / "late", "--parts", "low_precision", "--minutes", "0.01"))
    told = json.loads(said.splitlines()[-1])["parts"]["low_precision"]
    assert status == 1 and told["reason"] == "ran past its deadline of 1 s, and was ended"
    process = started(tmp_path / "stopped", "--parts", "deltas", "plan")
    part = part_of(process, "--dry-run")
    process.terminate()
    status, said = ended(process)
    assert status == 1 and "stopped; what was found so far is in" in said and not part.is_running()
    assert [*json.loads((tmp_path / "stopped/session.json").read_text())["parts"]] == ["deltas"]


@pytest.mark.parametrize(("arguments", "said"), [
    (("--model", "nowhere"), "--model nowhere: no checkpoint there; name a directory with a config.json"),
    (("--minutes", "0"), "--minutes: more than 0"),
    ((), "an earlier session is there; name a new directory"),
])  # fmt: skip
def test_what_it_cannot_do_is_refused(tmp_path, monkeypatch, capsys, arguments, said):
    (tmp_path / "session.json").write_text("{}")
    where = () if arguments else ("--out", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["session.py", *where, *arguments])
    with pytest.raises(SystemExit):
        session.parsed()
    assert said in capsys.readouterr().err


def test_time_is_shared_by_parts_and_what_one_leaves_is_for_the_next():
    ends = time.monotonic() + 1800
    shares = {part.name: seconds for part, seconds in session.shared_out(parts.PARTS, ends, small=True)}
    assert shares["trl"] == shares["prime_rl"] == 0.0, "left out"
    of = {part.name: part.share for part in parts.PARTS}
    total = sum(of.values()) - of["trl"]
    assert shares["parity"] == pytest.approx(1800 * of["parity"] / total, abs=1)
    assert shares["recipe"] == pytest.approx(1800, abs=1), "nobody before it has taken anything"
    assert sum(of.values()) == 30


def test_the_page_of_a_gpu_says_which_aims_are_met_and_puts_the_recipe_beside_trl():
    def measured(**figures):
        return {"asks": "?", "outcome": "measured", "seconds": 1.0, "figures": figures}

    sides = {"steps": 3, "minutes": 9.0, "samples_per_s": 1.0, "scored_per_s": 1.0, "solve_rate": 0.5}
    found = {
        "machine": {"device": "NVIDIA H100", "torch": "2.13", "triton": None, "transformers": None, "trl": "1.16.0"},
        "small": False, "model": parts.TINY, "commit": "abc", "started": "today",
        "parts": {
            "deltas": measured(find_share=0.45, device="NVIDIA H100"),
            "low_precision": measured(mxfp8_rows_share=0.5, copy_gb_s=3000.0),
            "recipe": measured(tokens_per_s=300.0, **sides), "trl": measured(tokens_per_s=200.0, **sides),
            "moe_decode": {"asks": "?", "outcome": "failed", "reason": "a | b", "seconds": 2.0, "figures": {}},
        },
    }  # fmt: skip
    page = page_of(found, parts.PARTS)
    assert "NVIDIA H100, torch 2.13, trl 1.16.0." in page and "Nothing here is a measurement" not in page
    assert "| find_share | 0.45 | at least 0.4: met |" in page
    assert "| mxfp8_rows_share | 0.5 | at least 0.9: missed |" in page
    assert "| tokens_per_s | 300 | 200 | 1.50 |" in page and "| solve_rate | 0.5 | 0.5 |  |" in page
    assert "failed: a \\| b" in page and "1.5 million parameters" in page
    assert "1.5 million" not in page_of({**found, "model": "/my/model"}, parts.PARTS)


def test_what_is_asked_of_a_gpu_is_understood_and_refused_without_one(tmp_path):
    """Options are read before a device is looked for."""
    given = parts.Given(tmp_path, parts.TINY, 10.0, False, "NVIDIA H200")
    assert set(parts.ACCELERATORS) == set(KNOWN)
    assert given.accelerator == "h200" and given._replace(device="NVIDIA L4").accelerator == "h100"
    environment = {name: value for name, value in variables(CUDA_VISIBLE_DEVICES="").items() if "TRITON" not in name}
    commands = [part.command(given) for part in parts.PARTS if part.left_out(False) is None]
    ours = [command for command in commands if command[1].startswith("benchmarks/gpu/")]
    assert len(ours) == 5
    for command in ours:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (1, "") and "needs a CUDA device" in done.stderr, done.stderr


@pytest.mark.proof(65)
@pytest.mark.timeout(1200)
def test_all_parts_are_played_small(tmp_path):
    status, _ = ended(started(tmp_path / "out", "--minutes", "120"), 1100)
    told = json.loads((tmp_path / "out/session.json").read_text())["parts"]
    assert status == 0, {name: each.get("reason") for name, each in told.items()}
    assert [*told] == NAMES
    assert {name for name, each in told.items() if each["outcome"] == "left out"} == {"trl", "prime_rl"}
    figures = {name: each.get("figures") for name, each in told.items()}
    assert figures["parity"]["max_abs_dlogp_triton"] == 0 < figures["parity"]["max_abs_dlogp_torch"] < 1e-4
    assert 0 < figures["parity"]["grad_error_triton"] < 1e-4 and figures["parity"]["same_bits_triton_deterministic"]
    assert figures["batch_invariance"]["ours_rows_that_differ"] == 0
    assert figures["plan"]["fits"] and figures["plan"]["tokens_per_s"] > 0
    assert figures["recipe"]["steps"] == 2 and figures["recipe"]["tokens_per_s"] > 0
    assert figures["recipe"]["max_abs_dlogp"] < 1e-3
