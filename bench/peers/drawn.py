"""Models with random weights: tensors by name, and the folders that hold them.

Every tensor is drawn by itself, from its name alone, so that a model is the same wherever it is made. Spreads keep
activations near one in all layers, so that rounding, routing and attention behave as in a model that was trained.
"""

import json
import pathlib
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

# Inputs that share an exponent in MXFP4.
GROUP = 32
# Families with gated delta rules.
DELTA = ("qwen3_5_text", "qwen3_5_moe_text")


@dataclass(frozen=True)
class Plain:
    """A tensor of bf16, drawn around `centre`."""

    name: str
    shape: tuple[int, ...]
    spread: float
    centre: float = 0.0


@dataclass(frozen=True)
class Packed:
    """A stack of MXFP4 matrices, `[experts, outputs, inputs]`: codes and exponents are two tensors of a file."""

    name: str
    shape: tuple[int, int, int]


Tensor = Plain | Packed


def parameters(tensors: Iterator[Tensor]) -> int:
    """The number of a model's weights."""
    total = 0
    for tensor in tensors:
        count = 1
        for length in tensor.shape:
            count *= length
        total += count
    return total


def matrix(name: str, outputs: int, inputs: int, gain: float = 0.8) -> Plain:
    """A matrix whose outputs are `gain` times as large as its inputs."""
    return Plain(f"{name}.weight", (outputs, inputs), gain * inputs**-0.5)


def tensors(config: dict) -> Iterator[Tensor]:
    """The tensors of a model, layer after layer."""
    hidden, kind = config["hidden_size"], config["model_type"]
    tied = config["tie_word_embeddings"]
    # Some store norms as distances from one. A tied table is drawn small and the last norm large, or a token's own
    # row would win every logit.
    centre = 0.0 if kind in ("gemma3_text", *DELTA) else 1.0
    yield Plain("model.embed_tokens.weight", (config["vocab_size"], hidden), 0.45 * hidden**-0.5 if tied else 0.8)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        if config.get("layer_types", [""] * (number + 1))[number] == "linear_attention":
            yield from delta_rule(config, f"{layer}.linear_attn")
        else:
            yield from attention(config, f"{layer}.self_attn", centre)
        yield from MLPS[kind](config, f"{layer}.mlp")
        norms = ["input_layernorm", "post_attention_layernorm"]
        if kind == "gemma3_text":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        yield from (Plain(f"{layer}.{norm}.weight", (hidden,), 0.2, centre) for norm in norms)
    yield Plain("model.norm.weight", (hidden,), 0.2, centre + 6 if tied else centre)
    if not tied:
        yield matrix("lm_head", config["vocab_size"], hidden, 3.0)
    if config.get("mtp_num_hidden_layers"):
        yield from draft_layer(config, centre)


def attention(config: dict, name: str, centre: float) -> Iterator[Tensor]:
    """Projections, with what the family adds to them: biases and sinks, or norms of queries and keys."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    # Qwen3.5's queries bring a gate each for the output.
    gates = 2 if config["model_type"] in DELTA else 1
    shapes = {"q_proj": gates * heads, "k_proj": kv_heads, "v_proj": kv_heads}
    for part, count in shapes.items():
        yield matrix(f"{name}.{part}", count * head_dim, hidden)
    yield matrix(f"{name}.o_proj", hidden, heads * head_dim)
    if config["attention_bias"]:
        for part, count in shapes.items():
            yield Plain(f"{name}.{part}.bias", (count * head_dim,), 0.3)
        yield Plain(f"{name}.o_proj.bias", (hidden,), 0.3)
    if config["model_type"] == "gpt_oss":
        yield Plain(f"{name}.sinks", (heads,), 1.0, 1.0)
    else:
        yield from (Plain(f"{name}.{part}_norm.weight", (head_dim,), 0.2, centre) for part in "qk")


def draft_layer(config: dict, centre: float) -> Iterator[Tensor]:
    """Qwen3.5's own draft layer, of full attention."""
    hidden = config["hidden_size"]
    yield matrix("mtp.fc", hidden, 2 * hidden)
    yield from attention(config, "mtp.layers.0.self_attn", centre)
    yield from MLPS[config["model_type"]](config, "mtp.layers.0.mlp")
    norms = ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"]
    norms += ["layers.0.input_layernorm", "layers.0.post_attention_layernorm"]
    yield from (Plain(f"mtp.{norm}.weight", (hidden,), 0.2, centre) for norm in norms)


def delta_rule(config: dict, name: str) -> Iterator[Tensor]:
    """A gated delta rule: projections, a short convolution, and decays under which states neither vanish nor stay."""
    hidden, dims = config["hidden_size"], (config["linear_key_head_dim"], config["linear_value_head_dim"])
    heads = (config["linear_num_key_heads"], config["linear_num_value_heads"])
    keys, values = (count * dim for count, dim in zip(heads, dims, strict=True))
    shapes = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": heads[1], "in_proj_a": heads[1]}
    for part, outputs in shapes.items():
        yield matrix(f"{name}.{part}", outputs, hidden)
    yield Plain(f"{name}.conv1d.weight", (2 * keys + values, 1, config["linear_conv_kernel_dim"]), 0.45)
    yield Plain(f"{name}.dt_bias", (heads[1],), 1.0, -2.0)
    yield Plain(f"{name}.A_log", (heads[1],), 0.8, -1.0)
    yield Plain(f"{name}.norm.weight", (dims[1],), 0.2, 1.0)
    yield matrix(f"{name}.out_proj", hidden, values)


