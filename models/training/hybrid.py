"""The hybrid target: Qwen3.5's text model, three gated-delta layers and then one of gated full attention.

Parameter names are those of the checkpoint. It has the interface of model.Llama, so that what trains or measures drafts
takes either.
"""

import json
import pathlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from chatml import END
from delta import GatedDeltaNet
from model import MLP, rotary_tables, rotate

CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "partial_rotary_factor": 0.25,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}


def dimensions(config: dict) -> SimpleNamespace:
    """The config's fields, and those of its rotation beside them."""
    rope = config["rope_parameters"]
    turned = int(config["head_dim"] * rope["partial_rotary_factor"])
    return SimpleNamespace(**config, rope_theta=rope["rope_theta"], rotary_dim=turned)


class UnitNorm(nn.Module):
    """RMS norm whose weight is stored as the distance from one."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), 1 + self.weight.float(), self.eps).to(x.dtype)


class GatedAttention(nn.Module):
    """Attention whose queries bring gates for the output. Only the first part of each head turns with positions."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.turned = config.head_dim, config.rotary_dim
        hidden, size = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, 2 * self.heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * size, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * size, bias=False)
        self.o_proj = nn.Linear(self.heads * size, hidden, bias=False)
        self.q_norm, self.k_norm = UnitNorm(size, config.rms_norm_eps), UnitNorm(size, config.rms_norm_eps)

    def turn(self, x, cos, sin):
        return torch.cat([rotate(x[..., : self.turned], cos, sin), x[..., self.turned :]], -1)

    def project(self, x, cos, sin):
        """Queries, keys and values [batch, heads, tokens, head_dim], a key/value head for every query head, and gates."""
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2 * self.head_dim)).chunk(2, -1)
        k, v = (t.unflatten(-1, (self.kv_heads, self.head_dim)) for t in (self.k_proj(x), self.v_proj(x)))
        q, k = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2)
        k, v = self.turn(k, cos, sin), v.transpose(1, 2)
        shared = self.heads // self.kv_heads
        return self.turn(q, cos, sin), *(t.repeat_interleave(shared, 1) for t in (k, v)), gate.flatten(2)

    def merge(self, mixed, gate):
        return self.o_proj(mixed.transpose(1, 2).flatten(2) * gate.sigmoid())

    def forward(self, x, cos, sin):
        q, k, v, gate = self.project(x, cos, sin)
        if self.training:  # on the CPU the fused kernel's backward pass is slower than plain matrix products
            positions = torch.arange(x.shape[1])
            scores = (q @ k.transpose(-1, -2)) * self.head_dim**-0.5
            scores = scores.masked_fill(positions[None] > positions[:, None], float("-inf"))
            mixed = scores.softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(mixed, gate)


class HybridLayer(nn.Module):
    def __init__(self, config, kind: str):
        super().__init__()
        if kind == "full_attention":
            self.self_attn = GatedAttention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.mlp = MLP(config)
        self.input_layernorm = UnitNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = UnitNorm(config.hidden_size, config.rms_norm_eps)

    def mix(self, x, cos, sin):
        """Attention or the delta rule over normed inputs."""
        return self.linear_attn(x) if hasattr(self, "linear_attn") else self.self_attn(x, cos, sin)

    def forward(self, x, cos, sin):
        x = x + self.mix(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class HybridBody(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(HybridLayer(config, kind) for kind in config.layer_types)
        self.norm = UnitNorm(config.hidden_size, config.rms_norm_eps)


def draw(model: nn.Module, layers: int) -> None:
    """Draw matrices small, those that write to the residual stream smaller yet; convolutions pass their last token on."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 3:
            nn.init.normal_(parameter, std=0.1)
            nn.init.ones_(parameter.data[..., -1])
        elif parameter.dim() == 2:
            writes = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / ((2 * layers) ** 0.5 if writes else 1))


class Hybrid(nn.Module):
    """Qwen3_5ForCausalLM with tied embeddings. forward gives the states after the final norm; head gives logits."""

    def __init__(self, config):
        super().__init__()
        self.config, self.model = config, HybridBody(config)
        draw(self, config.num_hidden_layers)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        cos, sin = rotary_tables(ids.shape[1], self.config)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def head(self, x):
        return F.linear(x, self.model.embed_tokens.weight)


def load_hybrid(folder: pathlib.Path) -> Hybrid:
    """A checkpoint's target in float32, ready to run; its draft layer is mtp.py's."""
    folder = pathlib.Path(folder)
    model = Hybrid(dimensions(json.loads((folder / "config.json").read_text())))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: value for name, value in weights.items() if not name.startswith("mtp.")})
    return model.float().eval()
