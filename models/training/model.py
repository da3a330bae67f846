"""The target, and any other Llama, in plain PyTorch. Parameter names are those of the checkpoint."""

import json
import pathlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def rotary_tables(length: int, config, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [length, size] of positions start.. (rotate-half convention). A config with `rotary_dim` turns no more of
    a head than that."""
    size = getattr(config, "rotary_dim", config.head_dim)
    frequencies = config.rope_theta ** (-torch.arange(0, size, 2).float() / size)
    angles = torch.arange(start, start + length)[:, None].float() * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """x [batch, heads, tokens, head_dim]."""
    a, b = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat([-b, a], -1) * sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config, inputs: int | None = None):
        """`inputs` is the width that queries, keys and values are read from, the hidden size where none is given."""
        super().__init__()
        inputs = inputs or config.hidden_size
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(inputs, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def split(self, x, heads: int):
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def project(self, x, cos, sin):
        """Queries, keys and values [batch, heads, tokens, head_dim], a key/value head for every query head."""
        q = rotate(self.split(self.q_proj(x), self.heads), cos, sin)
        k = rotate(self.split(self.k_proj(x), self.kv_heads), cos, sin)
        v = self.split(self.v_proj(x), self.kv_heads)
        return q, *(t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))

    def merge(self, mixed):
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        q, k, v = self.project(x, cos, sin)
        if self.training:  # on the CPU the fused kernel's backward pass is slower than plain matrix products
            positions = torch.arange(x.shape[1])
            scores = (q @ k.transpose(-1, -2)) * self.head_dim**-0.5
            scores = scores.masked_fill(positions[None] > positions[:, None], float("-inf"))
            mixed = scores.softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(mixed)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Llama(nn.Module):
    """LlamaForCausalLM with tied embeddings. forward gives the states after the final norm; head gives logits."""

    def __init__(self, config):
        super().__init__()
        self.config, self.model = config, Body(config)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * config.num_hidden_layers) ** 0.5 if writes else 1))

    def forward(self, ids):
        return self.states(ids)[0]

    def states(self, ids, capture: tuple[int, ...] = ()):
        """The states after the final norm, and the inputs of the captured layers, side by side."""
        x = self.model.embed_tokens(ids)
        cos, sin = rotary_tables(ids.shape[1], self.config)
        captured = []
        for number, layer in enumerate(self.model.layers):
            if number in capture:
                captured.append(x)
            x = layer(x, cos, sin)
        return self.model.norm(x), torch.cat(captured, -1) if capture else None

    def head(self, x):
        return F.linear(x, self.model.embed_tokens.weight)


def load(folder: pathlib.Path) -> Llama:
    """A checkpoint in float32, ready to run."""
    folder = pathlib.Path(folder)
    model = Llama(SimpleNamespace(**json.loads((folder / "config.json").read_text())))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.float().eval()


def save(model: nn.Module, config: dict, folder: pathlib.Path) -> None:
    """Write config.json and the weights, numbers with a fraction in bfloat16."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = lambda value: value.to(torch.bfloat16) if value.is_floating_point() else value
    weights = {name: stored(value).contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))


@torch.no_grad()
def greedy(model: Llama, prompt: list[int], limit: int, stop: int) -> tuple[list[int], torch.Tensor, float]:
    """Greedy tokens up to `stop` (included) or the limit, the first one's logits, and the smallest top-2 logit gap."""
    tokens, first, gap = [], None, float("inf")
    while len(tokens) < limit and stop not in tokens:
        logits = model.head(model(torch.tensor([prompt + tokens]))[0, -1])
        top = logits.topk(2)
        first = logits if first is None else first
        gap = min(gap, (top.values[0] - top.values[1]).item())
        tokens.append(top.indices[0].item())
    return tokens, first, gap
