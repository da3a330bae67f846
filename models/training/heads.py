"""EAGLE's draft heads in plain PyTorch, with the parameter names of the public checkpoints.

A head reads slots: slot i holds what the target knows after token i (its condition) and the embedding of token i + 1, and
its output tells token i + 2. While drafting, the condition of the next slot is the head's own output of the slot before.
"""

import json
import pathlib
from collections.abc import Callable
from types import SimpleNamespace

import torch
from safetensors.torch import load_file
from torch import nn

from model import MLP, Attention, Llama, RMSNorm, rotary_tables


def captured_layers(count: int) -> tuple[int, int, int]:
    """The layers whose input EAGLE-3 reads."""
    return 2, count // 2, count - 3


def configuration(target, **others) -> dict:
    """A head's config.json: one layer of the target's shape."""
    same = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size")
    more = ("max_position_embeddings", "rope_theta", "rms_norm_eps", "eos_token_id", "pad_token_id")
    return {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **{key: getattr(target, key) for key in same + more},
        **others,
    }


class HeadLayer(nn.Module):
    """Attention and MLP; the norms before attention differ between the generations."""

    def __init__(self, config, inputs: int):
        super().__init__()
        self.self_attn, self.mlp = Attention(config, inputs), MLP(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Head(nn.Module):
    """What both generations share. `enter` gives the residual stream and what attention reads."""

    def step(self, embedded, condition, attend: Callable):
        """The outputs of slots whose attention is `attend(attention, inputs)`."""
        residual, inputs = self.enter(embedded, condition)
        layer = self.layer()
        residual = residual + attend(layer.self_attn, inputs)
        return residual + layer.mlp(layer.post_attention_layernorm(residual))

    def forward(self, embedded, condition):
        """Outputs of slots 0.. of whole texts, each slot attending to those before it."""
        tables = rotary_tables(embedded.shape[1], self.config)
        return self.step(embedded, condition, lambda attention, inputs: attention(inputs, *tables))


class Eagle3(Head):
    """EAGLE-3: three layers' states through fc, a vocabulary of its own. Outputs are fed back before the last norm."""

    def __init__(self, config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = HeadLayer(config, 2 * hidden)
        self.midlayer.input_layernorm, self.midlayer.hidden_norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def layer(self):
        return self.midlayer

    def read(self, target: Llama, ids):
        """The target's states after every token, and the conditions made of them."""
        states, captured = target.states(ids, captured_layers(target.config.num_hidden_layers))
        return states, self.fc(captured)

    def enter(self, embedded, condition):
        layer = self.midlayer
        return condition, torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(condition)], -1)

    def logits(self, target: Llama, outputs):
        return self.lm_head(self.norm(outputs))

    def targets(self):
        """The target's token for each of the head's."""
        return torch.arange(len(self.d2t)) + self.d2t


class Eagle(Head):
    """EAGLE-1/2: the target's state after the final norm; the output estimates the next one, for the target's own head."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.bias)
        self.layers = nn.ModuleList([HeadLayer(config, config.hidden_size)])

    def layer(self):
        return self.layers[0]

    def read(self, target: Llama, ids):
        states = target(ids)
        return states, states

    def enter(self, embedded, condition):
        joined = self.fc(torch.cat([embedded, condition], -1))
        return joined, joined

    def logits(self, target: Llama, outputs):
        return target.head(outputs)

    def targets(self):
        return torch.arange(self.config.vocab_size)


def load_head(folder: pathlib.Path) -> Head:
    """A checkpoint in float32, ready to run."""
    folder = pathlib.Path(folder)
    config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    head = (Eagle3 if hasattr(config, "draft_vocab_size") else Eagle)(config)
    head.load_state_dict(load_file(folder / "model.safetensors"))
    return head.float().eval()
