"""GGUF files of small random models, as llama.cpp's converter writes them: keys and names are the library's own."""

import json

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA, "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3, "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
}  # fmt: skip
TYPES = gguf.GGMLQuantizationType
TEXT = "it's the tokens of a café that we'd say — 日本 to the model, and the 3 or 2024 of them\n\n  def f(x):\n\tx\n"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def vocabulary(size=160):
    """Tokens and merges of byte-level BPE, control tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(CONTROL), show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(pair) for pair in model["merges"]]


def add_bytes(writer, size, pre="qwen2", unmerged=()):
    """`unmerged` are tokens that no merges lead to."""
    tokens, merges = vocabulary(size - len(unmerged))
    tokens += unmerged
    padding = [f"[PAD{at}]" for at in range(len(tokens), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, *padding])
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)) + [5] * len(padding))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(0)


def add_shape(writer, config):
    """The metadata of a transformers config."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "num_experts", None) and "Moe" in type(config).__name__:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def tensors_of(theirs, stored):
    """Name in the file → values, from the tensors that transformers saved."""
    config = theirs.config
    architecture = ARCHITECTURES[type(theirs).__name__]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    found, stacks = {}, {}
    for name, tensor in stored.items():
        values = tensor.float().numpy()
        if architecture == gguf.MODEL_ARCH.LLAMA and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if ".mlp.experts." in name:
            before, _, after = name.partition(".experts.")
            expert, _, rest = after.partition(".")
            stacks.setdefault(f"{before}.experts.{rest}", {})[int(expert)] = values
        else:
            found[names.get_name(name, (".weight", ".bias"))] = values
    for name, parts in stacks.items():
        found[names.get_name(name, (".weight",))] = np.stack([parts[at] for at in sorted(parts)])
    return found


def write_gguf(path, theirs, stored, kind=TYPES.F32, tokenizer=add_bytes, change=lambda writer: None, drop=()):
    """A random model of transformers' as a GGUF, its matrices in `kind` as the library quantises them."""
    architecture = ARCHITECTURES[type(theirs).__name__]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    add_shape(writer, theirs.config)
    tokenizer(writer, theirs.config.vocab_size)
    change(writer)
    for name, values in tensors_of(theirs, stored).items():
        if name in drop:
            continue
        if values.ndim > 1 and "gate_inp" not in name and kind != TYPES.F32:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    finish(writer)
    return path


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantised(tensor, kind):
    """What a tensor is after it was stored in `kind`, and then in bf16."""
    if tensor.dim() < 2 or kind == TYPES.F32:
        return tensor.bfloat16()
    return torch.from_numpy(
        gguf.quants.dequantize(gguf.quants.quantize(tensor.float().numpy(), kind), kind).copy()
    ).bfloat16()
