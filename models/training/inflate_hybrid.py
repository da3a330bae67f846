#!/usr/bin/env python3
"""Function-preserving widening of the hybrid, with its draft layer: it costs what a large model costs, and writes and
accepts what the small one does.

  python inflate_hybrid.py --hidden 1024 --layers 24 --intermediate 3584 --vocab 32000 --out DIR
  python inflate_hybrid.py --hidden 1024 --layers 12 --intermediate 1024 --check

widening_hybrid.py explains the construction. Writing needs numpy only; --check needs torch.
"""

import argparse
import json
import pathlib
from collections.abc import Iterator

import numpy as np

import safetensors_io
from inflate import GOLDENS, Model
from widening import Shape
from widening_hybrid import PERIOD, DeltaShape, DeltaWidening, HybridWidening, widen_hybrid

TARGET = pathlib.Path(__file__).resolve().parents[1] / "lockstep-demo-8m-hybrid"
DRAFTS = 3
"""Steps of the draft layer that are compared."""


def large_config(config: dict, large: Shape, delta: DeltaShape) -> dict:
    """The small model's config with the large shape."""
    rope, share = config["rope_parameters"], config["rope_parameters"]["partial_rotary_factor"]
    pairs = int(large.head_dim * share) // 2
    grown = large.head_dim / config["head_dim"]
    return config | {
        "hidden_size": large.hidden,
        "intermediate_size": large.intermediate,
        "num_hidden_layers": large.layers,
        "num_attention_heads": large.heads,
        "num_key_value_heads": large.kv_heads,
        "head_dim": large.head_dim,
        "vocab_size": large.vocab,
        "layer_types": (["linear_attention"] * (PERIOD - 1) + ["full_attention"]) * (large.layers // PERIOD),
        "linear_num_key_heads": delta.keys,
        "linear_num_value_heads": delta.values,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "rms_norm_eps": config["rms_norm_eps"] * config["hidden_size"] / large.hidden,
        "rope_parameters": rope
        | {
            "rope_theta": rope["rope_theta"] ** grown,
            "mrope_section": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3],
        },
    }


def inflate(folder: pathlib.Path, large: Shape, delta: DeltaShape, seed: int) -> Model:
    """Load the small model and describe its widened form; nothing large is made yet."""
    config = json.loads((folder / "config.json").read_text())
    weights = safetensors_io.read(folder / "model.safetensors")
    base = HybridWidening(Shape.of(config), large, seed, config["rope_parameters"]["partial_rotary_factor"])
    tensors = widen_hybrid(base, DeltaWidening(base, DeltaShape.of(config), delta), weights)
    return Model(folder, config, weights, large_config(config, large, delta), tensors)


def computed(config: dict, tensor, texts: list[list[int]]) -> Iterator[np.ndarray]:
    """Logits of each text in float32, and of the draft layer's steps behind it."""
    import torch

    from hybrid import Hybrid, dimensions
    from mtp import Mtp

    target, mtp = Hybrid(dimensions(config)).eval(), Mtp(dimensions(config)).eval()
    target.load_state_dict({name: torch.from_numpy(tensor(name)) for name in target.state_dict()})
    mtp.load_state_dict({name: torch.from_numpy(tensor(f"mtp.{name}")) for name in mtp.state_dict()})
    for text in texts:
        with torch.no_grad():
            ids = torch.tensor([text])
            states = target(ids)
            rows = [target.head(states)[0]]
            for _ in range(DRAFTS):
                ids = torch.cat([ids, rows[-1][-1:].argmax(-1)[None]], 1)
                output = mtp(target.model.embed_tokens(ids[:, 1:]), states)[:, -1:]
                rows.append(target.head(output)[0])
                states = torch.cat([states, output], 1)
        yield torch.cat(rows).numpy()


def check(model: Model, goldens: pathlib.Path, count: int) -> dict:
    """Compare small and large model in float32 over texts of the goldens: logits, best tokens, and drafts behind them."""
    prompts = json.loads(goldens.read_text())["prompts"][:count]
    texts = [golden["prompt_ids"] + golden["output_ids"] for golden in prompts]
    small = computed(model.small_config, model.small.__getitem__, texts)
    large = computed(model.config, lambda name: np.array(model.tensors[name].make(), np.float32), texts)
    difference, equal, total = 0.0, 0, 0
    for a, b in zip(small, large, strict=True):
        difference = max(difference, float(np.abs(a - b[:, : a.shape[1]]).max()))
        equal += int((a.argmax(-1) == b.argmax(-1)).sum())
        total += len(a)
    return {"prompts": len(prompts), "max_logit_difference": difference, "best_tokens_equal": equal, "best_tokens": total}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hidden", type=int, required=True, help="hidden size, at least 256")
    add("--layers", type=int, required=True, help="layers, a multiple of 4, at least 8")
    add("--intermediate", type=int, required=True, help="MLP size, at least 768")
    add("--heads", type=int, default=8, help="query heads of full attention (default: 8)")
    add("--kv-heads", type=int, default=4, help="KV heads (default: 4)")
    add("--head-dim", type=int, default=256, help="size of such a head (default: 256)")
    add("--key-heads", type=int, default=16, help="heads of queries and keys of recurrent layers (default: 16)")
    add("--value-heads", type=int, default=16, help="heads of values (default: 16)")
    add("--key-dim", type=int, default=64, help="size of a head of queries and keys (default: 64)")
    add("--value-dim", type=int, default=64, help="size of a head of values (default: 64)")
    add("--vocab", type=int, help="vocabulary size (default: the model's 4096)")
    add("--out", type=pathlib.Path, help="write the model here")
    add("--check", nargs="?", const=GOLDENS, type=pathlib.Path, help="compare with the small model on these texts")
    add("--check-prompts", type=int, default=4, help="how many of the texts (default: 4)")
    add("--target", type=pathlib.Path, default=TARGET, help="the small model")
    add("--seed", type=int, default=0, help="of the random weights that change nothing")
    return parser.parse_args()


def main():
    a = parse_arguments()
    config = json.loads((a.target / "config.json").read_text())
    vocab = a.vocab or config["vocab_size"]
    large = Shape(a.hidden, a.layers, a.intermediate, a.heads, a.kv_heads, a.head_dim, vocab)
    delta = DeltaShape(a.key_heads, a.value_heads, a.key_dim, a.value_dim, config["linear_conv_kernel_dim"])
    model = inflate(a.target, large, delta, a.seed)
    report = {"parameters": sum(tensor.size() for tensor in model.tensors.values())}
    if a.check:
        report["check"] = check(model, a.check, a.check_prompts)
    if a.out:
        model.save(a.out)
    print(json.dumps(report, indent=1))
    result = report.get("check")
    if result and result["best_tokens_equal"] != result["best_tokens"]:
        raise SystemExit("the large model does not write what the small one does")


if __name__ == "__main__":
    main()
