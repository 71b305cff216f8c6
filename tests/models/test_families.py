"""Every family against `transformers`: logits, greedy continuations, the layout both ways, and what is refused."""

import asyncio
import json

import pytest
import torch
from proofs import one_of_each
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.errors import CheckpointError
from etude.harness.sampler import SampleRequest
from etude.kernels.paged_attention import PAGE
from etude.models.attention import PackedAttention
from etude.models.checkpoint import INDEX, check_checkpoint, load_checkpoint, save_checkpoint
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.tokenizer import save_tokenizer

transformers = pytest.importorskip("transformers", reason="parity needs the dev extra")
torch.set_num_threads(1)

SHARED = {
    "vocab_size": 160, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 512, "initializer_range": 0.12, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
GROUPED = {**SHARED, "num_key_value_heads": 2, "head_dim": 8}
MIXTURE = {**GROUPED, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "norm_topk_prob": True}
DEEPSEEK = {
    **SHARED, "num_key_value_heads": 4, "n_routed_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
    "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "kv_lora_rank": 20,
    "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10,
}  # fmt: skip
YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
MODELS = {
    "qwen3": ("Qwen3", {**GROUPED, "tie_word_embeddings": True}),
    "qwen3-yarn": ("Qwen3", {**GROUPED, "rope_scaling": {**YARN, "beta_fast": 16}}),
    "qwen3-moe": ("Qwen3Moe", MIXTURE),
    "qwen3-moe-mixed": (
        "Qwen3Moe",
        {**MIXTURE, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": False,
         "tie_word_embeddings": True},
    ),
    "deepseek-v3": (
        "DeepseekV3", {**DEEPSEEK, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_slow": 1}}
    ),
    "deepseek-v3-bare": (
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False, "n_group": 1,
         "topk_group": 1, "first_k_dense_replace": 0, "n_shared_experts": 1, "tie_word_embeddings": True},
    ),
    "llama": ("Llama", {**GROUPED, "tie_word_embeddings": True}),
    "llama3": (
        "Llama",
        {**GROUPED, "rope_theta": 5e3, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}},
    ),
    "llama3.2": (
        "Llama",
        {**GROUPED, "rope_theta": 5e5, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128}},
    ),
    "kimi-k2": (
        "DeepseekV3",
        {**DEEPSEEK, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "routed_scaling_factor": 2.827,
         "rope_theta": 5e4, "num_key_value_heads": 4,
         "rope_scaling": {**YARN, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0}},
    ),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": None}),
    "qwen2": ("Qwen2", {**SHARED, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2.5-coder": (
        "Qwen2", {**SHARED, "num_key_value_heads": 2, "rope_theta": 1e6, "rope_scaling": {**YARN, "factor": 4.0}}
    ),
}  # fmt: skip


def publish(name, directory, **options):
    """A random model of a family, as `transformers` makes and saves it."""
    kind, settings = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:  # norms, which start at one
                parameter += 0.2 * torch.randn_like(parameter)
        for buffer_name, buffer in theirs.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):  # which starts at zero
                buffer += 0.2 * torch.randn_like(buffer)
    theirs.save_pretrained(directory, **options)
    save_tokenizer(Tokenizer(models.BPE()), directory)
    return theirs


def logits(decoder, ids):
    with torch.no_grad():
        output = decoder(ids, torch.arange(len(ids)), PackedAttention([len(ids)]))
        return decoder.logits(output.hidden_ND)


