"""Says in plain words which sandboxes this machine can run, and what to do for the others.

Owns the round of all backends that make sandboxes here (what each looks at is its plug-in's `probe`), and the look at
the sandbox of the product's workspace, which needs much less of a machine.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from etude.config import load_recipe
from etude.environments.backends import LOCAL, default_config, plugin_of
from etude.environments.local import open_workspace
from etude.environments.plugin import BackendTable, Finding, Plugin
from etude.errors import ConfigError, EtudeError
from etude.extras import install_command
from etude.plugins import find, names

_LOOKED_AT = {
    name: (plugin, preset) for kind, plugin in LOCAL.items() for name, preset in (plugin.variants or {kind: ()}).items()
}


def survey(
    only: str | None = None, image: str | None = None, overrides: Sequence[str] = ()
) -> dict[str, list[Finding]]:
    """What was found of each backend, or of one alone. Those whose findings are all `ok` are offered here.

    `image` is what a container starts on; `overrides` are set in the config. Raises ConfigError for an unknown name.
    """
    if only is not None and only not in _LOOKED_AT:
        if only in names("backends"):
            find("backends", only, Plugin)  # says why it cannot be had
        raise ConfigError(f"--backend {only}: there is none; these can be looked at: {', '.join(_LOOKED_AT)}")
    found = {}
    for name, (plugin, preset) in _LOOKED_AT.items():
        if only in (None, name):
            started_on = (
                (f"image={json.dumps(image)}",) if image is not None and "image" in plugin.config.model_fields else ()
            )
            found[name] = diagnose(load_recipe(None, plugin.config, [*preset, *started_on, *overrides]))
    return found


def diagnose(config: BackendTable | None = None) -> list[Finding]:
    """Look at each part, then start a sandbox. All `ok` means `open_backend(config)` works here. Takes seconds."""
    config = default_config() if config is None else config
    plugin = plugin_of(config)
    try:
        return plugin.run_probe(config)
    except ModuleNotFoundError as error:
        remedy = install_command(plugin.extra)
        return [Finding("packages", False, f"{error.name} is not installed", remedy)]


def diagnose_workspace() -> Finding:
    """Whether `etude agent` can work here: open a directory as it opens the user's, and run a command."""
    subject = "the agent's sandbox"
    try:
        return Finding(subject, True, asyncio.run(_worked_in()))
    except (EtudeError, OSError) as error:
        return Finding(subject, False, "it does not start", str(error))


async def _worked_in() -> str:
    with tempfile.TemporaryDirectory() as directory:
        workspace = await open_workspace(Path(directory))
        try:
            done = await workspace.exec("echo works")
        finally:
            await workspace.destroy()
        return done.output.decode(errors="replace").strip()
