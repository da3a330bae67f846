"""The maps of widening.py for the hybrid and its draft layer. What differs from a Llama:

- Norms are stored as the distance from one, in float32: bfloat16 would round 1 + weight far more coarsely than the weight.
- Norms of queries and keys have the config's epsilon too, which shrinks by d/D. Projections times sqrt(d/D * large/small
  head size) shrink the mean squares alike; the norms' weights give the sizes back, and the queries' also undo the larger
  head's scale of scores.
- Partial rotation. Rotary pairs keep their frequencies, and lie in the part of a large head that turns.
- The gated delta rule. A small head of queries and keys sits in the first columns of a large one, zeros behind it. The
  queries' scale makes outputs sqrt(small/large key size) as large, and zeros behind values shrink their mean square: that of
  the gated norm would fall by small/large key size * small/large value size. Values are therefore repeated until it falls by
  d/D, as epsilon does, and the norm's weight restores the rest. Where that takes no whole number of copies, the shape is
  refused.
- Layers keep their place among four: the first small four come first, the last four last, and identities fill the gap.
"""

from dataclasses import dataclass

import numpy as np

from safetensors_io import Lazy
from widening import Shape, Widening, under

PERIOD = 4


@dataclass(frozen=True)
class DeltaShape:
    """Heads of a gated delta rule."""

    keys: int
    values: int
    key_dim: int
    value_dim: int
    taps: int

    @classmethod
    def of(cls, config: dict) -> "DeltaShape":
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
        return cls(*(config[f"linear_{name}"] for name in names))


def unit_norm(weight: np.ndarray) -> Lazy:
    """A norm's factors, stored as the distance from one."""
    return Lazy(weight.shape, lambda: weight - 1, "F32")