def tensors(directory):
    return {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_equal_transformers(name, tmp_path):
    theirs = publish(name, tmp_path)
    ours, _ = load_checkpoint(tmp_path)
    ids = torch.randint(0, 160, (300,), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids[None]).logits[0]
    assert expected.std() > 0.5  # or the bound below would say little
    torch.testing.assert_close(logits(ours, ids), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", one_of_each(1.2, MODELS))
@torch.no_grad()
def test_greedy_continuations_equal_transformers_through_pages_chunks_and_prefixes(name, tmp_path):
    theirs = publish(name, tmp_path)
    ours, _ = load_checkpoint(tmp_path)
    generator = torch.Generator().manual_seed(2)
    prefix = torch.randint(0, 160, (3 * PAGE + 5,), generator=generator).tolist()
    prompts = [prefix + torch.randint(0, 160, (n,), generator=generator).tolist() for n in (1, 9, 30)]
    expected = [continuation(theirs, prompt, 24) for prompt in prompts]
    engine = TorchEngine(ours, EngineConfig(cache_tokens=64 * PAGE, step_tokens=28))

    async def ask(session, ids, count):
        return list((await engine.sample(SampleRequest(session, tuple(ids), count, frozenset(), 0.0, 1))).token_ids)

    async def play(number):
        prompt, wanted = prompts[number], expected[number]
        turn = await ask(f"s{number}", prompt, 10)
        return turn + await ask(f"s{number}", prompt + wanted[:11], 13) == wanted[:10] + wanted[11:]

    async def play_all():
        return [await play(0), *await asyncio.gather(play(1), play(2))]

    assert asyncio.run(play_all()) == [True] * 3
    assert engine.counters["prefix_hit_tokens"] >= 2 * 3 * PAGE
    assert engine.counters["session_cache_tokens"] > 0
    engine.close()


def continuation(theirs, prompt, count):
    """Greedy tokens; each must be a clear choice, so that equality says something and does not hang on a tie."""
    given = torch.tensor([prompt])
    ids = theirs.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False)
    best = theirs(ids).logits[0, len(prompt) - 1 : -1].topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-4
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_checkpoint_comes_back_bit_for_bit_and_transformers_loads_it(name, shards, tmp_path):
    theirs = publish(name, tmp_path / "theirs", **({"max_shard_size": "60KB"} if shards else {}))
    ours, _ = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(ours, tmp_path / "ours", dtype=torch.float32, **({"shard_bytes": 60_000} if shards else {}))
    for folder in ("theirs", "ours"):
        assert (tmp_path / folder / INDEX).exists() == shards
        assert (len(list((tmp_path / folder).glob("*.safetensors"))) > 1) == shards
    before, after = tensors(tmp_path / "theirs"), tensors(tmp_path / "ours")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = type(theirs).from_pretrained(tmp_path / "ours", dtype=torch.float32)
    ids = torch.arange(100)[None]
    assert torch.equal(again(ids).logits, theirs(ids).logits)


def test_a_checkpoint_that_was_sharded_may_be_overwritten_by_one_that_is_not(tmp_path):
    publish("qwen3", tmp_path, max_shard_size="60KB")
    ours, tokenizer = load_checkpoint(tmp_path)
    ours.embed.weight.data += 1
    save_checkpoint(ours, tmp_path, tokenizer, torch.float32)
    assert torch.equal(load_checkpoint(tmp_path)[0].embed.weight, ours.embed.weight)
    save_checkpoint(ours, tmp_path, tokenizer, torch.float32, shard_bytes=60_000)
    assert not (tmp_path / "model.safetensors").exists()
    assert torch.equal(load_checkpoint(tmp_path)[0].embed.weight, ours.embed.weight)


def test_a_selection_bias_stays_fp32_in_a_bf16_checkpoint(tmp_path):
    publish("deepseek-v3", tmp_path)
    ours, tokenizer = load_checkpoint(tmp_path, torch.bfloat16)
    save_checkpoint(ours, tmp_path, tokenizer)
    stored = tensors(tmp_path)
    biases = {name for name in stored if name.endswith("e_score_correction_bias")}
    assert len(biases) == 2
    assert {name for name, tensor in stored.items() if tensor.dtype == torch.float32} == biases
    bias = load_checkpoint(tmp_path, torch.bfloat16)[0].blocks[1].mlp.selection_bias
    assert not torch.equal(bias, bias.bfloat16().float())


WRONG = [
    ("qwen3", {"mystery": 1}, "mystery is unknown"),
    (
        "qwen3",
        {"mystery": 1, "riddle": 2, "hidden_act": "gelu", "attention_bias": True},
        "hidden_act is 'gelu'.*attention_bias is True.*keys mystery, riddle are unknown",
    ),
    (
        "llama",
        {"mystery": 1, "rope_scaling": {"rope_type": "default", "riddle": 2}, "rope_parameters": None},
        "keys mystery, rope_scaling.riddle are unknown",
    ),
    ("qwen2", {"use_sliding_window": True, "use_mrope": True}, "use_sliding_window is True.*use_mrope is True"),
    ("qwen3", {"attention_bias": True}, "attention_bias is True"),
    ("qwen3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("qwen3", {"use_sliding_window": True}, "use_sliding_window"),
    ("qwen3", {"hidden_size": "wide"}, "hidden_size is 'wide'; it must be a whole number"),
    ("qwen3", {"num_key_value_heads": 3}, "kv_heads"),
    ("qwen3", {"intermediate_size": None}, "intermediate_size is missing"),
    (
        "llama",
        {"rms_norm_eps": None, "rms_norm_epz": 1e-6},
        "rms_norm_eps is missing; is rms_norm_epz meant",
    ),
    ("qwen3", {"num_attention_heads": 8}, "proj.weight has shape"),
    ("qwen3", {"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
    ("qwen3", {"rope_parameters": {**YARN, "mystery": 1}}, "rope_parameters.mystery is unknown"),
    ("qwen3", {"rope_parameters": {**YARN, "truncate": False}}, "rope_parameters.truncate"),
    ("qwen3-moe", {"num_local_experts": 9}, "mlp.gate.weight has shape"),
    ("qwen3-moe", {"decoder_sparse_step": "two"}, "decoder_sparse_step is 'two'"),
    ("deepseek-v3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    ("deepseek-v3", {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    ("deepseek-v3", {"n_group": 3}, "expert_groups"),
    ("deepseek-v3", {"num_key_value_heads": 2}, "num_key_value_heads is 2"),
    ("deepseek-v3", {"n_routed_experts": None}, "n_routed_experts is missing"),
    ("deepseek-v3", {"first_k_dense_replace": 3}, "every layer"),
]


@pytest.mark.parametrize(("name", "changes", "message"), WRONG, ids=lambda part: str(part)[:40])
def test_what_config_json_says_and_we_do_not_understand_is_named(name, changes, message, tmp_path):
    publish(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    for read in (load_checkpoint, check_checkpoint):
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path)


def test_keys_that_say_nothing_of_what_is_computed_are_passed_over(tmp_path):
    publish("llama", tmp_path)
    path = tmp_path / "config.json"
    inert = {"_model_name_or_path": "x", "unk_token_id": 0, "sep_token_id": 3, "do_sample": True, "temperature": 0.7}
    before = check_checkpoint(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | inert))
    assert check_checkpoint(tmp_path) == before


@pytest.mark.parametrize("inside", [True, False])
def test_a_gguf_file_is_told_from_a_model_directory(inside, tmp_path):
    file = tmp_path / "model.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    for read in (load_checkpoint, check_checkpoint):
        with pytest.raises(CheckpointError, match=r"model\.Q4_1\.gguf: this file holds weights as llama\.cpp"):
            read(tmp_path if inside else file)


def test_a_sliding_window_bounds_a_mistrals_context(tmp_path):
    publish("mistral", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": 128}))
    assert check_checkpoint(tmp_path).max_context == 128


def rewrite(directory, change):
    stored = tensors(directory)
    change(stored)
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.pop("model.norm.weight"), "tensors are missing: model.norm.weight; "),
        (lambda stored: stored.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}), "q_proj.bias"),
        (lambda stored: stored.update({"model.norm.weight": torch.zeros(32).to(torch.float8_e4m3fn)}), "F8_E4M3"),
    ],
)
def test_tensors_that_are_missing_unknown_or_quantised_are_named(change, message, tmp_path):
    publish("qwen3-moe", tmp_path)
    rewrite(tmp_path, change)
    for read in (load_checkpoint, check_checkpoint):
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    publish("qwen3", tmp_path, max_shard_size="60KB")
    lost = max(tmp_path.glob("*.safetensors"))
    lost.unlink()
    with pytest.raises(CheckpointError, match=lost.name):
        load_checkpoint(tmp_path)


