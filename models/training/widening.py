"""The maps from a small model's weights to a large model's that compute the same function.

d and n are the small hidden size and layer count, D and N the large ones:

- Residual stream. Dimensions d..D are zero at every layer, because the embedding's new columns and the new rows of o_proj,
  down_proj and fc are. Weights that only ever multiply those zeros are random.
- RMSNorm. The mean square is d/D of the small one: weights times sqrt(d/D) and epsilon times d/D restore the values.
- Attention. Each small KV head, with its query heads, sits in one or more large KV heads; the others are random, and o_proj
  ignores them. head_dim may grow: rotary pairs keep their frequencies (rope_theta to the power large/small head_dim) and
  q_proj is scaled by sqrt(large/small).
- MLP. The extra units are random, and down_proj ignores them.
- Extra layers. Random q, k, v, gate and up with zero o_proj and down_proj: identities at full cost.
- Placement. EAGLE-3 reads the inputs of layers 2, N//2 and N-3, so small layers 0 and 1 stay first, [2, n//2) start at 2,
  [n//2, n-3) at N//2, the last three are last, and identities fill the gaps.
- Vocabulary. Extra rows copy row 0, <|endoftext|>, which the model does not write: they never win. Sampling probabilities
  do change.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from safetensors_io import Lazy

RANDOM_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """A decoder's dimensions."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def of(cls, config: dict) -> "Shape":
        return cls(
            config["hidden_size"],
            config.get("num_hidden_layers", 1),
            config["intermediate_size"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
            config["vocab_size"],
        )


class Widening:
    """The maps from small weights to large ones, all float32."""

    def __init__(self, small: Shape, large: Shape, seed: int):
        if large.heads % large.kv_heads:
            raise SystemExit(f"--heads {large.heads} must be a multiple of --kv-heads {large.kv_heads}")
        for name in ("hidden", "intermediate", "head_dim", "vocab"):
            if getattr(large, name) < getattr(small, name):
                raise SystemExit(f"{name} {getattr(large, name)} is below the demo model's {getattr(small, name)}")
        self.small, self.large, self.seed = small, large, seed
        self.query_of, self.kv_of = self.place_heads()
        half, large_half = small.head_dim // 2, large.head_dim // 2
        self.rotary = np.concatenate([np.arange(half), np.arange(half) + large_half])
        self.norm_scale = np.float32((small.hidden / large.hidden) ** 0.5)

    def place_heads(self) -> tuple[dict[int, int], dict[int, int]]:
        """Large query head -> small one, and large KV head -> small one."""
        small_group = self.small.heads // self.small.kv_heads
        group = self.large.heads // self.large.kv_heads
        query_of, kv_of = {}, {}
        for kv in range(self.small.kv_heads):
            queries = range(kv * small_group, (kv + 1) * small_group)
            for first in range(0, small_group, group):
                at = len(kv_of)
                kv_of[at] = kv
                for r, query in enumerate(queries[first : first + group]):
                    query_of[at * group + r] = query
        if len(kv_of) > self.large.kv_heads:
            raise SystemExit(
                f"the demo model needs {len(kv_of)} KV heads when each serves {group} query heads:"
                f" raise --kv-heads (now {self.large.kv_heads}) or --heads (now {self.large.heads})"
            )
        return query_of, kv_of

    def random(self, name: str, *shape: int) -> np.ndarray:
        """Uniform noise of standard deviation RANDOM_STD, the same for a seed and a name."""
        generator = np.random.Generator(np.random.PCG64([self.seed, zlib.crc32(name.encode())]))
        noise = generator.random(shape, np.float32)
        noise -= 0.5
        noise *= np.float32(RANDOM_STD * 12**0.5)
        return noise

    def widen_columns(self, wide: np.ndarray, weight: np.ndarray, blocks: int) -> np.ndarray:
        """Put each of the weight's `blocks` column blocks at the head of the wide matrix's, which then sees zeros."""
        d, D = self.small.hidden, self.large.hidden
        for b in range(blocks):
            wide[:, b * D : b * D + d] = weight[:, b * d : (b + 1) * d]
        return wide

    def columns(self, name: str, weight: np.ndarray, rows: int, blocks: int = 1) -> np.ndarray:
        """A matrix that reads the residual stream: new columns and new rows are random."""
        wide = self.random(name, rows, blocks * self.large.hidden)
        self.widen_columns(wide[: len(weight)], weight, blocks)
        return wide

    def norm(self, weight: np.ndarray) -> np.ndarray:
        wide = np.ones(self.large.hidden, np.float32)
        wide[: self.small.hidden] = weight
        return wide * self.norm_scale

    def heads(
        self, name: str, weight: np.ndarray, count: int, placed: dict[int, int], scale: float, blocks: int
    ) -> np.ndarray:
        """q, k or v: placed heads take the small rows at the rotary pairs' new places, the others stay random."""
        dim, large_dim = self.small.head_dim, self.large.head_dim
        wide = self.random(name, count * large_dim, blocks * self.large.hidden)
        for large, small in placed.items():
            rows = wide[large * large_dim : (large + 1) * large_dim]
            rows[:, :] = 0
            part = self.widen_columns(
                np.zeros((dim, wide.shape[1]), np.float32), weight[small * dim : (small + 1) * dim], blocks
            )
            rows[self.rotary] = part * np.float32(scale)
        return wide

    def output(self, weight: np.ndarray) -> np.ndarray:
        """o_proj: only the placed heads reach the residual stream, and only its first d dimensions."""
        dim, large_dim = self.small.head_dim, self.large.head_dim
        wide = np.zeros((self.large.hidden, self.large.heads * large_dim), np.float32)
        for large, small in self.query_of.items():
            wide[: self.small.hidden, large * large_dim + self.rotary] = weight[:, small * dim : (small + 1) * dim]
        return wide

    def corner(self, weight: np.ndarray, *shape: int) -> np.ndarray:
        """Zeros with the small weight in the first corner."""
        wide = np.zeros(shape, np.float32)
        wide[tuple(slice(n) for n in weight.shape)] = weight
        return wide

    def embedding(self, weight: np.ndarray) -> np.ndarray:
        wide = self.corner(weight, self.large.vocab, self.large.hidden)
        wide[len(weight) :] = wide[0]
        return wide

    def layer(self, prefix: str, small: dict[str, np.ndarray], blocks: int = 1) -> dict[str, Lazy]:
        """Attention and MLP of one layer; `blocks` is how many hidden sizes wide the attention's input is."""
        s, D = self.large, self.large.hidden
        q_scale = (s.head_dim / self.small.head_dim) ** 0.5
        wide_in = blocks * D

        def head_rows(name: str, count: int, placed: dict[int, int], scale: float = 1.0) -> Lazy:
            key = f"self_attn.{name}.weight"
            make = lambda: self.heads(prefix + key, small[key], count, placed, scale, blocks)
            return Lazy((count * s.head_dim, wide_in), make)

        def reader(name: str) -> Lazy:
            key = f"mlp.{name}.weight"
            return Lazy((s.intermediate, D), lambda: self.columns(prefix + key, small[key], s.intermediate))

        tensors = {
            "self_attn.q_proj.weight": head_rows("q_proj", s.heads, self.query_of, q_scale),
            "self_attn.k_proj.weight": head_rows("k_proj", s.kv_heads, self.kv_of),
            "self_attn.v_proj.weight": head_rows("v_proj", s.kv_heads, self.kv_of),
            "self_attn.o_proj.weight": Lazy(
                (D, s.heads * s.head_dim), lambda: self.output(small["self_attn.o_proj.weight"])
            ),
            "mlp.gate_proj.weight": reader("gate_proj"),
            "mlp.up_proj.weight": reader("up_proj"),
            "mlp.down_proj.weight": Lazy(
                (D, s.intermediate), lambda: self.corner(small["mlp.down_proj.weight"], D, s.intermediate)
            ),
        }
        return tensors | {key: self.lazy_norm(weight) for key, weight in small.items() if key.endswith("norm.weight")}

    def lazy_norm(self, weight: np.ndarray) -> Lazy:
        return Lazy((self.large.hidden,), lambda: self.norm(weight))

    def identity(self, prefix: str) -> dict[str, Lazy]:
        """A layer that changes nothing at full cost."""
        s, D = self.large, self.large.hidden
        noise = lambda key, *shape: Lazy(shape, lambda: self.random(prefix + key, *shape))
        zeros = lambda *shape: Lazy(shape, lambda: np.zeros(shape, np.float32))
        ones = Lazy((D,), lambda: np.ones(D, np.float32))
        return {
            "input_layernorm.weight": ones,
            "self_attn.q_proj.weight": noise("q", s.heads * s.head_dim, D),
            "self_attn.k_proj.weight": noise("k", s.kv_heads * s.head_dim, D),
            "self_attn.v_proj.weight": noise("v", s.kv_heads * s.head_dim, D),
            "self_attn.o_proj.weight": zeros(D, s.heads * s.head_dim),
            "post_attention_layernorm.weight": ones,
            "mlp.gate_proj.weight": noise("gate", s.intermediate, D),
            "mlp.up_proj.weight": noise("up", s.intermediate, D),
            "mlp.down_proj.weight": zeros(D, s.intermediate),
        }


def place_layers(small: int, large: int) -> dict[int, int]:
    """Large layer -> small layer; the large layers left out become identities."""
    if small < 6:  # standalone drafts have no EAGLE-3 features
        if large < small:
            raise SystemExit(f"{small} layers do not fit {large}")
        return {i: i for i in range(small)}
    cuts = lambda n: (0, 2, n // 2, n - 3, n)
    small_cuts, large_cuts = cuts(small), cuts(large)
    placed = {}
    for i in range(4):
        count, room = small_cuts[i + 1] - small_cuts[i], large_cuts[i + 1] - large_cuts[i]
        if count > room:
            raise SystemExit(
                f"{small} layers do not fit {large}: layers {small_cuts[i]}..{small_cuts[i + 1]} have room for {room}"
            )
        placed |= {large_cuts[i] + j: small_cuts[i] + j for j in range(count)}
    return placed


def under(prefix: str, tensors: dict) -> dict:
    """The tensors whose names start with the prefix, without it."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def widen_llama(widening: Widening, small: dict[str, np.ndarray]) -> dict[str, Lazy]:
    """LlamaForCausalLM with tied embeddings: the target or a standalone draft."""
    large = widening.large
    embedding = small["model.embed_tokens.weight"]
    tensors = {"model.embed_tokens.weight": Lazy((large.vocab, large.hidden), lambda: widening.embedding(embedding))}
    placed = place_layers(widening.small.layers, large.layers)
    for i in range(large.layers):
        prefix = f"model.layers.{i}."
        weights = under(f"model.layers.{placed[i]}.", small) if i in placed else None
        layer = widening.layer(prefix, weights) if weights else widening.identity(prefix)
        tensors |= {prefix + name: tensor for name, tensor in layer.items()}
    return tensors | {"model.norm.weight": widening.lazy_norm(small["model.norm.weight"])}


def widen_head(widening: Widening, small: dict[str, np.ndarray]) -> dict[str, Lazy]:
    """An EAGLE-3 head (midlayer over embedding and feature) or an EAGLE-1/2 head (one layer without input norm)."""
    D, eagle3 = widening.large.hidden, "d2t" in small
    prefix, blocks = ("midlayer.", 2) if eagle3 else ("layers.0.", 1)
    inputs = 3 if eagle3 else 2

    def fuse() -> np.ndarray:
        rows = widening.columns("fc", small["fc.weight"], len(small["fc.weight"]), inputs)
        return widening.corner(rows, D, inputs * D)

    tensors = {"fc.weight": Lazy((D, inputs * D), fuse)}
    layer = widening.layer(prefix, under(prefix, small), blocks)
    tensors |= {prefix + name: tensor for name, tensor in layer.items()}
    if not eagle3:
        return tensors | {"fc.bias": Lazy((D,), lambda: widening.corner(small["fc.bias"], D))}
    drafts = len(small["lm_head.weight"])
    known = np.concatenate([small["t2d"], np.zeros(widening.large.vocab - widening.small.vocab, np.bool_)])
    return tensors | {
        "norm.weight": widening.lazy_norm(small["norm.weight"]),
        "lm_head.weight": Lazy((drafts, D), lambda: widening.columns("lm_head", small["lm_head.weight"], drafts)),
        "d2t": Lazy((drafts,), lambda: small["d2t"], "I64"),
        "t2d": Lazy((len(known),), lambda: known, "BOOL"),
    }
