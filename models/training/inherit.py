"""Give a fresh hybrid what the Llama it learns from has: embedding, MLPs, norms, and a start for its full attention."""

import torch

from hybrid import GatedAttention, Hybrid, HybridLayer
from model import Attention, Layer, Llama

PLACES = (0, 1, 2, 3, 4, 5, None, 6)
"""Of each layer of the hybrid: the Llama's layer in its place. One is new."""


def rotary_order(size: int, turned: int) -> list[int]:
    """The Llama's dimensions in the hybrid's order: the pairs whose frequencies both have, then all others."""
    step, half, pairs = size // turned, size // 2, turned // 2
    shared = [step * pair for pair in range(pairs)]
    shared += [half + place for place in shared]
    return shared + [place for place in range(size) if place not in shared]


def inherit_attention(ours: GatedAttention, theirs: Attention) -> None:
    """Queries, keys, values and the output; gates begin at one half, so the output is doubled."""
    order = rotary_order(ours.head_dim, ours.turned)
    rows = lambda matrix, heads: matrix.weight.unflatten(0, (heads, -1))
    rows(ours.q_proj, ours.heads)[:, : ours.head_dim] = rows(theirs.q_proj, theirs.heads)[:, order]
    rows(ours.k_proj, ours.kv_heads)[:] = rows(theirs.k_proj, theirs.kv_heads)[:, order]
    ours.v_proj.weight.copy_(theirs.v_proj.weight)
    ours.o_proj.weight.copy_(2 * theirs.o_proj.weight)


def inherit_layer(ours: HybridLayer, theirs: Layer) -> None:
    ours.mlp.load_state_dict(theirs.mlp.state_dict())
    for name in ("input_layernorm", "post_attention_layernorm"):
        getattr(ours, name).weight.copy_(getattr(theirs, name).weight - 1)
    if hasattr(ours, "self_attn"):
        inherit_attention(ours.self_attn, theirs.self_attn)


@torch.no_grad()
def inherit(ours: Hybrid, theirs: Llama) -> None:
    """Copy all that fits. A new layer has the MLP of the layer before it and adds nothing at first."""
    ours.model.embed_tokens.load_state_dict(theirs.model.embed_tokens.state_dict())
    ours.model.norm.weight.copy_(theirs.model.norm.weight - 1)
    for number, (layer, place) in enumerate(zip(ours.model.layers, PLACES, strict=True)):
        inherit_layer(layer, theirs.model.layers[number - 1 if place is None else place])
        if place is None:
            layer.mlp.down_proj.weight.zero_()
            layer.linear_attn.out_proj.weight.zero_()