class HybridWidening(Widening):
    """The maps of full attention, MLPs and norms."""

    def __init__(self, small: Shape, large: Shape, seed: int, share: float):
        super().__init__(small, large, seed)
        turned, large_turned = int(small.head_dim * share), int(large.head_dim * share)
        half, rest = np.arange(turned // 2), np.arange(small.head_dim - turned)
        self.rotary = np.concatenate([half, large_turned // 2 + half, large_turned + rest])
        grown = large.head_dim / small.head_dim
        self.head_scale, self.key_factor = self.norm_scale * grown**0.5, grown**-0.5

    def lazy_norm(self, weight: np.ndarray) -> Lazy:
        return unit_norm(self.norm(1 + weight))

    def head_norm(self, weight: np.ndarray, factor: float) -> Lazy:
        wide = np.ones(self.large.head_dim, np.float32)
        wide[self.rotary] = (1 + weight) * np.float32(factor)
        return unit_norm(wide)

    def queries(self, name: str, weight: np.ndarray) -> np.ndarray:
        """Queries and gates of each head, one behind the other."""
        s, count = self.small, self.large.heads
        parts = np.split(weight.reshape(s.heads, 2 * s.head_dim, -1), 2, 1)
        flat = (part.reshape(s.heads * s.head_dim, -1) for part in parts)
        wide = [
            self.heads(f"{name}.{kind}", part, count, self.query_of, scale, 1)
            for kind, part, scale in zip(("query", "gate"), flat, (self.head_scale, 1.0))
        ]
        shape = (count, self.large.head_dim, self.large.hidden)
        return np.concatenate([part.reshape(shape) for part in wide], 1).reshape(-1, self.large.hidden)

    def attention(self, prefix: str, small: dict[str, np.ndarray]) -> dict[str, Lazy]:
        s, D = self.large, self.large.hidden
        width = s.kv_heads * s.head_dim
        read = lambda name, scale: self.heads(prefix + name, small[f"{name}.weight"], s.kv_heads, self.kv_of, scale, 1)
        return {
            "q_proj.weight": Lazy((2 * s.heads * s.head_dim, D), lambda: self.queries(prefix, small["q_proj.weight"])),
            "k_proj.weight": Lazy((width, D), lambda: read("k_proj", self.head_scale)),
            "v_proj.weight": Lazy((width, D), lambda: read("v_proj", 1.0)),
            "o_proj.weight": Lazy((D, s.heads * s.head_dim), lambda: self.output(small["o_proj.weight"])),
            "q_norm.weight": self.head_norm(small["q_norm.weight"], 1.0),
            "k_norm.weight": self.head_norm(small["k_norm.weight"], self.key_factor),
        }

    def mlp(self, prefix: str, small: dict[str, np.ndarray]) -> dict[str, Lazy]:
        s, D = self.large, self.large.hidden
        read = lambda name: self.columns(prefix + name, small[f"{name}.weight"], s.intermediate)
        return {
            "gate_proj.weight": Lazy((s.intermediate, D), lambda: read("gate_proj")),
            "up_proj.weight": Lazy((s.intermediate, D), lambda: read("up_proj")),
            "down_proj.weight": Lazy(
                (D, s.intermediate), lambda: self.corner(small["down_proj.weight"], D, s.intermediate)
            ),
        }


class DeltaWidening(Widening):
    """The maps of the gated delta rule: value heads in the place of query heads, key heads in that of KV heads."""

    def __init__(self, base: HybridWidening, small: DeltaShape, large: DeltaShape):
        shape = lambda of, delta: Shape(
            of.hidden, of.layers, of.intermediate, delta.values, delta.keys, delta.key_dim, of.vocab
        )
        super().__init__(shape(base.small, small), shape(base.large, large), base.seed)
        self.from_, self.to = small, large
        shrunk = (small.key_dim / large.key_dim) * (small.value_dim / large.value_dim)
        copies = base.norm_scale**2 / shrunk
        self.copies = round(copies)
        if small.value_dim > large.value_dim or abs(copies - self.copies) > 1e-6 or not (
            1 <= self.copies <= large.value_dim // small.value_dim
        ):
            raise SystemExit(
                f"values of heads would have to be there {copies:g} times to keep epsilon's part in the gated norm: choose"
                " --key-dim, --value-dim and --hidden so that this is a whole number, and --value-dim with room for all"
            )
        self.factor = np.float32(base.norm_scale * (large.key_dim / small.key_dim) ** 0.5)

    def rows(self, wide: np.ndarray, small: np.ndarray, of_values: bool) -> np.ndarray:
        """Put the small heads' rows into the large heads' rows; of values all copies."""
        placed = self.query_of if of_values else self.kv_of
        of = lambda shape: shape.value_dim if of_values else shape.key_dim
        dim, large_dim, copies = of(self.from_), of(self.to), self.copies if of_values else 1
        for large, head in placed.items():
            rows = wide[large * large_dim : (large + 1) * large_dim]
            rows[:, :] = 0
            for copy in range(copies):
                rows[copy * dim : (copy + 1) * dim, : small.shape[1]] = small[head * dim : (head + 1) * dim]
        return wide

    def channels(self, name: str, small: np.ndarray, width: int) -> np.ndarray:
        """Rows of queries, keys and values of all heads."""
        keys = self.from_.keys * self.from_.key_dim
        large_keys, large_values = self.to.keys * self.to.key_dim, self.to.values * self.to.value_dim
        parts = []
        for kind, part, rows in zip("qkv", np.split(small, [keys, 2 * keys]), (large_keys, large_keys, large_values)):
            parts.append(self.rows(self.random(f"{name}.{kind}", rows, width), part, kind == "v"))
        return np.concatenate(parts)

    def gates(self, name: str, small: np.ndarray) -> np.ndarray:
        """A row for each value head."""
        wide = self.random(name, self.to.values, self.large.hidden)
        for large, head in self.query_of.items():
            wide[large] = 0
            wide[large, : self.small.hidden] = small[head]
        return wide

    def numbers(self, small: np.ndarray) -> np.ndarray:
        """A number for each value head."""
        wide = np.zeros(self.to.values, np.float32)
        wide[list(self.query_of)] = small[list(self.query_of.values())]
        return wide

    def out(self, small: np.ndarray) -> np.ndarray:
        dim, large_dim = self.from_.value_dim, self.to.value_dim
        wide = np.zeros((self.large.hidden, self.to.values * large_dim), np.float32)
        for large, head in self.query_of.items():
            columns = slice(large * large_dim, large * large_dim + dim)
            wide[: self.small.hidden, columns] = small[:, head * dim : (head + 1) * dim]
        return wide

    def norm_of_heads(self, small: np.ndarray) -> np.ndarray:
        wide = np.ones(self.to.value_dim, np.float32)
        wide[: len(small)] = small * self.factor
        return wide

    def layer(self, prefix: str, small: dict[str, np.ndarray]) -> dict[str, Lazy]:
        to, D = self.to, self.large.hidden
        values = to.values * to.value_dim
        channels = 2 * to.keys * to.key_dim + values
        noise = lambda name: self.random(prefix + name, values, D)
        taps = lambda: self.channels(prefix + "conv", small["conv1d.weight"][:, 0], to.taps)
        of_heads = lambda name: Lazy((to.values,), lambda: self.numbers(small[name]), "F32")
        of_rows = lambda name: Lazy((to.values, D), lambda: self.gates(prefix + name, small[f"{name}.weight"]))
        return {
            "in_proj_qkv.weight": Lazy(
                (channels, D), lambda: self.channels(prefix + "qkv", small["in_proj_qkv.weight"], D)
            ),
            "in_proj_z.weight": Lazy((values, D), lambda: self.rows(noise("z"), small["in_proj_z.weight"], True)),
            "in_proj_b.weight": of_rows("in_proj_b"),
            "in_proj_a.weight": of_rows("in_proj_a"),
            "conv1d.weight": Lazy((channels, 1, to.taps), lambda: taps()[:, None]),
            "dt_bias": of_heads("dt_bias"),
            "A_log": of_heads("A_log"),
            "norm.weight": Lazy((to.value_dim,), lambda: self.norm_of_heads(small["norm.weight"]), "F32"),
            "out_proj.weight": Lazy((D, values), lambda: self.out(small["out_proj.weight"])),
        }


def silent(layer: dict[str, Lazy]) -> dict[str, Lazy]:
    """The same layer, which adds nothing: an identity at full cost."""
    ends = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    zeros = lambda tensor: Lazy(tensor.shape, lambda: np.zeros(tensor.shape, np.float32), tensor.dtype)
    return {name: zeros(tensor) if name.endswith(ends) else tensor for name, tensor in layer.items()}


def widen_layer(base: HybridWidening, delta: DeltaWidening, prefix: str, small: dict[str, np.ndarray]) -> dict[str, Lazy]:
    """A layer of either kind."""
    recurrent = "linear_attn.out_proj.weight" in small
    mixer = "linear_attn." if recurrent else "self_attn."
    widen = delta.layer if recurrent else base.attention
    tensors = {mixer + name: tensor for name, tensor in widen(prefix + mixer, under(mixer, small)).items()}
    tensors |= {f"mlp.{name}": tensor for name, tensor in base.mlp(prefix, under("mlp.", small)).items()}
    for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        tensors[name] = base.lazy_norm(small[name])
    return tensors


def widen_hybrid(base: HybridWidening, delta: DeltaWidening, small: dict[str, np.ndarray]) -> dict[str, Lazy]:
    """Qwen3_5ForCausalLM with tied embeddings, and its draft layer."""
    D, vocab = base.large.hidden, base.large.vocab
    embedding = small["model.embed_tokens.weight"]
    tensors = {"model.embed_tokens.weight": Lazy((vocab, D), lambda: base.embedding(embedding))}
    few, many = base.small.layers, base.large.layers
    if few != 2 * PERIOD or many % PERIOD or many < few:
        raise SystemExit(f"--layers {many}: {few} layers of the small model need a larger multiple of {PERIOD}")
    for number in range(many):
        between = PERIOD <= number < many - PERIOD
        source = number % PERIOD if between or number < PERIOD else number - (many - few)
        prefix = f"model.layers.{number}."
        layer = widen_layer(base, delta, prefix, under(f"model.layers.{source}.", small))
        if between:
            layer = silent(layer)
        tensors |= {prefix + name: tensor for name, tensor in layer.items()}
    tensors["model.norm.weight"] = base.lazy_norm(small["model.norm.weight"])

    def fuse() -> np.ndarray:
        rows = base.columns("mtp.fc", small["mtp.fc.weight"], base.small.hidden, 2)
        return base.corner(rows, D, 2 * D)

    tensors["mtp.fc.weight"] = Lazy((D, 2 * D), fuse)
    layer = widen_layer(base, delta, "mtp.layers.0.", under("mtp.layers.0.", small))
    tensors |= {f"mtp.layers.0.{name}": tensor for name, tensor in layer.items()}
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = base.lazy_norm(small[f"mtp.{name}.weight"])
    return tensors
