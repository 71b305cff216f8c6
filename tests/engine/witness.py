"""Which weights computed what each token was sampled from, and the same computed again plainly.

After a swap in flight a context holds keys and values of several versions, and after a preemption those of another one
than before. The witness sits beside a real engine and notes, position by position, which version computed it, so that
every token can be checked, not only those of undisturbed requests.
"""

from collections import defaultdict
from itertools import groupby

import numpy as np
import torch

from etude.engine import torch_engine
from etude.kernels.packed_attention import Pages
from etude.kernels.paged_attention import paged_attention


class Witness:
    """Of one engine; start it before the first request. Requests are told apart by their seeds."""

    def __init__(self, monkeypatch, engine):
        self.contexts = defaultdict(list)
        """Seed → for each token sampled, the versions that computed the positions before it."""
        computed_by = np.zeros(engine.cache.routes.shape[:2], np.int64)
        append = engine._append

        class Noting(torch_engine.PagedAttention):
            def __init__(self, *given):
                super().__init__(*given)
                computed_by[self.page_of, self.offset_of] = int(engine.version)

        def noting(running, *told):
            sequence = running.sequence
            self.contexts[running.seed].append(computed_by[sequence.pages].ravel()[: sequence.computed].copy())
            return append(running, *told)

        monkeypatch.setattr(torch_engine, "PagedAttention", Noting)
        monkeypatch.setattr(engine, "_append", noting)

    def spans(self, seed):
        """(first token, end, versions of the context before the end), as long as a context only grew."""
        contexts, start = self.contexts[seed], 0
        for end in range(1, len(contexts) + 1):
            if end == len(contexts) or not np.array_equal(contexts[end][:-1], contexts[end - 1]):
                yield start, end, contexts[end - 1]
                start = end


@torch.no_grad()
def logits_of_versions(model_of, ids, versions):
    """Logits [len(versions), V] of the first of `ids`, each position computed by its own version's model; and for each,
    by how much (in log-probability) the router that hesitated most chose its last expert before the next.
    """
    attention, rows, margins, start = GrowingAttention(), [], [], 0
    for version, run in groupby(versions.tolist()):
        end, model = start + len(list(run)), model_of(version)
        output = model(torch.tensor(ids[start:end]), torch.arange(start, end), attention)
        rows.append(model.logits(output.hidden_ND))
        best = output.routing.scores_NLE.clamp_min(1e-30).log().sort(dim=-1, descending=True).values
        chosen = output.routing.experts_NLK.shape[-1]
        margins.append((best[..., chosen - 1] - best[..., chosen]).amin(dim=-1))
        start = end
    return torch.cat(rows), torch.cat(margins)


class GrowingAttention:
    """Of one sequence that comes in runs; what is there stays as it was computed."""

    def __init__(self):
        self.keys, self.values = {}, {}

    def attend(self, layer, q_NHC, k_NGC, v_NGC, scale):
        k = self.keys[layer] = torch.cat((self.keys.get(layer, k_NGC[:0]), k_NGC))
        v = self.values[layer] = torch.cat((self.values.get(layer, v_NGC[:0]), v_NGC))
        pages, seen = Pages([len(k)]), np.arange(len(k) - len(q_NHC), len(k)) + 1
        out = torch.empty((*q_NHC.shape[:2], v.shape[2]))
        rows = np.zeros(len(seen), np.int64)
        filled = pages.fill(k, turned=True), pages.fill(v, turned=False)
        every = np.arange(len(seen))
        paged_attention(q_NHC.contiguous().numpy(), *filled, pages.tables, every, rows, seen, scale, out.numpy())
        return out
