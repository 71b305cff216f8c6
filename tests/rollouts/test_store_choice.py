"""Where a run's versions are: in its own directory, or under a URL with its name."""

from etude.rollouts.config import RunConfig


def test_a_run_has_a_store_of_its_own(tmp_path):
    run = tmp_path / "quickstart-0"
    assert RunConfig(name="quickstart").store_of(run) == f"file://{run}/weights"
    by_url = RunConfig(name="quickstart", store="s3://bucket/runs/")
    assert by_url.store_of(run) == "s3://bucket/runs/quickstart-0/weights"
    assert by_url.store_of(tmp_path / "quickstart-1") != by_url.store_of(run)
