#!/usr/bin/env python3
"""Function-preserving widening: a model of a real model's shape, and cost, that writes what the demo model writes.

Speed and memory depend on a model's shape, not on what it knows. This script gives the demo target (and its draft heads,
where they are at hand) any larger shape; the greedy output stays the same, so a benchmark doubles as a correctness test.

  python inflate.py --hidden 2048 --layers 16 --intermediate 8192 --heads 32 --kv-heads 8 --vocab 32000 --out DIR
  python inflate.py --hidden 512 --layers 9 --intermediate 1024 --heads 16 --kv-heads 8 --check

Needs numpy only. Tensors are made one at a time, so memory stays far below the size of the model. widening.py explains
the construction.
"""

import argparse
import json
import pathlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import numpy_llama
import safetensors_io
from safetensors_io import Lazy
from widening import Shape, Widening, widen_head, widen_llama

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent / "lockstep-demo-7m"
GOLDENS = HERE.parents[1] / "tests" / "fixtures" / "goldens.json"


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
