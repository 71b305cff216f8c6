"""The built pages are those that web/ makes, and its own tests pass."""

import subprocess
import sys

from made_run import ROOT

BUILT = ROOT / "etude/studio"
MAKERS = ("innerHTML", "dangerouslySetInnerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")


def files(place):
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_building_anew_gives_the_same_bytes(web, tmp_path):
    done = subprocess.run(["sh", web / "tools/web.sh", tmp_path / "out"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    made = files(tmp_path / "out")
    kept = {f"{part}/{name}": data for part in ("static", "report") for name, data in files(BUILT / part).items()}
    assert sorted(made) == sorted(kept), "build them with tools/web.sh, and commit what it made"
    assert [name for name in made if made[name] != kept[name]] == []


def test_its_own_tests_pass(web):
    done = subprocess.run(
        ["npx", "vitest", "run"], cwd=web / "web", capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_types_are_what_the_server_answers():
    done = subprocess.run([sys.executable, ROOT / "tools/studio_types.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_page_holds_markup_or_code_made_of_text():
    """The policy would refuse it in a browser; here it is told before."""
    for path in (ROOT / "web/src").rglob("*.ts*"):
        text = path.read_text()
        for word in (
            "innerHTML",
            "dangerouslySetInnerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert word not in text, f"{path}: {word}"
