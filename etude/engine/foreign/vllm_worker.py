"""Runs inside vLLM's worker process: serves a checkpoint by building the model anew.

Owns `Rebuild`, given to the server as --worker-extension-cls. For CPU servers, whose own reload (0.32) answers 200 and
leaves weights that are neither the old nor the new ones. Here the module is built and loaded as at the start, and the
layers' caches are handed on. Needs --enforce-eager, for a compiled graph would keep the module before. Imports nothing
of ours: only `etude` must be on the server's path.
"""

from __future__ import annotations

from typing import Any


class Rebuild:
    """Mixed into the worker's class by vLLM; `rebuild_from` is called over /collective_rpc."""

    model_runner: Any

    def rebuild_from(self, path: str) -> None:
        """Serve the checkpoint at `path`; on an error the model before stays."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model

        runner = self.model_runner
        config = runner.vllm_config
        layers, experts = config.compilation_config.static_forward_context, _experts(config)
        before, experts_before = dict(layers), list(experts)
        served = config.model_config.model
        layers.clear()  # a layer of the same name would be refused
        experts.clear()
        config.model_config.model = path
        try:
            with set_current_vllm_config(config):
                model = get_model(vllm_config=config)
        except BaseException:
            config.model_config.model = served
            layers.clear()
            layers.update(before)
            experts[:] = experts_before
            raise
        for name, layer in before.items():
            _hand_on(layer, layers[name])
        runner.model = model


def _hand_on(layer: Any, fresh: Any) -> None:
    """A layer's cache, and what else the server has set on it since it was built."""
    if hasattr(layer, "kv_cache"):
        fresh.kv_cache = layer.kv_cache
    for name, value in vars(layer).items():
        if name not in vars(fresh):
            setattr(fresh, name, value)


def _experts(config: Any) -> list[str]:
    return config.compilation_config.static_all_moe_layers
