"""Qwen3.5's own draft layer in plain PyTorch: a head, with the interface of heads.py, that lies in the target's file.

Slot i joins the embedding of token i + 1 and the target's state after token i, behind its final norm, and tells token i + 2
by the target's own head. While drafting, that state is the layer's own output, behind `norm`.
"""

import json
import pathlib

import torch
from safetensors.torch import load_file
from torch import nn

from heads import Head
from hybrid import Hybrid, HybridLayer, UnitNorm, dimensions, draw


class Mtp(Head):
    def __init__(self, config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([HybridLayer(config, "full_attention")])
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = UnitNorm(hidden, eps), UnitNorm(hidden, eps)
        self.norm = UnitNorm(hidden, eps)
        draw(self, 1)

    def layer(self):
        return self.layers[0]

    def read(self, target: Hybrid, ids):
        states = target(ids)
        return states, states

    def enter(self, embedded, condition):
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(condition)]
        joined = self.fc(torch.cat(pair, -1))
        return joined, self.layers[0].input_layernorm(joined)

    def step(self, embedded, condition, attend):
        return self.norm(super().step(embedded, condition, attend))

    def logits(self, target: Hybrid, outputs):
        return target.head(outputs)

    def targets(self):
        return torch.arange(self.config.vocab_size)

    @torch.no_grad()
    def begin_as(self, target: Hybrid) -> None:
        """Pass the state on through `fc`, and take the target's last layer and its final norm."""
        hidden = self.config.hidden_size
        self.layers[0].load_state_dict(target.model.layers[-1].state_dict())
        self.fc.weight[:, hidden:] += torch.eye(hidden)
        self.norm.load_state_dict(target.model.norm.state_dict())


def load_mtp(folder: pathlib.Path) -> Mtp:
    """A checkpoint's draft layer in float32, ready to run."""
    folder = pathlib.Path(folder)
    layer = Mtp(dimensions(json.loads((folder / "config.json").read_text())))
    weights = load_file(folder / "model.safetensors")
    layer.load_state_dict({name[4:]: value for name, value in weights.items() if name.startswith("mtp.")})
    return layer.float().eval()