def test_a_tied_head_may_be_stored_but_not_differ(tmp_path):
    publish("qwen3", tmp_path)
    rewrite(tmp_path, lambda stored: stored.update({"lm_head.weight": stored["model.embed_tokens.weight"].clone()}))
    load_checkpoint(tmp_path)
    rewrite(tmp_path, lambda stored: stored["lm_head.weight"].add_(1))
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        load_checkpoint(tmp_path)


def publish_with_a_further_token(directory):
    """As DeepSeek publishes: behind the last layer another one, with embeddings and head once more. Theirs has it as a
    common layer.
    """
    theirs, ids = publish("deepseek-v3", directory), torch.Generator().manual_seed(3)
    kind, settings = MODELS["deepseek-v3"]
    config = getattr(transformers, f"{kind}Config")(**{**settings, "num_hidden_layers": 4})
    longer = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    layer = {f"model.layers.3.{name}": tensor for name, tensor in longer.model.layers[3].state_dict().items()}
    extra = {
        "enorm.weight": torch.rand(32, generator=ids), "hnorm.weight": torch.rand(32, generator=ids),
        "eh_proj.weight": torch.randn(32, 64, generator=ids) / 8, "shared_head.norm.weight": torch.rand(32),
        "embed_tokens.weight": theirs.model.embed_tokens.weight.data,
        "shared_head.head.weight": theirs.lm_head.weight.data,
    }  # fmt: skip
    own = tensors(directory)
    stored = own | published_layer(own, layer) | {f"model.layers.3.{name}": each for name, each in extra.items()}
    save_file({name: each.contiguous().clone() for name, each in stored.items()}, directory / "model.safetensors")
    return theirs, longer.model, extra


