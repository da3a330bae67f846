"""The Llama forward pass in numpy float32, layer by layer over many sequences, to check inflated models without torch."""

from collections.abc import Callable

import numpy as np


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x [tokens, hidden]."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotary embedding (rotate-half pairs) of x [heads, tokens, head_dim] at positions 0.. ."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half) / half)
    angles = np.arange(x.shape[1])[:, None] * frequencies
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(x: np.ndarray, config: dict, weight: Callable[[str], np.ndarray]) -> np.ndarray:
    """Causal grouped-query attention over one sequence x [tokens, hidden], projections included."""
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]

    def project(name: str, count: int) -> np.ndarray:
        return (x @ weight(f"self_attn.{name}.weight").T).reshape(len(x), count, dim).transpose(1, 0, 2)

    q = rotate(project("q_proj", heads), config["rope_theta"]).reshape(kv_heads, heads // kv_heads, len(x), dim)
    k = rotate(project("k_proj", kv_heads), config["rope_theta"])[:, None]
    v = project("v_proj", kv_heads)[:, None]
    scores = q @ k.swapaxes(-1, -2) * np.float32(dim**-0.5)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ v
    mixed = mixed.reshape(heads, len(x), dim).transpose(1, 0, 2).reshape(len(x), heads * dim)
    return mixed @ weight("self_attn.o_proj.weight").T


def feed_forward(x: np.ndarray, weight: Callable[[str], np.ndarray]) -> np.ndarray:
    """SwiGLU over x [tokens, hidden]."""
    gate = x @ weight("mlp.gate_proj.weight").T
    return (gate / (1 + np.exp(-gate)) * (x @ weight("mlp.up_proj.weight").T)) @ weight("mlp.down_proj.weight").T


def logits(config: dict, weight: Callable[[str], np.ndarray], sequences: list[list[int]]) -> list[np.ndarray]:
    """Logits [tokens, vocab] of every sequence. `weight` makes a tensor by name; each is asked for once."""
    embedding = weight("model.embed_tokens.weight")
    eps = config["rms_norm_eps"]
    states = [embedding[np.array(ids)] for ids in sequences]
    for layer in range(config["num_hidden_layers"]):
        made: dict[str, np.ndarray] = {}

        def part(name: str) -> np.ndarray:
            if name not in made:
                made[name] = weight(f"model.layers.{layer}.{name}")
            return made[name]

        for i, x in enumerate(states):
            x = x + attention(rms_norm(x, part("input_layernorm.weight"), eps), config, part)
            states[i] = x + feed_forward(rms_norm(x, part("post_attention_layernorm.weight"), eps), part)
    norm = weight("model.norm.weight")
    return [rms_norm(x, norm, eps) @ embedding.T for x in states]
