"""How a run's time is divided."""

import pytest

from etude.config import parse
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig
from etude.rollouts.schedule import training_minutes


def config(control=True, **rollouts):
    return parse({"name": "r", "rollouts": rollouts, "control": {"enabled": control}}, RunConfig, "r")


def test_without_a_total_training_has_its_own_minutes():
    assert training_minutes(config(max_minutes=3.5), 1e6, 1e6) == 3.5


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("evaluation_s", [20.0, 60.0, 90.0])
def test_all_phases_fit_into_the_total(control, evaluation_s):
    minutes = training_minutes(config(control, max_minutes=60.0, total_minutes=14.0), 20 + evaluation_s, evaluation_s)
    phases = 2 if control else 1
    assert 20 + evaluation_s + phases * (60 * minutes + evaluation_s) < 14 * 60
    assert minutes > 2


def test_a_fast_machine_trains_no_longer_than_asked():
    assert training_minutes(config(max_minutes=2.0, total_minutes=14.0), 30, 10) == 2.0


def test_no_time_left_is_said():
    with pytest.raises(ConfigError, match=r"total_minutes.*per_rung"):
        training_minutes(config(total_minutes=3.0), 60, 50)