def published_layer(own, layer):
    """A layer of transformers under its published names: experts one by one."""
    named = {}
    for name, tensor in layer.items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                named[name.replace("gate_up_proj", f"{expert}.gate_proj.weight")] = gate
                named[name.replace("gate_up_proj", f"{expert}.up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            named |= {
                name.replace("down_proj", f"{expert}.down_proj.weight"): each for expert, each in enumerate(tensor)
            }
        else:
            named[name] = tensor
    assert {name.replace("layers.3.", "layers.2.") for name in named} <= own.keys()
    return named


@torch.no_grad()
def test_the_layer_for_a_further_token_computes_what_its_published_parts_say(tmp_path):
    theirs, model, extra = publish_with_a_further_token(tmp_path)
    ours, _ = load_checkpoint(tmp_path)
    ids = torch.randint(0, 160, (40,), generator=torch.Generator().manual_seed(1))
    hidden = theirs.model(ids[None, :-1]).last_hidden_state
    joined = torch.cat((normed(theirs.model.embed_tokens(ids[None, 1:]), extra["enorm.weight"]),
                        normed(hidden, extra["hnorm.weight"])), dim=-1) @ extra["eh_proj.weight"].T  # fmt: skip
    positions = torch.arange(39)[None]
    mask = torch.full((39, 39), -torch.inf).triu(1)[None, None]
    after = model.layers[3](
        joined, position_embeddings=model.rotary_emb(joined, positions), attention_mask=mask, position_ids=positions
    )
    expected = theirs.lm_head(normed(after, extra["shared_head.norm.weight"]))[0]
    further, _ = ours.look_further(ids[1:], hidden[0], positions[0], PackedAttention([39]))
    assert expected.std() > 0.3
    torch.testing.assert_close(ours.further_logits(further), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(logits(ours, ids), theirs(ids[None]).logits[0], atol=1e-5, rtol=0)


def normed(x, weight):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def test_the_layer_for_a_further_token_comes_back_bit_for_bit(tmp_path):
    publish_with_a_further_token(tmp_path / "theirs")
    ours, _ = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(ours, tmp_path / "ours", dtype=torch.float32)
    before, after = tensors(tmp_path / "theirs"), tensors(tmp_path / "ours")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert check_checkpoint(tmp_path / "theirs").further_token
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["num_nextn_predict_layers"] == 1
    with pytest.raises(CheckpointError, match="no published layout"):
        save_checkpoint(Decoder(ModelConfig(vocab_size=8, further_token=True)), tmp_path)


def test_a_further_token_that_is_named_but_absent_torn_or_of_its_own_head(tmp_path):
    publish("deepseek-v3", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_nextn_predict_layers"] == 1
    assert load_checkpoint(tmp_path)[0].further is None  # as transformers saves it
    rewrite(tmp_path, lambda stored: stored.update({"model.layers.3.enorm.weight": torch.zeros(32)}))
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.3\..* and \d+ more; "):
        load_checkpoint(tmp_path)
    publish_with_a_further_token(tmp_path)
    rewrite(tmp_path, lambda stored: stored["model.layers.3.shared_head.head.weight"].add_(1))
    with pytest.raises(CheckpointError, match=r"head\.weight is not lm_head"):
        load_checkpoint(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_nextn_predict_layers": 0}))
    with pytest.raises(CheckpointError, match="no part of the model"):
        load_checkpoint(tmp_path)


def test_a_shape_that_no_layout_holds_is_not_saved(tmp_path):
    with pytest.raises(CheckpointError, match="no published layout"):
        save_checkpoint(Decoder(ModelConfig(vocab_size=8, head_norm=False)), tmp_path)
