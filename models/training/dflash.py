"""DFlash's draft model in plain PyTorch, with the parameter names of the public checkpoints.

A block is the last known token and masks behind it. The model fills all masks in one pass: they see the block, and the
context before it, which is made of what the target knows after every token. The output at a mask tells the token in its place.
"""

import json
import pathlib
from types import SimpleNamespace

import torch
from safetensors.torch import load_file
from torch import nn

from model import MLP, Attention, Llama, RMSNorm, rotary_tables, rotate


class DflashAttention(Attention):
    """Attention of Qwen3: queries and keys are normed head by head."""

    def __init__(self, config):
        super().__init__(config)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def keys(self, x, cos, sin):
        """Keys and values, a head for every query head."""
        k = rotate(self.k_norm(self.split(self.k_proj(x), self.kv_heads)), cos, sin)
        v = self.split(self.v_proj(x), self.kv_heads)
        return (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))

    def forward(self, blocks, context, at, before, hidden):
        """`at` and `before` are the rotary tables of blocks and context; `hidden` says what a token does not see."""
        q = rotate(self.q_norm(self.split(self.q_proj(blocks), self.heads)), *at)
        own, old = self.keys(blocks, *at), self.keys(context, *before)
        k, v = (torch.cat(both, 2) for both in zip(old, own))
        scores = (q @ k.transpose(-1, -2)).float() * self.head_dim**-0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(v.dtype)
        return self.merge(weights @ v)


class DflashLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = DflashAttention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, *others):
        x = x + self.self_attn(self.input_layernorm(x), *others)
        return x + self.mlp(self.post_attention_layernorm(x))


class Dflash(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        own = config.dflash_config
        self.config, self.size, self.mask = config, config.block_size, own["mask_token_id"]
        self.layers_read = tuple(layer + 1 for layer in own["target_layer_ids"])
        """The layers whose input is read: those behind the ones that the configuration names."""
        self.fc = nn.Linear(len(self.layers_read) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(DflashLayer(config) for _ in range(config.num_hidden_layers))

    def read(self, target: Llama, ids):
        """The target's states after every token, and the context made of them."""
        with torch.no_grad():
            states, captured = target.states(ids, self.layers_read)
        return states, self.hidden_norm(self.fc(captured))

    def forward(self, target: Llama, ids, context, starts):
        """Outputs [texts, blocks, masks, hidden] of blocks whose known tokens are those of `ids` at `starts`."""
        count, length = len(starts), context.shape[1]
        tokens = torch.full((len(ids), count, self.size), self.mask)
        tokens[:, :, 0] = ids[:, starts]
        x = target.model.embed_tokens(tokens.flatten(1)).detach()
        positions = (starts[:, None] + torch.arange(self.size)).flatten()
        of = torch.arange(count).repeat_interleave(self.size)
        later = torch.arange(length)[None] >= starts[of][:, None]
        hidden = torch.cat([later, of[:, None] != of[None]], 1)
        cos, sin = rotary_tables(max(length, int(positions.max()) + 1), self.config)
        before = cos[:length], sin[:length]
        for layer in self.layers:
            x = layer(x, context, (cos[positions], sin[positions]), before, hidden)
        return self.norm(x).unflatten(1, (count, self.size))[:, :, 1:]

    def logits(self, target: Llama, outputs):
        return target.head(outputs)


def load_dflash(folder: pathlib.Path) -> Dflash:
    """A checkpoint in float32, ready to run."""
    folder = pathlib.Path(folder)
    draft = Dflash(SimpleNamespace(**json.loads((folder / "config.json").read_text())))
    draft.load_state_dict(load_file(folder / "model.safetensors"))
    return draft.float().eval()
