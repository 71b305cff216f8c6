"""Starts `etude acp` as Harbor wants an agent: in a task's container, with all it must know in the environment.

Owns the way from Harbor's variables to Etude's options. The container is the sandbox, so commands run in it as they
are; permissions are Harbor's to grant. Harbor runs this by `harbor-agent.json`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

URLS = ("ETUDE_ENDPOINT_URL", "HOSTED_INFERENCE_URL", "OPENAI_BASE_URL")
KEYS = ("ETUDE_ENDPOINT_KEY", "HOSTED_INFERENCE_TOKEN", "OPENAI_API_KEY")
MODEL = "HARBOR_ACP_REQUESTED_MODEL"
"""What `harbor run -m` said: `provider/name`, or the name alone."""


def arguments(env: Mapping[str, str]) -> list[str]:
    """Of the `etude` command. Raises ValueError, for a person to read, where the environment lacks something."""
    url = next((env[name] for name in URLS if env.get(name)), None)
    if url is None:
        raise ValueError(f"no endpoint: set one of {', '.join(URLS)} in the agent's env; it usually ends in /v1")
    if not (model := env.get(MODEL)):
        raise ValueError("no model: name one with `harbor run -m NAME`")
    key = next((name for name in KEYS if env.get(name)), "")
    chosen = {
        "endpoint.url": url,
        "endpoint.model": model.removeprefix("openai/"),
        "endpoint.key_env": key,
        "workspace.sandbox": "off",
        "workspace.network": "full",
    }
    return ["acp", *(part for name, value in chosen.items() for part in ("--set", f"{name}={json.dumps(value)}"))]


def main() -> int:
    """Entry point: speaks ACP on stdin and stdout until Harbor hangs up."""
    try:
        found = arguments(os.environ)
    except ValueError as error:
        print(f"etude-harbor: {error}", file=sys.stderr)
        return 42
    from etude.cli.main import main as etude

    return etude([*found, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
