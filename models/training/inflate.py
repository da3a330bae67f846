#!/usr/bin/env python3
"""Function-preserving widening: a model of a real model's shape, and cost, that writes what the demo model writes.

Speed and memory depend on a model's shape, not on what it knows. This script gives the demo target (and its draft heads,
where they are at hand) any larger shape; the greedy output stays the same, so a benchmark doubles as a correctness test.

  python inflate.py --hidden 2048 --layers 16 --intermediate 8192 --heads 32 --kv-heads 8 --vocab 32000 --out /tmp/big
  python inflate.py --hidden 512 --layers 9 --intermediate 1024 --heads 16 --kv-heads 8 --check

How it works (d, n: small hidden size and layers; D, N: large ones):

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

Needs numpy only. Tensors are made one at a time, so memory stays far below the size of the model.
"""

import argparse
import json
import pathlib
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import numpy_llama
import safetensors_io
from safetensors_io import Lazy

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent / "lockstep-demo-7m"
GOLDENS = HERE.parents[1] / "tests" / "fixtures" / "goldens.json"
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


def large_config(config: dict, small: Shape, large: Shape) -> dict:
    """The small model's config with the large shape."""
    changed = {
        "hidden_size": large.hidden,
        "intermediate_size": large.intermediate,
        "num_attention_heads": large.heads,
        "num_key_value_heads": large.kv_heads,
        "head_dim": large.head_dim,
        "vocab_size": large.vocab,
        "rms_norm_eps": config["rms_norm_eps"] * small.hidden / large.hidden,
        "rope_theta": config["rope_theta"] ** (large.head_dim / small.head_dim),
    }
    if "num_hidden_layers" in config and config["architectures"] == ["LlamaForCausalLM"]:
        changed["num_hidden_layers"] = large.layers
    return config | changed


@dataclass
class Model:
    """A small model and its widened form."""

    folder: pathlib.Path
    small_config: dict
    small: dict[str, np.ndarray]
    config: dict
    tensors: dict[str, Lazy]

    def save(self, out: pathlib.Path) -> None:
        """Write a checkpoint that transformers and Lockstep load, tokenizer included."""
        out.mkdir(parents=True, exist_ok=True)
        safetensors_io.write(out / "model.safetensors", self.tensors)
        (out / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, out / name)

    def parameters(self) -> int:
        return sum(tensor.size() for tensor in self.tensors.values() if tensor.dtype == "BF16")


def inflate(folder: pathlib.Path, shape: Callable[[Shape], Shape], seed: int) -> Model:
    """Load a small model and describe its widened form; nothing large is made yet."""
    config = json.loads((folder / "config.json").read_text())
    weights = safetensors_io.read(folder / "model.safetensors")
    small = Shape.of(config)
    large = shape(small)
    widening = Widening(small, large, seed)
    llama = config["architectures"] == ["LlamaForCausalLM"]
    tensors = (widen_llama if llama else widen_head)(widening, weights)
    return Model(folder, config, weights, large_config(config, small, large), tensors)


def check(model: Model, goldens: pathlib.Path, count: int) -> dict:
    """Compare small and large target in float32, teacher-forced over the goldens.

    If the argmax after every golden prefix is the golden token, greedy decoding writes exactly the golden output.
    """
    prompts = json.loads(goldens.read_text())["prompts"][:count]
    sequences = [golden["prompt_ids"] + golden["output_ids"] for golden in prompts]
    small = numpy_llama.logits(model.small_config, model.small.__getitem__, sequences)
    large = numpy_llama.logits(model.config, lambda name: model.tensors[name].make(), sequences)
    difference, equal, total = 0.0, 0, 0
    for golden, a, b in zip(prompts, small, large):
        difference = max(difference, float(np.abs(a - b[:, : a.shape[1]]).max()))
        written = b[len(golden["prompt_ids"]) - 1 : -1].argmax(-1)
        equal += int((written == np.array(golden["output_ids"])).sum())
        total += len(golden["output_ids"])
    return {
        "prompts": len(prompts),
        "max_logit_difference": difference,
        "golden_tokens_equal": equal,
        "golden_tokens": total,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hidden", type=int, required=True, help="hidden size, at least 256")
    add("--layers", type=int, required=True, help="layers, at least 7")
    add("--intermediate", type=int, required=True, help="MLP size, at least 768")
    add("--heads", type=int, required=True, help="query heads")
    add("--kv-heads", type=int, required=True, help="KV heads")
    add("--head-dim", type=int, default=64, help="size of a head (default: 64)")
    add("--vocab", type=int, help="vocabulary size (default: the model's 4096)")
    add("--out", type=pathlib.Path, help="write the target here; a draft goes to a sibling named OUT-eagle3 and so on")
    add("--check", nargs="?", const=GOLDENS, type=pathlib.Path, help="compare with the small target on these goldens")
    add("--check-prompts", type=int, default=8, help="how many of the goldens (default: 8)")
    add("--target", type=pathlib.Path, default=TARGET, help="the small target")
    add("--eagle3", type=pathlib.Path, help="a small EAGLE-3 head to widen too")
    add("--eagle", type=pathlib.Path, help="a small EAGLE-1/2 head to widen too")
    add("--draft", type=pathlib.Path, help="a small standalone draft to widen too, to --draft-shape")
    add(
        "--draft-shape",
        default="512,4,2048,8,4",
        help="hidden,layers,intermediate,heads,kv-heads (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="of the random weights that change nothing")
    return parser.parse_args()


def main():
    a = parse_arguments()
    vocab = lambda small: a.vocab or small.vocab
    wide = lambda small: Shape(a.hidden, a.layers, a.intermediate, a.heads, a.kv_heads, a.head_dim, vocab(small))
    narrow = lambda small: Shape(*map(int, a.draft_shape.split(",")), a.head_dim, vocab(small))
    sources = {
        "": (a.target, wide),
        "-eagle3": (a.eagle3, wide),
        "-eagle": (a.eagle, wide),
        "-draft": (a.draft, narrow),
    }
    report = {}
    for suffix, (folder, shape) in sources.items():
        if folder is None:
            continue
        model = inflate(folder, shape, a.seed)
        report[f"parameters{suffix}"] = model.parameters()
        if a.check and not suffix:
            report["check"] = check(model, a.check, a.check_prompts)
        if a.out:
            model.save(a.out.with_name(a.out.name + suffix))
    print(json.dumps(report, indent=1))
    result = report.get("check")
    if result and result["golden_tokens_equal"] != result["golden_tokens"]:
        raise SystemExit("the large model does not write the golden tokens")


if __name__ == "__main__":
    main()