def mixture(config: dict, name: str) -> Iterator[Tensor]:
    """A router and experts, each with matrices of its own."""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    # Scores of experts lie far apart, so that rounding seldom sends a token to another one.
    yield matrix(f"{name}.gate", config["num_experts"], hidden, 3.0)
    for expert in range(config["num_experts"]):
        of = f"{name}.experts.{expert}"
        yield matrix(f"{of}.gate_proj", width, hidden)
        yield matrix(f"{of}.up_proj", width, hidden)
        yield matrix(f"{of}.down_proj", hidden, width)


def packed_mixture(config: dict, name: str) -> Iterator[Tensor]:
    """A router and experts in stacks of MXFP4, with biases."""
    hidden, width, count = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    yield matrix(f"{name}.router", count, hidden, 3.0)
    yield Plain(f"{name}.router.bias", (count,), 0.3)
    yield Packed(f"{name}.experts.gate_up_proj", (count, 2 * width, hidden))
    yield Plain(f"{name}.experts.gate_up_proj_bias", (count, 2 * width), 0.3)
    yield Packed(f"{name}.experts.down_proj", (count, hidden, width))
    yield Plain(f"{name}.experts.down_proj_bias", (count, hidden), 0.3)


def stacked_mixture(config: dict, name: str) -> Iterator[Tensor]:
    """A router, experts in two stacks, and a shared expert behind a gate."""
    hidden, width, count = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    yield matrix(f"{name}.gate", count, hidden, 3.0)
    yield Plain(f"{name}.experts.gate_up_proj", (count, 2 * width, hidden), 0.8 * hidden**-0.5)
    yield Plain(f"{name}.experts.down_proj", (count, hidden, width), 0.8 * width**-0.5)
    yield from gated(config | {"intermediate_size": config["shared_expert_intermediate_size"]}, f"{name}.shared_expert")
    yield matrix(f"{name}.shared_expert_gate", 1, hidden)


def gated(config: dict, name: str) -> Iterator[Tensor]:
    """A gated MLP."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    yield matrix(f"{name}.gate_proj", width, hidden)
    yield matrix(f"{name}.up_proj", width, hidden)
    yield matrix(f"{name}.down_proj", hidden, width)


MLPS = {
    "qwen3_moe": mixture,
    "gpt_oss": packed_mixture,
    "gemma3_text": gated,
    "qwen3_5_text": gated,
    "qwen3_5_moe_text": stacked_mixture,
}


def draw(tensor: Tensor) -> dict:
    """The tensors of a file, by name."""
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(tensor.name.encode()))
    if isinstance(tensor, Plain):
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.bfloat16)
        return {tensor.name: values.mul_(tensor.spread).add_(tensor.centre)}
    experts, outputs, inputs = tensor.shape
    groups = (experts, outputs, inputs // GROUP)
    blocks = torch.randint(0, 256, (*groups, GROUP // 2), generator=generator, dtype=torch.uint8)
    # Codes drawn evenly have a spread of 2.9; with these exponents outputs of 2,880 inputs are about as large as they.
    scales = torch.randint(119, 121, groups, generator=generator, dtype=torch.uint8)
    return {f"{tensor.name}_blocks": blocks, f"{tensor.name}_scales": scales}


def save(config: dict, folder: pathlib.Path, context: int, tokenizer: pathlib.Path) -> None:
    """Write a model: a file for each layer and one for the rest, their index, the config, and a tokenizer for it.

    `tokenizer` is the folder of a model whose tokenizer is taken, filled up to the vocabulary.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    parts: dict[str, list[Tensor]] = {}
    for tensor in tensors(config):
        words = tensor.name.split(".")
        parts.setdefault(words[2] if words[1] == "layers" else "rest", []).append(tensor)
    places, size = {}, 0
    for number, part in enumerate(parts.values(), 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors"
        drawn: dict = {}
        for tensor in part:
            drawn |= draw(tensor)
        save_file(drawn, folder / name, {"format": "pt"})
        places |= dict.fromkeys(drawn, name)
        size += sum(values.nbytes for values in drawn.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
    whole = config | {"max_position_embeddings": context, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(whole, indent=2) + "\n")
    fill_tokenizer(tokenizer / "tokenizer.json", folder / "tokenizer.json", config["vocab_size"])
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer / name, folder / name)


def fill_tokenizer(source: pathlib.Path, out: pathlib.Path, count: int) -> None:
    """Add tokens that no text has until there are `count`: llama.cpp's converter cuts Gemma's table to the tokenizer."""
    tokenizer = json.loads(source.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    known = set(vocabulary.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary |= {f"<|unused_{number}|>": number for number in range(count) if number not in known}
    out.write_text(json.dumps(tokenizer, ensure_ascii=False))
