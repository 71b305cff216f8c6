"""An adapter apart from its model, as the real `peft` opens it: the logits of what was trained, and the same merge."""

import warnings

import pytest
import torch
from tokenizers import Tokenizer, models

from etude.engine.adapted import merged
from etude.models.adapters import INPUTS, OUTPUTS, SCALE
from etude.models.attention import PackedAttention
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.state import load_bits
from etude.models.tokenizer import save_tokenizer
from etude.trainer.config import TrainerConfig
from etude.trainer.step import Trainer

torch.set_num_threads(1)
SHARED = {
    "vocab_size": 160, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 512, "initializer_range": 0.12, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
MODELS = {
    "Llama": ({"num_key_value_heads": 2}, {"attention": 3, "dense": 2}, ()),
    "Qwen2": ({"num_key_value_heads": 2}, {"attention": 2}, (":1",)),
    "Qwen3Moe": (
        {"num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 16, "norm_topk_prob": True},
        {"attention": 2, "experts": 3}, ("-1:",),
    ),
    "DeepseekV3": (
        {"num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
         "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 20,
         "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10},
        {"attention": 2, "dense": 2, "experts": 2}, (),
    ),
}  # fmt: skip
IDS = torch.tensor([3, 17, 44, 91, 5, 5, 130, 12, 77, 60])


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs the dev extra")


@pytest.fixture(scope="module")
def peft():
    """Seconds to import, which only these tests are to pay."""
    return pytest.importorskip("peft", reason="needs the dev extra")


def adapted(transformers, name, directory):
    """A random published model, trained adapters beside it, and the trainer that holds both."""
    settings, lora, frozen = MODELS[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**SHARED, **settings))
    theirs.save_pretrained(directory / "given")
    save_tokenizer(Tokenizer(models.BPE()), directory / "given")
    decoder, tokenizer = load_checkpoint(directory / "given")
    save_checkpoint(decoder, directory / "base", tokenizer)
    trainer = Trainer(load_checkpoint(directory / "base")[0], TrainerConfig(lora=lora, frozen=frozen))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, factor in trainer.trained.factors.items():
            if key.endswith(OUTPUTS):
                factor.normal_(0, 0.1, generator=generator)
    trainer.trained.round()
    trainer.trained.save_adapter(directory / "adapter", directory / "base")
    return trainer


def ours(decoder):
    with torch.no_grad():
        output = decoder(IDS, torch.arange(len(IDS)), PackedAttention([len(IDS)]))
        return decoder.logits(output.hidden_ND)


@pytest.mark.parametrize("name", MODELS)
def test_peft_opens_it_with_the_logits_of_what_was_trained(transformers, peft, tmp_path, name):
    trainer = adapted(transformers, name, tmp_path)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    before = base(IDS[None]).logits[0].detach()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys|target_.* were set")
        opened = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    found = opened(IDS[None]).logits[0].detach()
    assert (found - before).abs().max() > 0.1, "the adapter does something"

    bits, exact = trainer.export(), load_checkpoint(tmp_path / "base")[0]
    factors = trainer.trained._rounded
    with torch.no_grad():  # without the rounding that serving does
        for key, weight in exact.named_parameters():
            if key in trainer.trained.ranks:
                a, b = factors[key + INPUTS], factors[key + OUTPUTS]
                weight.add_(SCALE * (b @ a if weight.dim() == 2 else a @ b))
    torch.testing.assert_close(found, ours(exact), atol=1e-4, rtol=1e-4)

    served = load_checkpoint(tmp_path / "base")[0]
    load_bits(served, merged(bits))
    assert torch.equal(ours(served), ours(trainer.policy))
    save_checkpoint(trainer.policy, tmp_path / "merged", load_checkpoint(tmp_path / "base")[1])
    theirs = opened.merge_and_unload().state_dict()
    export = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    for key, weight in export.state_dict().items():
        differing = (weight != theirs[key].bfloat16().float()).float().mean()
        assert differing < 0.01, (key, "but for sums in another order, both merge alike")
    torch.testing.assert_close(export(IDS[None]).logits[0].detach(), ours(trainer.policy), atol=1e-4, rtol=1e-4)


def test_nothing_is_written_where_no_adapter_is_trained(transformers, tmp_path):
    adapted(transformers, "Llama", tmp_path)
    trainer = Trainer(load_checkpoint(tmp_path / "base")[0], TrainerConfig())
    trainer.trained.save_adapter(tmp_path / "none", tmp_path / "base")
    assert not (tmp_path / "none").exists()
