"""The Ray of a run on one machine: started for this run alone, and closed to whoever lacks its token.

Owns how Ray is started here, and the token that it asks for. Ray listens at all of this machine's addresses, and who
may speak to it runs code as its user. So each start makes a token, in a file of the run's directory that only its owner
reads: neither a command line nor a variable has it, which what a process starts could inherit.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import _raylet

from etude.deadlines import scaled
from etude.durable import write_private
from etude.errors import EtudeError
from etude.rollouts.claim import RAY_TOKEN
from etude.rollouts.ray_signals import own_sigterm

_NO_SPARE_WORKERS = ("prestart_worker_first_driver", "enable_worker_prestart")
"""Workers that Ray starts before anybody asks are of no use to actors with an environment of their own."""

_START_S = 150.0
"""For Ray's processes to find each other: Python is started three times for it, and other runs may start as well."""


def start_ray(directory: Path, variables: Mapping[str, str], **options: Any) -> None:
    """On this machine, for this run alone: one of several machines that is here too is not meant. Its processes have
    these variables. Raises EtudeError.
    """
    path = directory.resolve() / RAY_TOKEN
    write_private(path, secrets.token_hex(32).encode())  # in the place of one that a killed run left
    patience = int(scaled(_START_S))
    os.environ |= {"RAY_raylet_start_wait_time_s": f"{patience}", "RAY_agent_register_timeout_ms": f"{patience}000"}
    know_token(path)
    sizes: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 256 * 1024 * 1024} | options
    try:
        with own_sigterm():
            ray.init(
                "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                _system_config=dict.fromkeys(_NO_SPARE_WORKERS, False),
                runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2]), **variables}},
                **sizes,
            )
    except Exception as error:  # Ray says by no type of its own that it is too slow
        stop_ray(directory)  # what did start
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EtudeError(
            f"Ray did not start on this machine ({said}); try again when it is less busy, and see Ray's own logs in "
            "/tmp/ray/session_latest/logs"
        ) from error


def stop_ray(directory: Path) -> None:
    """What `start_ray` has started; its token is of no use then."""
    ray.shutdown()
    (directory / RAY_TOKEN).unlink(missing_ok=True)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)


def know_token(path: Path) -> None:
    """Ray's processes that this one starts, or joins, ask each other for the token in this file."""
    os.environ.pop("RAY_AUTH_TOKEN", None)  # Ray would take it in place of the file's
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    raylet: Any = _raylet
    raylet.Config.initialize("")  # Ray has read the mode when it was imported
    raylet.AuthenticationTokenLoader.instance().reset_cache()  # and the token when it last spoke to another Ray
